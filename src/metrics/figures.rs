//! What is measured.

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use super::histogram::Histogram;
use crate::Allocator;
use crate::observe::history::{TraceAction, TraceEntry};
use crate::observe::snapshot::{BlockInfo, BlockState, PoolId, PoolKind, SegmentInfo};
use crate::stats::MemoryStats;

/// One allocator's figures. Statistics and blocks are read one after the other, so that a busy allocator's may differ
/// by a few requests.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// Device ordinal.
    pub device: u32,
    /// The device's name.
    pub device_name: String,
    /// The device's memory in bytes.
    pub total_memory: u64,
    /// Bytes that the allocator may reserve: the cap, or the device's memory.
    pub allowed_memory: u64,
    /// Every statistic.
    pub stats: MemoryStats,
    /// Blocks of the small and the large pools, private ones included.
    pub pools: [PoolFigures; 2],
    /// The private pools.
    pub private: Vec<PrivatePool>,
}

/// The blocks of all pools of one kind.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PoolFigures {
    /// Small or large.
    pub kind: PoolKind,
    /// Cached blocks.
    pub free: Blocks,
    /// Blocks in clients' hands, or waiting for another stream.
    pub live: Blocks,
}

/// Some blocks.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Blocks {
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the largest.
    pub largest: u64,
    /// By size in bytes.
    pub by_size: Histogram,
    /// By seconds since they were allocated (or freed); of those that the history knows. `None` without
    /// [`Figures::with_ages`] or without a history.
    pub by_age: Option<Histogram>,
}

/// What one private pool holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrivatePool {
    /// Which one.
    pub id: PoolId,
    /// Bytes held from the driver.
    pub reserved: u64,
    /// Bytes in clients' hands.
    pub allocated: u64,
}

impl Figures {
    /// Reads an allocator without its history, in time that grows with the number of blocks. Allocations of other
    /// threads wait while the statistics, and while their stream's blocks, are read.
    pub fn of(allocator: &Allocator) -> Self {
        Self::read(allocator, None)
    }

    /// The same with the ages of blocks, from the history ([`Allocator::record_memory_history`]). The history is
    /// copied meanwhile, which takes time in proportion to its length.
    pub fn with_ages(allocator: &Allocator) -> Self {
        let trace = allocator.core().history(false);
        Self::read(allocator, (!trace.is_empty()).then(|| Ages::new(&trace)).as_ref())
    }

    fn read(allocator: &Allocator, ages: Option<&Ages>) -> Self {
        let properties = allocator.device().properties();
        let segments = allocator.memory_segments();
        let allowed = allocator.get_per_process_memory_fraction() * properties.total_memory as f64;
        Figures {
            device: properties.ordinal,
            device_name: properties.name.clone(),
            total_memory: properties.total_memory,
            allowed_memory: allowed.round() as u64,
            stats: allocator.memory_stats(),
            pools: [PoolKind::Small, PoolKind::Large].map(|kind| PoolFigures::new(kind, &segments, ages)),
            private: private_pools(&segments),
        }
    }

    /// The part of the cached bytes that is not in the largest cached block: 0 (one piece) to 1 (dust).
    pub fn fragmentation(&self) -> f64 {
        let free: u64 = self.pools.iter().map(|p| p.free.bytes).sum();
        let largest = self.pools.iter().map(|p| p.free.largest).max().unwrap_or(0);
        part(free - largest, free)
    }

    /// The part of the reserved bytes that is active: 0 to 1; 1 where nothing is reserved.
    pub fn utilisation(&self) -> f64 {
        let live: u64 = self.pools.iter().map(|p| p.live.bytes).sum();
        let free: u64 = self.pools.iter().map(|p| p.free.bytes).sum();
        if live + free == 0 { 1.0 } else { part(live, live + free) }
    }
}

impl PoolFigures {
    fn new(kind: PoolKind, segments: &[SegmentInfo], ages: Option<&Ages>) -> Self {
        let mut pool =
            PoolFigures { kind, free: Blocks::new(ages.is_some()), live: Blocks::new(ages.is_some()) };
        for block in segments.iter().filter(|s| s.segment_type == kind).flat_map(|s| &s.blocks) {
            let free = block.state == BlockState::Inactive;
            let age = ages.and_then(|ages| if free { ages.of_free(block) } else { ages.of_live(block) });
            if free { &mut pool.free } else { &mut pool.live }.add(block.size, age);
        }
        pool
    }

    /// The part of the pool's cached bytes that is not in its largest cached block: 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        part(self.free.bytes - self.free.largest, self.free.bytes)
    }
}

impl Blocks {
    fn new(ages: bool) -> Self {
        let by_age = ages.then(Histogram::of_ages);
        Blocks { bytes: 0, largest: 0, by_size: Histogram::of_sizes(), by_age }
    }

    fn add(&mut self, size: u64, age: Option<f64>) {
        self.bytes += size;
        self.largest = self.largest.max(size);
        self.by_size.add(size as f64);
        if let (Some(histogram), Some(age)) = (&mut self.by_age, age) {
            histogram.add(age);
        }
    }
}

fn part(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

fn private_pools(segments: &[SegmentInfo]) -> Vec<PrivatePool> {
    let mut pools = BTreeMap::new();
    for segment in segments.iter().filter(|s| s.segment_pool_id != PoolId::DEFAULT) {
        let id = segment.segment_pool_id;
        let pool = pools.entry(id).or_insert(PrivatePool { id, reserved: 0, allocated: 0 });
        pool.reserved += segment.total_size;
        pool.allocated += segment.allocated_size;
    }
    pools.into_values().collect()
}

/// When blocks came and went, by address, from the history.
struct Ages {
    now_us: u64,
    allocated: HashMap<u64, u64>,
    freed: BTreeMap<u64, u64>,
}

impl Ages {
    fn new(trace: &[TraceEntry]) -> Self {
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
        let mut ages = Ages { now_us, allocated: HashMap::new(), freed: BTreeMap::new() };
        for entry in trace {
            match entry.action {
                TraceAction::Alloc => ages.allocated.insert(entry.addr, entry.time_us),
                TraceAction::FreeCompleted => ages.freed.insert(entry.addr, entry.time_us),
                _ => None,
            };
        }
        ages
    }

    fn since(&self, time_us: u64) -> f64 {
        self.now_us.saturating_sub(time_us) as f64 / 1e6
    }

    fn of_live(&self, block: &BlockInfo) -> Option<f64> {
        self.allocated.get(&block.address).map(|time| self.since(*time))
    }

    /// A free block may have been several: its age is that of the youngest.
    fn of_free(&self, block: &BlockInfo) -> Option<f64> {
        let parts = self.freed.range(block.address..block.address + block.size);
        parts.map(|(_, time)| *time).max().map(|time| self.since(time))
    }
}
