//! The statistics that a cache hit moves, kept per shard, with exact process-wide peaks.
//!
//! A peak is a property of the sum over all shards. To keep it exact without sharing a cache line on every
//! call, each shard holds *credit*: it may grow up to its `limit` on its own, and the limits of all shards plus
//! the bank's `spare` never exceed the known peak. A shard that needs more takes it from the bank; when the bank
//! is empty, all shards are locked, the sum is taken and the peak moves if the sum passed it.

use parking_lot::Mutex;

use crate::observe::snapshot::PoolKind;
use crate::stats::{Stat, StatArray};

/// How many statistics there are per pool kind.
const COUNTERS: usize = 8;

/// What is counted: the statistics that a hit moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

use Counter::{
    Active, ActiveBytes, AllocatedBytes, Allocation, InactiveSplit, InactiveSplitBytes, OversizeAllocation,
    RequestedBytes,
};

/// A limit that no value reaches. A shard's part of a sum can be below 0, and the distance to it must not overflow.
const LIFTED: i64 = i64::MAX / 2;

const EVERY: [Counter; COUNTERS] = [
    Allocation,
    AllocatedBytes,
    Active,
    ActiveBytes,
    RequestedBytes,
    InactiveSplit,
    InactiveSplitBytes,
    OversizeAllocation,
];

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

/// A block and what it does to the split blocks around it [spec 4.6, 5.2].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    /// Block size.
    pub(crate) bytes: i64,
    pub(crate) requested: i64,
    /// Net change of `inactive_split`, and of its bytes.
    pub(crate) split: i64,
    pub(crate) split_bytes: i64,
    /// The block is as large as `max_split_size` or larger.
    pub(crate) oversize: bool,
}

/// One pool kind's running values. `Active` is what is allocated plus what is pending, so that the usual case,
/// nothing pending, moves half as many words.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    allocation: i64,
    allocated_bytes: i64,
    requested_bytes: i64,
    split: i64,
    split_bytes: i64,
    pending: i64,
    pending_bytes: i64,
    oversize: i64,
}

impl Row {
    #[inline]
    fn get(&self, counter: Counter) -> i64 {
        match counter {
            Allocation => self.allocation,
            AllocatedBytes => self.allocated_bytes,
            Active => self.allocation + self.pending,
            ActiveBytes => self.allocated_bytes + self.pending_bytes,
            RequestedBytes => self.requested_bytes,
            InactiveSplit => self.split,
            InactiveSplitBytes => self.split_bytes,
            OversizeAllocation => self.oversize,
        }
    }
}

/// One shard's counters.
#[derive(Debug)]
pub(crate) struct Counters {
    current: [Row; 2],
    /// Sums of increases since the last reset. Every hand-out moves `Active` as it moves `Allocation`, so the
    /// pending fields stay 0 here and the sums of the two are the same.
    gained: [Row; 2],
    /// `current` at that reset.
    base: [Row; 2],
    /// How far a value may go without asking. While this is the only shard, it is the peak itself.
    limit: Rows,
    /// Unused credit above this goes back to the bank.
    keep: Rows,
    /// Whether this is the device's only shard.
    sole: bool,
}

impl Counters {
    pub(crate) fn new(sole: bool) -> Self {
        Counters {
            current: Default::default(),
            gained: Default::default(),
            base: Default::default(),
            limit: Rows::default(),
            keep: Rows::default(),
            sole,
        }
    }

    pub(crate) fn current(&self, kind: PoolKind, counter: Counter) -> i64 {
        self.current[row(kind)].get(counter)
    }

    #[inline]
    fn value(&self, row: usize, counter: Counter) -> i64 {
        if row == ALL {
            self.current[0].get(counter) + self.current[1].get(counter)
        } else {
            self.current[row].get(counter)
        }
    }

    #[inline]
    fn room(&self, row: usize, counter: Counter, more: i64) -> bool {
        self.value(row, counter) + more <= self.limit[row][counter as usize]
            && self.value(ALL, counter) + more <= self.limit[ALL][counter as usize]
    }

    #[inline]
    fn has_pending(&self) -> bool {
        self.current[0].pending | self.current[1].pending != 0
    }

    /// A block is handed out. Changes nothing where credit is missing.
    #[inline]
    pub(crate) fn hand_out(
        &mut self,
        kind: PoolKind,
        change: &Change,
        bank: &Bank,
    ) -> Result<(), NeedCredit> {
        let row = row(kind);
        // With nothing pending, `Active` equals `Allocation`, and its peak is never below the other's.
        let active = (self.sole && !self.has_pending())
            || (self.room(row, Active, 1) && self.room(row, ActiveBytes, change.bytes));
        let fits = active
            & self.room(row, Allocation, 1)
            & self.room(row, AllocatedBytes, change.bytes)
            & self.room(row, RequestedBytes, change.requested)
            & self.split_fits(row, change);
        if !fits || change.oversize {
            let oversize = i64::from(change.oversize);
            let all = [
                1,
                change.bytes,
                1,
                change.bytes,
                change.requested,
                change.split,
                change.split_bytes,
                oversize,
            ];
            self.raise(row, &all, bank)?;
        }
        let (current, gained) = (&mut self.current[row], &mut self.gained[row]);
        current.allocation += 1;
        current.allocated_bytes += change.bytes;
        current.requested_bytes += change.requested;
        current.oversize += i64::from(change.oversize);
        gained.allocation += 1;
        gained.allocated_bytes += change.bytes;
        gained.requested_bytes += change.requested;
        gained.oversize += i64::from(change.oversize);
        self.split(row, change);
        Ok(())
    }

    /// A client gives a block back, which stays active: nothing grows.
    pub(crate) fn request_free(&mut self, kind: PoolKind, change: &Change) {
        let current = &mut self.current[row(kind)];
        current.allocation -= 1;
        current.allocated_bytes -= change.bytes;
        current.oversize -= i64::from(change.oversize);
        current.pending += 1;
        current.pending_bytes += change.bytes;
    }

    /// A pending block becomes free. Changes nothing where credit is missing.
    pub(crate) fn complete_free(
        &mut self,
        kind: PoolKind,
        change: &Change,
        bank: &Bank,
    ) -> Result<(), NeedCredit> {
        let row = row(kind);
        self.make_split_fit(row, change, bank)?;
        let current = &mut self.current[row];
        current.pending -= 1;
        current.pending_bytes -= change.bytes;
        current.requested_bytes -= change.requested;
        self.split(row, change);
        self.return_surplus(row, bank);
        Ok(())
    }

    /// Both at once. Changes nothing where credit is missing.
    #[inline]
    pub(crate) fn free(&mut self, kind: PoolKind, change: &Change, bank: &Bank) -> Result<(), NeedCredit> {
        let row = row(kind);
        self.make_split_fit(row, change, bank)?;
        let current = &mut self.current[row];
        current.allocation -= 1;
        current.allocated_bytes -= change.bytes;
        current.requested_bytes -= change.requested;
        current.oversize -= i64::from(change.oversize);
        self.split(row, change);
        self.return_surplus(row, bank);
        Ok(())
    }

    /// [`free`](Counters::free) for a block whose hand-out is the last thing that happened: every value goes back
    /// to where it was before, so no credit can be missing.
    pub(crate) fn free_unchecked(&mut self, kind: PoolKind, change: &Change) {
        let current = &mut self.current[row(kind)];
        current.allocation -= 1;
        current.allocated_bytes -= change.bytes;
        current.requested_bytes -= change.requested;
        current.oversize -= i64::from(change.oversize);
        self.split(row(kind), change);
    }

    /// A block was freed and handed out again so many times, with `requested` bytes in all, and holds `by` more
    /// requested bytes now. `change` is that of one hand-out. No value passed its highest meanwhile.
    pub(crate) fn repeat(&mut self, kind: PoolKind, change: &Change, pairs: i64, requested: i64, by: i64) {
        let (current, gained) = (&mut self.current[row(kind)], &mut self.gained[row(kind)]);
        current.requested_bytes += by;
        gained.allocation += pairs;
        gained.allocated_bytes += pairs * change.bytes;
        gained.requested_bytes += requested;
        // Up in one half of each pair, down in the other.
        gained.split += pairs * change.split.abs();
        gained.split_bytes += pairs * change.split_bytes.abs();
    }

    #[inline]
    fn split_fits(&self, row: usize, change: &Change) -> bool {
        (change.split <= 0 || self.room(row, InactiveSplit, change.split))
            && (change.split_bytes <= 0 || self.room(row, InactiveSplitBytes, change.split_bytes))
    }

    #[inline]
    fn make_split_fit(&mut self, row: usize, change: &Change, bank: &Bank) -> Result<(), NeedCredit> {
        if self.split_fits(row, change) {
            return Ok(());
        }
        self.raise(row, &[0, 0, 0, 0, 0, change.split, change.split_bytes, 0], bank)
    }

    #[inline]
    fn split(&mut self, row: usize, change: &Change) {
        let (current, gained) = (&mut self.current[row], &mut self.gained[row]);
        current.split += change.split;
        current.split_bytes += change.split_bytes;
        gained.split += change.split.max(0);
        gained.split_bytes += change.split_bytes.max(0);
    }

    /// Makes room for `more` of each counter; the values are still those before.
    #[cold]
    fn raise(&mut self, row: usize, more: &[i64; COUNTERS], bank: &Bank) -> Result<(), NeedCredit> {
        let mut bank = if self.sole { None } else { Some(bank.state.lock()) };
        let mut enough = true;
        for row in [row, ALL] {
            for counter in EVERY {
                let i = counter as usize;
                let need = self.value(row, counter) + more[i] - self.limit[row][i];
                if more[i] <= 0 || need <= 0 {
                    continue;
                }
                let Some(bank) = &mut bank else {
                    self.limit[row][i] += need;
                    continue;
                };
                let spare = &mut bank.spare[row][i];
                let take = (need + self.keep[row][i] / 2).min(*spare).max(0);
                *spare -= take;
                self.limit[row][i] += take;
                enough &= take >= need;
            }
        }
        if enough { Ok(()) } else { Err(NeedCredit) }
    }

    #[inline]
    fn return_surplus(&mut self, row: usize, bank: &Bank) {
        if !self.sole && self.has_surplus(row) {
            self.give_back(row, bank);
        }
    }

    #[inline]
    fn has_surplus(&self, row: usize) -> bool {
        let i = AllocatedBytes as usize;
        // A lifted limit is no credit to give back: the bank settles anew right after.
        if self.limit[ALL][i] == LIFTED {
            return false;
        }
        self.limit[row][i] - self.value(row, AllocatedBytes) > self.keep[row][i]
            || self.limit[ALL][i] - self.value(ALL, AllocatedBytes) > self.keep[ALL][i]
    }

    #[cold]
    fn give_back(&mut self, row: usize, bank: &Bank) {
        let mut bank = bank.state.lock();
        for row in [row, ALL] {
            for counter in EVERY {
                let i = counter as usize;
                let surplus = self.limit[row][i] - self.value(row, counter) - self.keep[row][i] / 2;
                if surplus > 0 {
                    self.limit[row][i] -= surplus;
                    bank.spare[row][i] += surplus;
                }
            }
        }
    }

    /// Lets the next operation pass; only while every shard is locked, and followed by [`Bank::settle`].
    pub(crate) fn lift(&mut self) {
        self.limit = [[LIFTED; COUNTERS]; 3];
    }

    fn reset_accumulated(&mut self) {
        self.gained = Default::default();
        self.base = self.current;
    }

    fn set_sole(&mut self, sole: bool) {
        self.sole = sole;
    }

    /// (current, sum of increases, current at the last reset) of one row.
    fn read(&self, row: usize, counter: Counter) -> (i64, i64, i64) {
        (self.current[row].get(counter), self.gained[row].get(counter), self.base[row].get(counter))
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
        for row in 0..3 {
            for counter in EVERY {
                settle_one(&mut bank, shards, row, counter);
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
            bank.peak = [[i64::MIN; COUNTERS]; 3];
            for shard in shards.iter_mut() {
                for row in 0..3 {
                    EVERY.iter().for_each(|&c| shard.limit[row][c as usize] = shard.value(row, c));
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
        let one = |row: usize| {
            let peak = match shards {
                [only] if only.sole => only.limit[row][counter as usize],
                _ => bank.peak[row][counter as usize],
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

fn settle_one(bank: &mut BankState, shards: &mut [&mut Counters], row: usize, counter: Counter) {
    let i = counter as usize;
    if let [only] = shards
        && only.sole
    {
        bank.peak[row][i] = only.limit[row][i].max(only.value(row, counter));
        only.limit[row][i] = bank.peak[row][i];
        return;
    }
    let sum: i64 = shards.iter().map(|s| s.value(row, counter)).sum();
    let peak = bank.peak[row][i].max(sum);
    bank.peak[row][i] = peak;
    bank.spare[row][i] = peak - sum;
    let keep = (peak / (2 * shards.len().max(1) as i64)).max(2);
    for shard in shards.iter_mut() {
        shard.limit[row][i] = shard.value(row, counter);
        shard.keep[row][i] = keep;
    }
}
