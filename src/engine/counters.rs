//! The statistics that a cache hit moves, kept per shard, with exact process-wide peaks.
//!
//! A peak is a property of the sum over all shards. To keep it exact without sharing a cache line on every
//! call, each shard holds *credit*: it may grow up to its `limit` on its own, and the limits of all shards plus
//! the [bank](super::bank)'s `spare` never exceed the known peak. A shard that needs more takes it from the bank;
//! when the bank is empty, it calls in what the other shards do not use, one after the other; when that does not
//! suffice, all shards are locked, the sum is taken and the peak moves if the sum passed it.

use super::bank::Bank;
use crate::observe::snapshot::PoolKind;

/// How many statistics there are per pool kind.
pub(super) const COUNTERS: usize = 8;

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

pub(super) const EVERY: [Counter; COUNTERS] = [
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
pub(super) const ALL: usize = 2;

pub(super) type Rows = [[i64; COUNTERS]; 3];

pub(super) fn row(kind: PoolKind) -> usize {
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
    pub(super) limit: Rows,
    /// Unused credit far above this goes back to the bank.
    pub(super) keep: Rows,
    /// Whether this is the device's only shard.
    pub(super) sole: bool,
    /// Frees until unused credit is looked at.
    until_look: u8,
}

/// Every so many frees, unused credit is looked at: a credit that is missing at once costs more than one that is
/// returned late.
const LOOK_EVERY: u8 = 16;

impl Counters {
    pub(crate) fn new(sole: bool) -> Self {
        Counters {
            current: Default::default(),
            gained: Default::default(),
            base: Default::default(),
            limit: Rows::default(),
            keep: Rows::default(),
            sole,
            until_look: LOOK_EVERY,
        }
    }

    pub(crate) fn current(&self, kind: PoolKind, counter: Counter) -> i64 {
        self.current[row(kind)].get(counter)
    }

    #[inline]
    pub(super) fn value(&self, row: usize, counter: Counter) -> i64 {
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
        let mut bank = if self.sole { None } else { Some(bank.lock()) };
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
        self.until_look -= 1;
        if self.until_look == 0 {
            self.until_look = LOOK_EVERY;
            if !self.sole && self.is_rich(row) {
                self.give_back(&[row, ALL], bank, |keep| keep);
            }
        }
    }

    fn unused(&self, row: usize, counter: Counter) -> i64 {
        self.limit[row][counter as usize] - self.value(row, counter)
    }

    fn is_rich(&self, row: usize) -> bool {
        // A lifted limit is no credit to give back: the bank settles anew right after.
        if self.limit[ALL][AllocatedBytes as usize] == LIFTED {
            return false;
        }
        let rich = |row: usize| EVERY.iter().any(|&c| self.unused(row, c) > 2 * self.keep[row][c as usize]);
        rich(row) || rich(ALL)
    }

    /// Gives all unused credit to the bank: another shard has none.
    pub(super) fn surrender(&mut self, bank: &Bank) {
        self.give_back(&[0, 1, ALL], bank, |_| 0);
    }

    #[cold]
    fn give_back(&mut self, rows: &[usize], bank: &Bank, left: impl Fn(i64) -> i64) {
        let mut bank = bank.lock();
        for &row in rows {
            for counter in EVERY {
                let i = counter as usize;
                let surplus = self.unused(row, counter) - left(self.keep[row][i]);
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

    pub(super) fn reset_accumulated(&mut self) {
        self.gained = Default::default();
        self.base = self.current;
    }

    #[inline]
    pub(crate) fn is_sole(&self) -> bool {
        self.sole
    }

    pub(super) fn set_sole(&mut self, sole: bool) {
        self.sole = sole;
    }

    /// (current, sum of increases, current at the last reset) of one row.
    pub(super) fn read(&self, row: usize, counter: Counter) -> (i64, i64, i64) {
        (self.current[row].get(counter), self.gained[row].get(counter), self.base[row].get(counter))
    }
}
