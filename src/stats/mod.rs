//! The 122 statistics of device memory [spec 9] and the 28 of pinned memory: their types and names. How they are kept is the engine's business.

mod host;
mod keys;
pub mod summary;

pub use host::{DurationStat, HostMemoryStats};
pub use keys::Nested;

/// One statistic [spec 9.1].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// The value now.
    pub current: i64,
    /// The highest value since the last `reset_peak_memory_stats`.
    pub peak: i64,
    /// Sum of all increases since the last `reset_accumulated_memory_stats`.
    pub allocated: i64,
    /// Sum of all decreases since then.
    pub freed: i64,
}

/// One statistic by pool kind. `all` has a peak of its own; its other fields are the sums of the two pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatArray {
    /// Both kinds of pool.
    pub all: Stat,
    /// Pools of large blocks, private ones included.
    pub large_pool: Stat,
    /// Pools of small blocks, private ones included.
    pub small_pool: Stat,
}

/// All statistics of one device's allocator at one moment. Byte counts are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Client allocations.
    pub allocation: StatArray,
    /// Ordinary segments obtained from the driver.
    pub segment: StatArray,
    /// Blocks allocated or waiting for events.
    pub active: StatArray,
    /// Free blocks that share a segment with another block.
    pub inactive_split: StatArray,
    /// Sizes of allocated blocks (rounded).
    pub allocated_bytes: StatArray,
    /// Bytes obtained from the driver.
    pub reserved_bytes: StatArray,
    /// Sizes of active blocks.
    pub active_bytes: StatArray,
    /// Sizes of inactive split blocks.
    pub inactive_split_bytes: StatArray,
    /// Requested (unrounded) sizes of active blocks.
    pub requested_bytes: StatArray,
    /// Live blocks of `max_split_size` or more.
    pub oversize_allocations: Stat,
    /// Live ordinary segments of `max_split_size` or more.
    pub oversize_segments: Stat,
    /// `max_split_size` when the allocator was made; -1: unlimited.
    pub max_split_size: i64,
    /// Segment attempts made after everything cached was released.
    pub num_alloc_retries: i64,
    /// Out-of-memory errors.
    pub num_ooms: i64,
    /// Waits for all pending events.
    pub num_sync_all_streams: i64,
    /// Driver allocations and mapped ranges.
    pub num_device_alloc: i64,
    /// Driver frees and unmapped ranges.
    pub num_device_free: i64,
    /// Requests refused by `throw_on_cudamalloc_oom`. PyTorch has it from 2.12 on, so it is not one of the 122.
    pub num_oom_rejections: i64,
}

impl MemoryStats {
    /// Bytes in clients' hands.
    pub fn memory_allocated(&self) -> u64 {
        bytes(self.allocated_bytes.all.current)
    }

    /// Their peak.
    pub fn max_memory_allocated(&self) -> u64 {
        bytes(self.allocated_bytes.all.peak)
    }

    /// Bytes obtained from the driver.
    pub fn memory_reserved(&self) -> u64 {
        bytes(self.reserved_bytes.all.current)
    }

    /// Their peak.
    pub fn max_memory_reserved(&self) -> u64 {
        bytes(self.reserved_bytes.all.peak)
    }
}

/// A byte count that is negative only if the bookkeeping is broken, which `verify` reports.
fn bytes(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
