//! The peaks; see [`super::counters`] and [`super::credit`].

use std::sync::atomic::{AtomicU64, Ordering};

use super::counted::{ALL, COUNTERS, Counter, EVERY, Rows};
use super::counters::Counters;
use super::lock::ShardMutex;
use crate::stats::{Stat, StatArray};

/// What all shards' counters have in common: the peaks of the sums.
///
/// While there are several shards, their limits and the credit on its way between them sum up to the peak or less.
/// Aligned so that nothing that every hit reads shares a cache line with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Bank {
    /// Locked while every shard is: only by who settles or reads.
    peak: ShardMutex<Rows>,
    /// Moves with each settlement, while every shard is locked: read under any shard's lock, it is exact.
    generation: AtomicU64,
}

impl Bank {
    /// Tells credit from before a settlement from that after it.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Credit on its way is void from now on.
    fn next_generation(&self) {
        self.generation.store(self.generation() + 1, Ordering::Relaxed);
    }

    /// Moves the peaks that the sums have passed. Every shard is locked by the caller and brought up to date.
    /// `asker` has grown beyond its limit, which is now its value: what that takes comes from the others, as far as
    /// they have it unused; and the asker gets what was on its way.
    pub(crate) fn settle(&self, shards: &mut [&mut Counters], asker: usize) {
        self.next_generation();
        let mut peak = self.peak.lock();
        for row in 0..3 {
            for counter in EVERY {
                settle_one(&mut peak[row][counter as usize], shards, asker, row, counter);
            }
        }
        for shard in shards {
            shard.publish();
        }
    }

    /// From one shard to several: its limits were the peaks. Called before the second shard is added.
    pub(crate) fn leave_sole(&self, only: &mut Counters) {
        only.lower(&only.limits());
        *self.peak.lock() = only.limits();
        only.set_sole(false);
    }

    /// Sets every peak to the current sum.
    pub(crate) fn reset_peak(&self, shards: &mut [&mut Counters]) {
        self.next_generation();
        let mut peak = self.peak.lock();
        *peak = Rows::default();
        for shard in shards.iter_mut() {
            shard.lower(&[[i64::MIN; COUNTERS]; 3]);
            for (peak, limit) in peak.as_flattened_mut().iter_mut().zip(shard.limits().as_flattened()) {
                *peak += limit;
            }
        }
    }

    /// One counter over all shards.
    pub(crate) fn read(&self, shards: &[&Counters], counter: Counter) -> StatArray {
        let peaks = self.peak.lock();
        let one = |row: usize| {
            let peak = match shards {
                [only] if only.sole => only.limit(row, counter),
                _ => peaks[row][counter as usize],
            };
            let rows = if row == ALL { 0..2 } else { row..row + 1 };
            let mut stat = Stat { peak, ..Stat::default() };
            for (current, gained, base) in rows.flat_map(|r| shards.iter().map(move |s| s.read(r, counter))) {
                stat.current += current;
                stat.allocated += gained;
                stat.freed += gained - (current - base);
            }
            stat
        };
        StatArray { all: one(ALL), large_pool: one(1), small_pool: one(0) }
    }
}

fn settle_one(peak: &mut i64, shards: &mut [&mut Counters], asker: usize, row: usize, counter: Counter) {
    let mut beyond = shards.iter().map(|s| s.limit(row, counter)).sum::<i64>() - *peak;
    if beyond < 0 {
        shards[asker].give(row, counter, beyond);
        return;
    }
    let (before, from) = shards.split_at_mut(asker);
    for donor in from.iter_mut().skip(1).chain(before) {
        if beyond == 0 {
            return;
        }
        let amount = beyond.min(donor.unused(row, counter));
        donor.give(row, counter, amount);
        beyond -= amount;
    }
    // Nothing is unused anywhere else, and the asker's limit is its value: this is the sum.
    *peak += beyond;
}
