//! The statistics that a cache hit moves, kept per shard, with exact process-wide peaks.
//!
//! A peak is a property of the sum over all shards. To keep it exact without sharing a cache line on every
//! call, each shard holds *credit*: it may grow up to its `limit` on its own, and the limits of all shards plus
//! the bank's `spare` never exceed the known peak. A shard that needs more takes it from the bank; when the bank
//! is empty, all shards are locked, the sum is taken and the peak moves if the sum passed it.

use parking_lot::Mutex;

use crate::observe::snapshot::PoolKind;
use crate::stats::{Stat, StatArray};

/// How many counters there are per pool kind.
pub(crate) const COUNTERS: usize = 8;

/// What is counted. The order is that of a [`Delta`].
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Counter {
    Allocation,
    AllocatedBytes,
    Active,
    ActiveBytes,
    RequestedBytes,
    InactiveSplit,
    InactiveSplitBytes,
    OversizeAllocation,
}

/// A change of all counters by one operation.
pub(crate) type Delta = [i64; COUNTERS];

/// Row of the counters that sum up both pool kinds.
const ALL: usize = 2;

type Rows = [[i64; COUNTERS]; 3];

fn row(kind: PoolKind) -> usize {
    match kind {
        PoolKind::Small => 0,
        PoolKind::Large => 1,
    }
}

/// The operation would pass the shard's credit; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeedCredit;

/// One shard's counters.
#[derive(Debug)]
pub(crate) struct Counters {
    current: Rows,
    /// How far `current` may go without asking. While this is the only shard, it is the peak itself.
    limit: Rows,
    /// Sums of increases since the last reset.
    gained: [[i64; COUNTERS]; 2],
    /// `current` at that reset.
    base: [[i64; COUNTERS]; 2],
    /// Unused credit above this goes back to the bank.
    keep: Rows,
    /// Whether this is the device's only shard.
    sole: bool,
}

impl Counters {
    pub(crate) fn new(sole: bool) -> Self {
        Counters {
            current: Rows::default(),
            limit: Rows::default(),
            gained: Default::default(),
            base: Default::default(),
            keep: Rows::default(),
            sole,
        }
    }

    pub(crate) fn current(&self, kind: PoolKind, counter: Counter) -> i64 {
        self.current[row(kind)][counter as usize]
    }

    /// Applies a change, or says that credit is missing and changes nothing.
    #[inline]
    pub(crate) fn apply(&mut self, kind: PoolKind, delta: &Delta, bank: &Bank) -> Result<(), NeedCredit> {
        let row = row(kind);
        if !self.fits(row, delta) {
            self.raise(row, delta, bank)?;
        }
        self.add(row, delta);
        if !self.sole && self.has_surplus(row) {
            self.give_back(row, bank);
        }
        Ok(())
    }

    #[inline]
    fn fits(&self, row: usize, delta: &Delta) -> bool {
        let mut over = false;
        for (i, &d) in delta.iter().enumerate() {
            over |= d > 0 && self.current[row][i] + d > self.limit[row][i];
            over |= d > 0 && self.current[ALL][i] + d > self.limit[ALL][i];
        }
        !over
    }

    #[inline]
    fn add(&mut self, row: usize, delta: &Delta) {
        for (i, &d) in delta.iter().enumerate() {
            self.current[row][i] += d;
            self.current[ALL][i] += d;
            self.gained[row][i] += d.max(0);
        }
    }

    #[cold]
    fn raise(&mut self, row: usize, delta: &Delta, bank: &Bank) -> Result<(), NeedCredit> {
        if self.sole {
            for row in [row, ALL] {
                for (i, &d) in delta.iter().enumerate() {
                    self.limit[row][i] = self.limit[row][i].max(self.current[row][i] + d);
                }
            }
            return Ok(());
        }
        let mut bank = bank.state.lock();
        let mut enough = true;
        for row in [row, ALL] {
            for (i, &d) in delta.iter().enumerate() {
                let need = self.current[row][i] + d - self.limit[row][i];
                if d > 0 && need > 0 {
                    let spare = &mut bank.spare[row][i];
                    let take = (need + self.keep[row][i] / 2).min(*spare).max(0);
                    *spare -= take;
                    self.limit[row][i] += take;
                    enough &= take >= need;
                }
            }
        }
        if enough { Ok(()) } else { Err(NeedCredit) }
    }

    #[inline]
    fn has_surplus(&self, row: usize) -> bool {
        let i = Counter::AllocatedBytes as usize;
        // A lifted limit is no credit to give back: the bank settles anew right after.
        if self.limit[ALL][i] == i64::MAX {
            return false;
        }
        self.limit[row][i] - self.current[row][i] > self.keep[row][i]
            || self.limit[ALL][i] - self.current[ALL][i] > self.keep[ALL][i]
    }

    #[cold]
    fn give_back(&mut self, row: usize, bank: &Bank) {
        let mut bank = bank.state.lock();
        for row in [row, ALL] {
            for i in 0..COUNTERS {
                let surplus = self.limit[row][i] - self.current[row][i] - self.keep[row][i] / 2;
                if surplus > 0 {
                    self.limit[row][i] -= surplus;
                    bank.spare[row][i] += surplus;
                }
            }
        }
    }

    /// Lets the next operation pass; only while every shard is locked, and followed by [`Bank::settle`].
    pub(crate) fn lift(&mut self) {
        self.limit = [[i64::MAX; COUNTERS]; 3];
    }

    fn reset_accumulated(&mut self) {
        self.gained = Default::default();
        self.base = [self.current[0], self.current[1]];
    }

    fn set_sole(&mut self, sole: bool) {
        self.sole = sole;
    }
}

/// What all shards' counters have in common: the peaks, and the credit that no shard holds.
#[derive(Debug, Default)]
pub(crate) struct Bank {
    state: Mutex<BankState>,
}

#[derive(Debug, Default)]
struct BankState {
    peak: Rows,
    spare: Rows,
}

impl Bank {
    /// Takes the sums, moves the peaks they passed, and calls all credit in. Every shard is locked by the caller.
    pub(crate) fn settle(&self, shards: &mut [&mut Counters]) {
        let mut bank = self.state.lock();
        let count = shards.len() as i64;
        if let [only] = shards {
            for row in 0..3 {
                for i in 0..COUNTERS {
                    let known = if only.sole { only.limit[row][i] } else { bank.peak[row][i] };
                    let known = if known == i64::MAX { bank.peak[row][i] } else { known };
                    let peak = known.max(only.current[row][i]);
                    bank.peak[row][i] = peak;
                    only.limit[row][i] = peak;
                }
            }
            return;
        }
        for row in 0..3 {
            for i in 0..COUNTERS {
                let sum: i64 = shards.iter().map(|s| s.current[row][i]).sum();
                let peak = bank.peak[row][i].max(sum);
                bank.peak[row][i] = peak;
                bank.spare[row][i] = peak - sum;
                let keep = (peak / (2 * count.max(1))).max(2);
                for shard in shards.iter_mut() {
                    shard.limit[row][i] = shard.current[row][i];
                    shard.keep[row][i] = keep;
                }
            }
        }
    }

    /// From one shard to several: its limits were the peaks. Called before the second shard is added.
    pub(crate) fn leave_sole(&self, only: &mut Counters) {
        self.settle(&mut [only]);
        only.set_sole(false);
    }

    /// Sets every peak to the current sum.
    pub(crate) fn reset_peak(&self, shards: &mut [&mut Counters]) {
        {
            let mut bank = self.state.lock();
            bank.peak = Rows::default();
            for shard in shards.iter_mut() {
                shard.limit = shard.current;
            }
            for row in 0..3 {
                for i in 0..COUNTERS {
                    bank.peak[row][i] = shards.iter().map(|s| s.current[row][i]).sum();
                }
            }
        }
        self.settle(shards);
    }

    /// Clears the accumulated sums.
    pub(crate) fn reset_accumulated(&self, shards: &mut [&mut Counters]) {
        for shard in shards {
            shard.reset_accumulated();
        }
    }

    /// One counter over all shards.
    pub(crate) fn read(&self, shards: &[&Counters], counter: Counter) -> StatArray {
        let bank = self.state.lock();
        let i = counter as usize;
        let one = |row: usize| {
            let peak = match shards {
                [only] if only.sole => only.limit[row][i],
                _ => bank.peak[row][i],
            };
            let rows = if row == ALL { 0..2 } else { row..row + 1 };
            let sum = |f: &dyn Fn(&Counters, usize) -> i64| -> i64 {
                rows.clone().map(|r| shards.iter().map(|s| f(s, r)).sum::<i64>()).sum()
            };
            let current = sum(&|s, r| s.current[r][i]);
            let allocated = sum(&|s, r| s.gained[r][i]);
            let base = sum(&|s, r| s.base[r][i]);
            Stat { current, peak, allocated, freed: allocated - (current - base) }
        };
        StatArray { all: one(ALL), large_pool: one(1), small_pool: one(0) }
    }
}
