//! The statistics that a cache hit moves, kept per shard, with exact process-wide peaks.
//!
//! A peak is a property of the sum over all shards. To keep it exact without sharing a cache line on every
//! call, each shard holds [credit](super::credit): it may grow up to its `limit` on its own, and the limits of all
//! shards together never exceed the known peak.

use super::counted::{
    ALL, Asked, BYTES, COUNT, Counter, LANE_COUNTERS, LANES, Lack, Lanes, OVERSIZE, REQUESTED, Rows, SPLIT,
    SPLIT_BYTES, Sums, lane, row,
};
use crate::observe::snapshot::PoolKind;

/// The operation would pass the shard's credit; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeedCredit;

/// A block and what it does to the split blocks around it [spec 4.6, 5.2].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Number and bytes of the blocks that clients gave back and other streams still use, by pool kind.
type Pending = [[i64; 2]; 2];

/// One shard's counters. What a hit moves comes first, then what a loan does: it lies side by side, since a loan moves
/// it between cores.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Counters {
    /// How far the number of blocks may grow, small, large and all: that is at its peak too often to be shared out.
    pub(super) count_room: [i64; 3],
    /// How far each kind's value may grow, all that a hit compares with: what its own limit leaves, and a part of what
    /// the limit of both leaves. See [`publish`](Counters::publish).
    pub(super) room: Sums,
    /// Sums of increases since the last reset. Every hand-out moves `Active` as it moves `Allocation`, so the sums of
    /// the two are the same.
    gained: Sums,
    /// Each kind's value and its room: a hit leaves the sum of the two as it is, so that it has one word to move.
    pub(super) anchor: Sums,
    /// What the limits leave beyond the rooms.
    pub(super) slack: Rows,
    pub(super) asked: Asked,
    /// Lanes whose limits changed, as the rooms don't know yet.
    pub(super) moved: Lanes,
    /// Whether this is the device's only shard.
    pub(super) sole: bool,
    /// Values at the last reset of the sums, and what was pending then.
    base: Sums,
    base_pending: Pending,
    pending: Pending,
    /// Tag of the thread that asked for credit last.
    pub(super) thread: u64,
    /// What the last refused operation lacked; empty once that was looked at.
    pub(super) lack: Lack,
    /// [Blocks handed out](Counters::handed_out) when it last queued for credit.
    pub(super) queued_at: i64,
}

impl Counters {
    pub(crate) fn new(sole: bool) -> Self {
        Counters {
            count_room: Default::default(),
            room: Default::default(),
            gained: Default::default(),
            anchor: Default::default(),
            slack: Rows::default(),
            asked: Asked::default(),
            moved: Lanes::default(),
            sole,
            base: Default::default(),
            base_pending: Default::default(),
            pending: Default::default(),
            thread: 0,
            lack: Lack::default(),
            queued_at: 0,
        }
    }

    pub(crate) fn current(&self, kind: PoolKind, counter: Counter) -> i64 {
        self.value(row(kind), counter)
    }

    pub(super) fn value(&self, row: usize, counter: Counter) -> i64 {
        let lane = lane(counter);
        let pending = if counter == LANE_COUNTERS[lane][0] { 0 } else { self.pending_in(lane, row) };
        self.lane_value(lane, row) + pending
    }

    /// What is in clients' hands, or the splits.
    pub(super) fn lane_value(&self, lane: usize, row: usize) -> i64 {
        let one = |row: usize| {
            let room = if lane == COUNT { self.count_room[row] } else { self.room[lane][row] };
            self.anchor[lane][row] - room
        };
        if row == ALL { one(0) + one(1) } else { one(row) }
    }

    /// What is active beside that.
    pub(super) fn pending_in(&self, lane: usize, row: usize) -> i64 {
        let one = |row: usize| self.pending.get(lane).map_or(0, |kinds| kinds[row]);
        if row == ALL { one(0) + one(1) } else { one(row) }
    }

    #[inline]
    pub(super) fn fits(&self, row: usize, lane: usize, more: i64) -> bool {
        more <= self.room[lane][row]
    }

    #[inline]
    fn take(&mut self, row: usize, lane: usize, more: i64) {
        self.room[lane][row] -= more;
    }

    #[inline]
    fn gain(&mut self, row: usize, lane: usize, by: i64) {
        self.take(row, lane, by);
        self.gained[lane][row] += by;
    }

    #[inline]
    fn lose(&mut self, row: usize, lane: usize, by: i64) {
        self.take(row, lane, -by);
    }

    /// Moves a value whichever way.
    #[inline]
    fn shift(&mut self, row: usize, lane: usize, by: i64) {
        self.take(row, lane, by);
        self.gained[lane][row] += by.max(0);
    }

    /// Moves the number of blocks; there is room for it.
    #[inline]
    fn count(&mut self, row: usize, by: i64) {
        self.count_room[row] -= by;
        self.count_room[ALL] -= by;
    }

    /// A block is handed out. Changes nothing where credit is missing.
    #[inline(always)]
    pub(crate) fn hand_out(&mut self, kind: PoolKind, change: &Change) -> Result<(), NeedCredit> {
        let row = row(kind);
        let fits = self.count_room[row] > 0
            && self.count_room[ALL] > 0
            && self.fits(row, BYTES, change.bytes)
            && self.fits(row, REQUESTED, change.requested)
            && self.splits_fit(row, change);
        if !fits || change.oversize {
            self.raise_for(
                row,
                1,
                change.bytes,
                change.requested,
                change.split,
                change.split_bytes,
                change.oversize,
            )?;
        }
        self.count(row, 1);
        self.gained[COUNT][row] += 1;
        self.gain(row, BYTES, change.bytes);
        self.gain(row, REQUESTED, change.requested);
        self.shift_splits(row, change);
        if change.oversize {
            self.gain(row, OVERSIZE, 1);
        }
        Ok(())
    }

    /// A client gives a block back, which stays active: nothing grows. So nor does the room of what can be active.
    pub(crate) fn request_free(&mut self, kind: PoolKind, change: &Change) {
        let row = row(kind);
        for (lane, by) in [(COUNT, 1), (BYTES, change.bytes)] {
            self.anchor[lane][row] -= by;
            self.loosen(row, LANE_COUNTERS[lane][0], by);
        }
        if change.oversize {
            self.lose(row, OVERSIZE, 1);
        }
        self.pending[COUNT][row] += 1;
        self.pending[BYTES][row] += change.bytes;
    }

    /// A pending block becomes free. Changes nothing where credit is missing.
    pub(crate) fn complete_free(&mut self, kind: PoolKind, change: &Change) -> Result<(), NeedCredit> {
        let row = row(kind);
        if !self.splits_fit(row, change) {
            self.raise_for(row, 0, 0, 0, change.split, change.split_bytes, false)?;
        }
        self.lose(row, REQUESTED, change.requested);
        self.shift_splits(row, change);
        for (lane, by) in [(COUNT, 1), (BYTES, change.bytes)] {
            self.pending[lane][row] -= by;
            self.loosen(row, LANE_COUNTERS[lane][1], by);
            self.share(lane, row, 0);
        }
        Ok(())
    }

    /// Both at once. Changes nothing where credit is missing.
    #[inline(always)]
    pub(crate) fn free(&mut self, kind: PoolKind, change: &Change) -> Result<(), NeedCredit> {
        let row = row(kind);
        if !self.splits_fit(row, change) {
            self.raise_for(row, 0, 0, 0, change.split, change.split_bytes, false)?;
        }
        self.count(row, -1);
        self.lose(row, BYTES, change.bytes);
        self.lose(row, REQUESTED, change.requested);
        self.shift_splits(row, change);
        if change.oversize {
            self.lose(row, OVERSIZE, 1);
        }
        Ok(())
    }

    #[inline]
    fn splits_fit(&self, row: usize, change: &Change) -> bool {
        self.fits(row, SPLIT, change.split) && self.fits(row, SPLIT_BYTES, change.split_bytes)
    }

    #[inline]
    fn shift_splits(&mut self, row: usize, change: &Change) {
        self.shift(row, SPLIT, change.split);
        self.shift(row, SPLIT_BYTES, change.split_bytes);
    }

    /// A block was freed and handed out again so many times, with `requested` bytes in all, and holds `by` more
    /// requested bytes now. `change` is that of one hand-out. No value passed its highest meanwhile.
    pub(crate) fn repeat(&mut self, kind: PoolKind, change: &Change, pairs: i64, requested: i64, by: i64) {
        let row = row(kind);
        // Splits go up in one half of each pair and down in the other.
        let moved = [
            (COUNT, pairs),
            (BYTES, pairs * change.bytes),
            (REQUESTED, requested),
            (SPLIT, pairs * change.split.abs()),
            (SPLIT_BYTES, pairs * change.split_bytes.abs()),
        ];
        for (lane, by) in moved {
            self.gained[lane][row] += by;
        }
        self.take(row, REQUESTED, by);
    }

    pub(super) fn reset_accumulated(&mut self) {
        for lane in 0..LANES {
            for row in 0..2 {
                self.base[lane][row] = self.lane_value(lane, row);
            }
        }
        self.base_pending = self.pending;
        self.queued_at -= self.handed_out();
        self.gained = Default::default();
    }

    /// Blocks in clients' hands.
    pub(super) fn live(&self) -> u64 {
        self.lane_value(COUNT, ALL) as u64
    }

    /// Blocks handed out since the sums were reset.
    pub(super) fn handed_out(&self) -> i64 {
        self.gained[COUNT][0] + self.gained[COUNT][1]
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
        let lane = lane(counter);
        let first = counter == LANE_COUNTERS[lane][0];
        let pending = if first { 0 } else { self.base_pending[lane][row] };
        (self.value(row, counter), self.gained[lane][row], self.base[lane][row] + pending)
    }
}
