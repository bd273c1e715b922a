//! The public handle of one device's allocator.
#![allow(clippy::todo, unused_variables, missing_docs, clippy::missing_errors_doc)] // skeleton

use std::sync::Arc;

use crate::config::Config;
use crate::device::{Device, MemInfo, Stream};
use crate::error::Result;
use crate::observe::snapshot::{PoolId, Snapshot};
use crate::stats::MemoryStats;

/// One device's allocator: a cheap handle, `Clone + Send + Sync`.
#[derive(Clone, Debug)]
pub struct Allocator {}

/// Bytes of device memory that free themselves on drop.
#[derive(Debug)]
pub struct Allocation {}

impl Allocation {
    pub fn address(&self) -> u64 { todo!() }
    /// Requested bytes.
    pub fn len(&self) -> usize { todo!() }
    pub fn is_empty(&self) -> bool { self.len() == 0 }
    pub fn stream(&self) -> Stream { todo!() }
    /// The block also serves work on `stream`.
    pub fn record_stream(&self, stream: Stream) -> Result<()> { todo!() }
}

/// What `empty_cache` did, in bytes and segments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EmptyCacheReport {
    pub freed_bytes: u64,
    pub freed_segments: u64,
    /// Still reserved.
    pub kept_bytes: u64,
    /// Segments (or mapped runs) that stay, each with the reason.
    pub kept: Vec<KeptSegment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptSegment {
    pub address: u64,
    pub bytes: u64,
    pub live_bytes: u64,
    pub pending_bytes: u64,
    pub reason: KeptReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeptReason { LiveBlock, PendingEvent, PrivatePool, PartialPage, PoolActive }

/// What a request would do, without doing it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forecast {
    /// Served from the cache.
    Hit { block_size: u64 },
    /// Needs this much more from the driver, and that fits.
    Grow { segment_size: u64 },
    /// Needs cached memory to be released first.
    Release { segment_size: u64 },
    /// Fails.
    OutOfMemory { segment_size: u64 },
}

#[derive(Debug, Default)]
pub struct Builder {}
impl Builder {
    pub fn device(self, device: Arc<dyn Device>) -> Self { todo!() }
    pub fn config(self, config: Config) -> Self { todo!() }
    pub fn build(self) -> Result<Allocator> { todo!() }
}

/// What the history keeps.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HistoryOptions { pub max_entries: usize }

impl Allocator {
    pub fn builder() -> Builder { todo!() }
    pub fn cuda(ordinal: u32) -> Result<Self> { todo!() }
    pub fn simulated(device: crate::device::sim::SimDevice) -> Self { todo!() }
    pub fn cuda_or_simulated(ordinal: u32) -> Self { todo!() }
    pub fn device(&self) -> &Arc<dyn Device> { todo!() }

    pub fn alloc(&self, bytes: usize) -> Result<Allocation> { todo!() }
    pub fn alloc_on(&self, bytes: usize, stream: Stream) -> Result<Allocation> { todo!() }
    pub fn alloc_raw(&self, bytes: usize, stream: Stream) -> Result<u64> { todo!() }
    pub fn free_raw(&self, address: u64) -> Result<()> { todo!() }
    pub fn record_stream_raw(&self, address: u64, stream: Stream) -> Result<()> { todo!() }

    pub fn empty_cache(&self) -> Result<EmptyCacheReport> { todo!() }
    pub fn would_allocate(&self, bytes: usize, stream: Stream) -> Result<Forecast> { todo!() }
    /// Grows the cache so that `bytes` can be served without the driver.
    pub fn reserve(&self, bytes: usize, stream: Stream) -> Result<()> { todo!() }

    pub fn memory_allocated(&self) -> u64 { todo!() }
    pub fn max_memory_allocated(&self) -> u64 { todo!() }
    pub fn memory_reserved(&self) -> u64 { todo!() }
    pub fn max_memory_reserved(&self) -> u64 { todo!() }
    pub fn memory_stats(&self) -> MemoryStats { todo!() }
    pub fn memory_summary(&self, abbreviated: bool) -> String { todo!() }
    pub fn memory_snapshot(&self) -> Snapshot { todo!() }
    pub fn mem_get_info(&self) -> Result<MemInfo> { todo!() }
    pub fn reset_peak_memory_stats(&self) { todo!() }
    pub fn reset_accumulated_memory_stats(&self) { todo!() }
    pub fn set_per_process_memory_fraction(&self, fraction: f64) -> Result<()> { todo!() }
    pub fn get_per_process_memory_fraction(&self) -> f64 { todo!() }
    pub fn config(&self) -> Config { todo!() }
    /// Changes options at run time, by PyTorch's text [spec 15.1].
    pub fn set_allocator_settings(&self, text: &str) -> Result<()> { todo!() }
    /// Checks that live + cached + pending = reserved and every other invariant; the error lists what is wrong.
    pub fn verify(&self) -> std::result::Result<(), String> { todo!() }

    /// `None` stops recording and clears.
    pub fn record_memory_history(&self, options: Option<HistoryOptions>) { todo!() }

    /// Private pools [spec 14].
    pub fn create_pool(&self) -> MemPool { todo!() }
    /// For the capture machinery: routes requests for which `accepts(stream)` holds into the pool.
    pub fn begin_allocate_to_pool(&self, id: PoolId, accepts: Box<dyn Fn(Stream) -> bool + Send + Sync>) -> Result<()> { todo!() }
    pub fn end_allocate_to_pool(&self, id: PoolId) -> Result<()> { todo!() }
    pub fn release_pool(&self, id: PoolId) -> Result<()> { todo!() }
}

#[derive(Debug)]
pub struct MemPool {}
impl MemPool {
    pub fn id(&self) -> PoolId { todo!() }
    /// Requests of the calling thread go to the pool while `f` runs.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> Result<R> { todo!() }
    pub fn set_use_on_oom(&self, on: bool) { todo!() }
    pub fn set_no_split(&self) { todo!() }
}
