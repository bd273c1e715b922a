//! A slow, obvious model of PyTorch's caching allocator, written from the specification alone.
//!
//! One map of blocks by address; everything else (free lists, neighbours, ages) is looked up in it anew each time.
//! `mirror: true` reproduces PyTorch's defects. `mirror: false` is gpucache's default behaviour; the places where
//! the two differ are the methods in `deviations.rs`, and nothing else.
//!
//! Time: an event recorded on a stream that is not held is complete at the next poll; one recorded on a held
//! stream completes at its release, or when the allocator blocks on it (then every held stream finishes).

pub(crate) mod deviations;
pub(crate) mod device;
pub(crate) mod expandable;
pub(crate) mod free;
pub(crate) mod malloc;
pub(crate) mod ops;
pub(crate) mod pools;
pub(crate) mod real;
pub(crate) mod recording;
pub(crate) mod release;
pub(crate) mod rules;
pub(crate) mod stats;
pub(crate) mod subject;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use device::{AddressPolicy, Device};
use pools::{Filter, PrivatePool};
use rules::{Conf, Kind, UNLIMITED};
use stats::Stats;

pub(crate) type Stream = u64;
/// `(0, 0)` is the default pool [spec 14.1].
pub(crate) type PoolId = (u64, u64);
pub(crate) const DEFAULT_POOL: PoolId = (0, 0);
/// Pool and small or large: what the specification calls a block pool.
pub(crate) type BlockPool = (PoolId, Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    OutOfMemory,
    InvalidPointer,
    /// A private pool's state does not allow the call [spec 14.2].
    Pool,
    /// Only with PyTorch's defects: a call that the driver refuses [spec 23.14].
    Driver,
}

#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) stream: Stream,
    pub(crate) pool: BlockPool,
    /// Start of its segment.
    pub(crate) segment: u64,
    pub(crate) mapped: bool,
    pub(crate) allocated: bool,
    /// Events that its free waits for.
    pub(crate) events: usize,
    /// Streams recorded on it, its own excluded.
    pub(crate) uses: BTreeSet<Stream>,
    /// Those of them that were recorded while a pool was active.
    pub(crate) uses_in_pool: BTreeSet<Stream>,
    /// Search counter of its pool when it became free.
    pub(crate) gc_base: u64,
}

impl Block {
    /// Neither in use nor waiting: may be merged.
    pub(crate) fn idle(&self) -> bool {
        !self.allocated && self.events == 0 && self.uses.is_empty()
    }

    pub(crate) fn free(&self) -> bool {
        self.idle() && self.mapped
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// Page size, in an expandable reservation.
    pub(crate) page: Option<u64>,
}

/// An event in a stream's queue.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) block: u64,
    pub(crate) done: bool,
}

/// What the trace of PyTorch's history shows for segments and failures [spec 12.3].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    SegmentAlloc { address: u64, bytes: u64, stream: Stream },
    SegmentFree { address: u64, bytes: u64, stream: Stream },
    SegmentMap { address: u64, bytes: u64, stream: Stream },
    SegmentUnmap { address: u64, bytes: u64, stream: Stream },
    Oom { rounded: u64, stream: Stream },
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) device: Device,
    pub(crate) conf: Conf,
    pub(crate) stats: Stats,
    pub(crate) history: Vec<Event>,
    /// In order of address: a block's neighbours in the map are its neighbours in the segment.
    pub(crate) blocks: BTreeMap<u64, Block>,
    pub(crate) segments: BTreeMap<u64, Segment>,
    mirror: bool,
    allowed: Option<u64>,
    total_reserved: u64,
    search_counters: BTreeMap<BlockPool, u64>,
    queues: BTreeMap<Stream, VecDeque<Pending>>,
    held: BTreeSet<Stream>,
    /// Blocks freed with recorded streams while a pool was active.
    deferred: Vec<u64>,
    private: BTreeMap<PoolId, PrivatePool>,
    /// Pools under way, oldest first.
    active: Vec<(PoolId, Filter)>,
    use_on_oom: BTreeSet<PoolId>,
    no_split: BTreeSet<PoolId>,
}

impl Model {
    pub(crate) fn new(total_memory: u64, conf: Conf, mirror: bool) -> Self {
        Model::with_policy(total_memory, conf, mirror, AddressPolicy::FirstFit)
    }

    pub(crate) fn with_policy(total_memory: u64, conf: Conf, mirror: bool, policy: AddressPolicy) -> Self {
        // Frozen here: later changes of the option do not show [spec 9.2].
        let max_split_size = if conf.max_split == UNLIMITED { -1 } else { conf.max_split as i64 };
        let mut model = Model {
            device: Device::new(total_memory, policy),
            stats: Stats::new(max_split_size),
            history: Vec::new(),
            blocks: BTreeMap::new(),
            segments: BTreeMap::new(),
            mirror,
            allowed: None,
            total_reserved: 0,
            search_counters: BTreeMap::new(),
            queues: BTreeMap::new(),
            held: BTreeSet::new(),
            deferred: Vec::new(),
            private: BTreeMap::new(),
            active: Vec::new(),
            use_on_oom: BTreeSet::new(),
            no_split: BTreeSet::new(),
            conf,
        };
        model.set_fraction(model.conf.fraction);
        model
    }

    /// [spec 8.1]
    pub(crate) fn set_fraction(&mut self, fraction: f64) {
        self.allowed = (fraction < 1.0).then_some((fraction * self.device.total as f64) as u64);
    }

    /// [spec 15.1]
    pub(crate) fn set_settings(&mut self, text: &str) {
        self.conf.apply(text);
    }

    pub(crate) fn reset_peak(&mut self) {
        self.stats.reset_peak();
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.stats.reset_accumulated();
    }

    /// Events recorded on `stream` from now on stay incomplete.
    pub(crate) fn hold(&mut self, stream: Stream) {
        self.held.insert(stream);
    }

    pub(crate) fn release(&mut self, stream: Stream) {
        self.held.remove(&stream);
        for pending in self.queues.entry(stream).or_default() {
            pending.done = true;
        }
    }

    pub(crate) fn release_every_stream(&mut self) {
        self.held.clear();
        for pending in self.queues.values_mut().flatten() {
            pending.done = true;
        }
    }

    pub(crate) fn block(&self, address: u64) -> &Block {
        &self.blocks[&address]
    }

    fn block_mut(&mut self, address: u64) -> &mut Block {
        self.blocks.get_mut(&address).expect("a block starts here")
    }

    /// The neighbour before, in the same segment.
    fn prev(&self, address: u64) -> Option<u64> {
        let segment = self.block(address).segment;
        let (&prev, block) = self.blocks.range(..address).next_back()?;
        (block.segment == segment).then_some(prev)
    }

    /// The neighbour after, in the same segment.
    fn next(&self, address: u64) -> Option<u64> {
        let segment = self.block(address).segment;
        let (&next, block) = self.blocks.range(address + 1..).next()?;
        (block.segment == segment).then_some(next)
    }

    fn is_split(&self, address: u64) -> bool {
        self.prev(address).is_some() || self.next(address).is_some()
    }

    fn is_expandable(&self, address: u64) -> bool {
        self.segments[&self.block(address).segment].page.is_some()
    }

    /// The free set of a pool in its order: stream, size, address [spec 3.1].
    fn free_set(&self, pool: BlockPool) -> Vec<(Stream, u64, u64)> {
        let mut set: Vec<_> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.pool == pool && block.free())
            .map(|(&address, block)| (block.stream, block.size, address))
            .collect();
        set.sort_unstable();
        set
    }

    fn search_counter(&self, pool: BlockPool) -> u64 {
        self.search_counters.get(&pool).copied().unwrap_or(0)
    }

    fn gc_armed(&self) -> bool {
        self.allowed.is_some() && self.conf.gc_threshold > 0.0
    }

    fn exceeds_cap(&self, bytes: u64) -> bool {
        self.allowed.is_some_and(|allowed| self.total_reserved + bytes > allowed)
    }
}
