//! Reading and resetting the statistics, and the history's switch.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::Core;
use super::counted::Counter;
use super::counters::Counters;
use super::trace::Ring;
use crate::observe::history::TraceEntry;
use crate::stats::MemoryStats;

impl Core {
    /// All statistics at one moment: every shard is locked while they are read.
    pub(crate) fn stats(&self) -> MemoryStats {
        let ledger = self.ledger.lock();
        let mut stats = MemoryStats {
            segment: ledger.segment,
            reserved_bytes: ledger.reserved_bytes,
            oversize_segments: ledger.oversize_segments,
            max_split_size: self.max_split_at_start,
            num_alloc_retries: ledger.num_alloc_retries,
            num_ooms: ledger.num_ooms,
            num_oom_rejections: ledger.num_oom_rejections,
            num_sync_all_streams: ledger.num_sync_all_streams,
            num_device_alloc: ledger.num_device_alloc,
            num_device_free: ledger.num_device_free,
            ..MemoryStats::default()
        };
        self.shards.with_all(|states| {
            let counters: SmallVec<[&Counters; 16]> = states.iter().map(|s| &s.counters).collect();
            let read = |counter| self.shared.bank.read(&counters, counter);
            stats.allocation = read(Counter::Allocation);
            stats.allocated_bytes = read(Counter::AllocatedBytes);
            stats.active = read(Counter::Active);
            stats.active_bytes = read(Counter::ActiveBytes);
            stats.requested_bytes = read(Counter::RequestedBytes);
            stats.inactive_split = read(Counter::InactiveSplit);
            stats.inactive_split_bytes = read(Counter::InactiveSplitBytes);
            stats.oversize_allocations = read(Counter::OversizeAllocation).all;
        });
        stats
    }

    /// (current, peak) of `reserved_bytes.all`.
    pub(crate) fn reserved(&self) -> (u64, u64) {
        let all = self.ledger.lock().reserved_bytes.all;
        (all.current as u64, all.peak as u64)
    }

    pub(crate) fn reset_peak(&self) {
        let mut ledger = self.ledger.lock();
        ledger.reset_peak();
        self.with_counters(|counters| self.shared.bank.reset_peak(counters));
        self.shared.scopes.reset_peak();
    }

    pub(crate) fn reset_accumulated(&self) {
        let mut ledger = self.ledger.lock();
        ledger.reset_accumulated();
        self.with_counters(|counters| counters.iter_mut().for_each(|one| one.reset_accumulated()));
        self.shared.scopes.reset_accumulated();
    }

    fn with_counters(&self, f: impl FnOnce(&mut [&mut Counters])) {
        self.shards.with_all(|states| {
            let mut counters: SmallVec<[&mut Counters; 16]> =
                states.iter_mut().map(|s| &mut s.counters).collect();
            f(&mut counters);
        });
    }

    /// Starts a history of the given length (at least 1), or stops and clears it.
    pub(crate) fn record_history(&self, capacity: Option<usize>) {
        let capacity = capacity.map_or(0, |c| c.max(1));
        self.history_capacity.store(capacity as u64, Ordering::Release);
        let fresh = || (capacity > 0).then(|| Ring::new(capacity, self.shared.sequence.clone()));
        *self.history.lock() = fresh();
        self.shards.with_all(|states| {
            for state in states {
                state.ring = fresh();
                state.update_modes();
            }
        });
    }

    /// The history, oldest first; `drain` empties it.
    pub(crate) fn history(&self, drain: bool) -> Vec<TraceEntry> {
        let mut entries = Vec::new();
        let mut own = self.history.lock();
        self.shards.with_all(|states| {
            let rings = states.iter_mut().filter_map(|s| Some((s.stream.raw(), s.ring.as_mut()?)));
            for (stream, ring) in rings.chain(own.as_mut().map(|ring| (0, ring))) {
                ring.read(stream, &mut entries);
                if drain {
                    ring.clear();
                }
            }
        });
        entries.sort_by_key(|(sequence, _)| *sequence);
        let capacity = self.history_capacity.load(Ordering::Acquire) as usize;
        let excess = entries.len().saturating_sub(capacity);
        entries.drain(..excess);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }
}
