//! Reading changes nothing. A block that comes and goes is settled lazily, and every look at the books settles it:
//! so the same requests must give the same addresses and the same books in the end, whether somebody looks after
//! every one of them, whether a history is kept, or whether nobody looks at all. Nor does it matter whether hits take
//! the short way for plain blocks or the general one.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gpucache::device::Stream;
use gpucache::device::sim::{AddressPolicy, SimDevice};
use gpucache::observe::history::Frames;
use gpucache::observe::snapshot::SegmentInfo;
use gpucache::stats::MemoryStats;
use gpucache::{Allocation, Allocator, Config, HistoryOptions, MemPool, Scope, ScopeGuard};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const MIB: usize = 1 << 20;
const STREAMS: [Stream; 3] = [Stream::DEFAULT, Stream::from_raw(0x20), Stream::from_raw(0x10)];

/// Few sizes, so that they come again: equal requests, and others that round to the same block.
const SIZES: [usize; 16] = [
    1,
    400,
    512,
    700,
    1000,
    4096,
    300_000,
    MIB,
    MIB + 1,
    MIB + 300,
    3 * MIB,
    3 * MIB - 100,
    9 * MIB,
    12 * MIB,
    25 * MIB,
    70 * MIB,
];

const SETTINGS: [&str; 6] = [
    "expandable_segments:True",
    "expandable_segments:False",
    "max_split_size_mb:20",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.5",
    "max_split_size_mb:64,roundup_power2_divisions:8",
];

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        size: usize,
        stream: usize,
    },
    /// The newest goes, which is what laziness waits for.
    FreeLast,
    Free {
        index: usize,
    },
    /// Allocated and dropped at once, several times.
    Pairs {
        size: usize,
        smaller: usize,
        stream: usize,
        times: usize,
    },
    Record {
        index: usize,
        stream: usize,
    },
    /// Pairs that another stream uses; the next request sees whether it is done.
    RecordedPairs {
        size: usize,
        smaller: usize,
        stream: usize,
        other: usize,
        times: usize,
        by_address: bool,
    },
    Hold {
        stream: usize,
    },
    Release {
        stream: usize,
    },
    EmptyCache,
    Settings {
        which: usize,
    },
    Fraction {
        capped: bool,
    },
    ResetPeak,
    ResetAccumulated,
    Scoped {
        size: usize,
    },
    EnterScope,
    LeaveScope,
    ThroughParts {
        index: usize,
    },
    InPool {
        sizes: Vec<usize>,
        stream: usize,
    },
    Forecast {
        size: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let (size, stream, index) = (0..SIZES.len(), 0..STREAMS.len(), any::<usize>());
    prop_oneof![
        10 => (size.clone(), stream.clone()).prop_map(|(size, stream)| Op::Alloc { size, stream }),
        8 => Just(Op::FreeLast),
        4 => index.prop_map(|index| Op::Free { index }),
        6 => (size.clone(), 0usize..3, stream.clone(), 1usize..5)
            .prop_map(|(size, smaller, stream, times)| Op::Pairs { size, smaller, stream, times }),
        2 => (index, stream.clone()).prop_map(|(index, stream)| Op::Record { index, stream }),
        6 => (size.clone(), 0usize..3, stream.clone(), stream.clone(), 1usize..5, any::<bool>()).prop_map(
            |(size, smaller, stream, other, times, by_address)| {
                Op::RecordedPairs { size, smaller, stream, other, times, by_address }
            },
        ),
        1 => stream.clone().prop_map(|stream| Op::Hold { stream }),
        1 => stream.clone().prop_map(|stream| Op::Release { stream }),
        1 => Just(Op::EmptyCache),
        1 => (0..SETTINGS.len()).prop_map(|which| Op::Settings { which }),
        1 => any::<bool>().prop_map(|capped| Op::Fraction { capped }),
        1 => Just(Op::ResetPeak),
        1 => Just(Op::ResetAccumulated),
        2 => size.clone().prop_map(|size| Op::Scoped { size }),
        1 => Just(Op::EnterScope),
        1 => Just(Op::LeaveScope),
        2 => index.prop_map(|index| Op::ThroughParts { index }),
        1 => (prop::collection::vec(size.clone(), 1..6), stream)
            .prop_map(|(sizes, stream)| Op::InPool { sizes, stream }),
        1 => size.prop_map(|size| Op::Forecast { size }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watcher {
    Nobody,
    Reads,
    History,
    /// Nobody, but hits go the general way.
    General,
}

/// What can be told at the end. Segments tell of stale requested sizes as well.
#[derive(Debug, PartialEq)]
struct Outcome {
    addresses: Vec<Option<u64>>,
    stats: MemoryStats,
    segments: Vec<SegmentInfo>,
    scopes: String,
}

struct Run {
    device: SimDevice,
    allocator: Allocator,
    watcher: Watcher,
    live: Vec<Allocation>,
    addresses: Vec<Option<u64>>,
    pool: MemPool,
}

impl Run {
    fn new(options: &str, watcher: Watcher) -> Self {
        let device = SimDevice::builder()
            .total_memory(256 << 20)
            .address_policy(AddressPolicy::FirstFit)
            .free_waits(false)
            .build();
        let allocator = Allocator::builder()
            .device(Arc::new(device.clone()))
            .config(Config::parse(options).unwrap())
            .build()
            .unwrap();
        if watcher == Watcher::History {
            allocator.record_memory_history(Some(HistoryOptions::with_max_entries(100)));
        }
        let pool = allocator.create_pool();
        let run = Run { device, allocator, watcher, live: Vec::new(), addresses: Vec::new(), pool };
        run.set(options);
        run
    }

    /// A limit beyond any block changes nothing, but the rules are not the default's any more.
    fn set(&self, text: &str) {
        let general = self.watcher == Watcher::General && !text.contains("max_split");
        let comma = if text.is_empty() { "" } else { "," };
        let text = if general { format!("{text}{comma}max_split_size_mb:1048576") } else { text.to_owned() };
        self.allocator.set_allocator_settings(&text).unwrap();
    }

    fn alloc(&mut self, bytes: usize, stream: Stream) -> Option<Allocation> {
        let block = self.allocator.alloc_on(bytes, stream).ok();
        self.addresses.push(block.as_ref().map(Allocation::address));
        self.look();
        block
    }

    fn recorded(&self, block: Allocation, other: Stream, by_address: bool) {
        if !by_address {
            block.record_stream(other);
            return self.look();
        }
        let address = block.into_raw();
        self.allocator.record_stream_raw(address, other).unwrap();
        self.look();
        self.allocator.free_raw(address).unwrap();
    }

    fn look(&self) {
        if self.watcher == Watcher::Reads {
            self.allocator.memory_stats();
        }
    }

    fn step(&mut self, op: &Op, guards: &mut Vec<ScopeGuard>, scope: &Scope) {
        match *op {
            Op::Alloc { size, stream } => {
                let block = self.alloc(SIZES[size], STREAMS[stream]);
                self.live.extend(block);
            }
            Op::FreeLast => drop(self.live.pop()),
            Op::Free { index } => {
                if !self.live.is_empty() {
                    drop(self.live.swap_remove(index % self.live.len()));
                }
            }
            Op::Pairs { size, smaller, stream, times } => {
                for time in 0..times {
                    let bytes = SIZES[size].saturating_sub(smaller * time).max(1);
                    drop(self.alloc(bytes, STREAMS[stream]));
                    self.look();
                }
            }
            Op::Record { index, stream } => {
                if !self.live.is_empty() {
                    self.live[index % self.live.len()].record_stream(STREAMS[stream]);
                }
            }
            Op::RecordedPairs { size, smaller, stream, other, times, by_address } => {
                for time in 0..times {
                    let bytes = SIZES[size].saturating_sub(smaller * time).max(1);
                    let Some(block) = self.alloc(bytes, STREAMS[stream]) else { continue };
                    self.recorded(block, STREAMS[other], by_address);
                    self.look();
                }
            }
            Op::Hold { stream } => self.device.hold(STREAMS[stream]),
            Op::Release { stream } => self.device.release(STREAMS[stream]),
            Op::EmptyCache => drop(self.allocator.empty_cache().unwrap()),
            Op::Settings { which } => self.set(SETTINGS[which]),
            Op::Fraction { capped } => {
                self.allocator.set_per_process_memory_fraction(if capped { 0.75 } else { 1.0 }).unwrap();
            }
            Op::ResetPeak => self.allocator.reset_peak_memory_stats(),
            Op::ResetAccumulated => self.allocator.reset_accumulated_memory_stats(),
            Op::Scoped { size } => {
                let block = scope.alloc(SIZES[size]).ok();
                self.addresses.push(block.as_ref().map(Allocation::address));
                self.live.extend(block);
            }
            Op::EnterScope => guards.push(scope.enter()),
            Op::LeaveScope => drop(guards.pop()),
            Op::ThroughParts { index } => {
                if !self.live.is_empty() {
                    let at = index % self.live.len();
                    let parts = self.live.swap_remove(at).into_parts();
                    // SAFETY: the parts come from `into_parts` and are used once.
                    self.live.push(unsafe { Allocation::from_parts(parts) }.unwrap());
                }
            }
            Op::InPool { ref sizes, stream } => self.in_pool(sizes, STREAMS[stream]),
            Op::Forecast { size } => drop(self.allocator.would_allocate(SIZES[size], Stream::DEFAULT)),
        }
        self.look();
    }

    /// The first of them stays.
    fn in_pool(&mut self, sizes: &[usize], stream: Stream) {
        let allocator = self.allocator.clone();
        let reads = self.watcher == Watcher::Reads;
        let (addresses, kept) = self
            .pool
            .scope(|| {
                let (mut addresses, mut kept) = (Vec::new(), None);
                for &size in sizes {
                    let block = allocator.alloc_on(SIZES[size], stream).ok();
                    addresses.push(block.as_ref().map(Allocation::address));
                    if kept.is_none() {
                        kept = block;
                    }
                    if reads {
                        allocator.memory_stats();
                    }
                }
                (addresses, kept)
            })
            .unwrap();
        self.addresses.extend(addresses);
        self.live.extend(kept);
    }

    fn finish(self) -> Outcome {
        let mut segments = self.allocator.memory_segments();
        for segment in &mut segments {
            segment.frames = Frames::None;
            // Ids are counted over the whole process.
            segment.segment_pool_id.1 = segment.segment_pool_id.1.min(1);
            for block in &mut segment.blocks {
                block.frames = Frames::None;
            }
        }
        let outcome = Outcome {
            addresses: self.addresses,
            stats: self.allocator.memory_stats(),
            segments,
            scopes: format!("{:?}", self.allocator.scopes()),
        };
        self.allocator.verify().unwrap();
        self.device.release_all();
        drop((self.live, self.pool, self.allocator));
        self.device.assert_clean();
        outcome
    }
}

fn outcome(options: &str, ops: &[Op], watcher: Watcher) -> Outcome {
    let mut run = Run::new(options, watcher);
    let scope = run.allocator.scope("part").with_budget(100 << 20);
    let mut guards = Vec::new();
    for op in ops {
        run.step(op, &mut guards, &scope);
    }
    drop((guards, scope));
    run.finish()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(96),
        max_shrink_iters: 4000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn reading_changes_nothing(
        options in prop::sample::select(vec![
            "",
            "expandable_segments:True",
            "max_split_size_mb:20",
            "roundup_power2_divisions:4",
            "garbage_collection_threshold:0.6,per_process_memory_fraction:0.75",
            "borrow_across_streams:True",
        ]),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let unobserved = outcome(options, &ops, Watcher::Nobody);
        prop_assert_eq!(&unobserved, &outcome(options, &ops, Watcher::Reads));
        prop_assert_eq!(&unobserved, &outcome(options, &ops, Watcher::History));
        prop_assert_eq!(&unobserved, &outcome(options, &ops, Watcher::General));
    }
}
