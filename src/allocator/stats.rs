//! Figures: statistics, summary, snapshot, history.

use super::Allocator;
use crate::engine::set_metadata;
use crate::observe::history::TraceEntry;
use crate::observe::snapshot::{PoolId, SegmentInfo, Snapshot};
use crate::stats::MemoryStats;
use crate::stats::summary::memory_summary;

/// What the history keeps [spec 12.2].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryOptions {
    /// How many entries; at least 1. The oldest go first.
    pub max_entries: usize,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        HistoryOptions { max_entries: 1 << 20 }
    }
}

impl HistoryOptions {
    /// A history of so many entries.
    pub fn with_max_entries(max_entries: usize) -> Self {
        HistoryOptions { max_entries }
    }
}

impl Allocator {
    /// Bytes of live blocks, rounded sizes included [spec 9.4].
    pub fn memory_allocated(&self) -> u64 {
        self.memory_stats().allocated_bytes.all.current as u64
    }

    /// Peak of [`memory_allocated`](Allocator::memory_allocated) since the last reset. Exact, also under threads.
    pub fn max_memory_allocated(&self) -> u64 {
        self.memory_stats().allocated_bytes.all.peak as u64
    }

    /// Bytes held from the driver: live, cached and pending.
    pub fn memory_reserved(&self) -> u64 {
        self.core().reserved().0
    }

    /// Peak of [`memory_reserved`](Allocator::memory_reserved) since the last reset.
    pub fn max_memory_reserved(&self) -> u64 {
        self.core().reserved().1
    }

    /// All 122 statistics at one moment [spec 9].
    pub fn memory_stats(&self) -> MemoryStats {
        self.core().stats()
    }

    /// PyTorch's table of the statistics; `abbreviated` leaves out the rows per pool [spec 10].
    pub fn memory_summary(&self, abbreviated: bool) -> String {
        memory_summary(&self.memory_stats(), self.core().properties.ordinal, abbreviated)
    }

    /// Every segment and block, and the history [spec 12.1, 12.4].
    pub fn memory_snapshot(&self) -> Snapshot {
        self.core().snapshot(true)
    }

    /// Every segment and block by ascending address, without the history.
    pub fn memory_segments(&self) -> Vec<SegmentInfo> {
        self.core().segments()
    }

    /// The segments of one pool by ascending address (`memory_snapshot(mempool_id)`): empty if there is no such pool
    /// [spec 12.1]. Every mapped run of an expandable segment is there; PyTorch misses those behind a gap at the start
    /// of the reservation [spec 23.12].
    pub fn memory_snapshot_of(&self, pool: PoolId) -> Vec<SegmentInfo> {
        let mut segments = self.core().segments();
        segments.retain(|segment| segment.segment_pool_id == pool);
        segments
    }

    /// Sets every peak to the value now [spec 9.1].
    pub fn reset_peak_memory_stats(&self) {
        self.core().reset_peak();
    }

    /// Clears the accumulated sums and the plain counters [spec 9.1].
    pub fn reset_accumulated_memory_stats(&self) {
        self.core().reset_accumulated();
    }

    /// Starts the history afresh, or stops and clears it (`_record_memory_history`) [spec 12.2].
    pub fn record_memory_history(&self, options: Option<HistoryOptions>) {
        self.core().record_history(options.map(|o| o.max_entries));
    }

    /// Takes the entries recorded so far out of the history, oldest first.
    pub fn take_history(&self) -> Vec<TraceEntry> {
        self.core().history(true)
    }

    /// A text that later history entries of the calling thread carry (`_set_memory_metadata`); empty for none.
    pub fn set_memory_metadata(text: &str) {
        set_metadata(Some(text));
    }
}
