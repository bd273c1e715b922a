//! What is counted: the statistics that a hit moves, the lanes that it moves them in, and what may be lacking of them.

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

/// What a hit moves. `Active` is what is allocated plus what is pending, so that the usual case, nothing pending,
/// moves half as many words.
pub(super) const LANES: usize = 6;
pub(super) const COUNT: usize = 0;
pub(super) const BYTES: usize = 1;
pub(super) const REQUESTED: usize = 2;
pub(super) const SPLIT: usize = 3;
pub(super) const SPLIT_BYTES: usize = 4;
pub(super) const OVERSIZE: usize = 5;

/// By lane, then by pool kind: what one operation moves does not lie side by side, so that the compiler does not
/// pack words that come one by one, which costs more than it saves.
pub(super) type Sums = [[i64; 2]; LANES];

/// The counters of every lane.
pub(super) const LANE_COUNTERS: [&[Counter]; LANES] = [
    &[Allocation, Active],
    &[AllocatedBytes, ActiveBytes],
    &[RequestedBytes],
    &[InactiveSplit],
    &[InactiveSplitBytes],
    &[OversizeAllocation],
];

/// A set of lanes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lanes(u32);

impl Lanes {
    /// Adds the one that a counter belongs to.
    pub(super) fn add(&mut self, counter: Counter) {
        self.0 |= 1 << lane(counter);
    }

    pub(super) fn has(self, lane: usize) -> bool {
        self.0 >> lane & 1 == 1
    }
}

/// The lane that a hit moves for the counter.
pub(super) fn lane(counter: Counter) -> usize {
    match counter {
        Allocation | Active => COUNT,
        AllocatedBytes | ActiveBytes => BYTES,
        RequestedBytes => REQUESTED,
        InactiveSplit => SPLIT,
        InactiveSplitBytes => SPLIT_BYTES,
        OversizeAllocation => OVERSIZE,
    }
}

/// Credit that an operation lacks, by row and counter.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lack {
    amounts: Rows,
    /// Bit `row * COUNTERS + counter`: that amount is above 0.
    some: u32,
}

impl Lack {
    /// Sets one amount.
    pub(super) fn set(&mut self, row: usize, counter: Counter, amount: i64) {
        self.amounts[row][counter as usize] = amount;
        if amount > 0 {
            self.some |= bit(row, counter);
        } else {
            self.some &= !bit(row, counter);
        }
    }

    pub(super) fn of(&self, row: usize, counter: Counter) -> i64 {
        self.amounts[row][counter as usize]
    }

    /// So much of one amount is there now, if it was lacking.
    pub(super) fn lessen(&mut self, row: usize, counter: Counter, by: i64) {
        if self.some & bit(row, counter) != 0 {
            self.set(row, counter, self.of(row, counter) - by);
        }
    }

    pub(super) fn clear(&mut self) {
        self.some = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.some == 0
    }

    pub(super) fn splits(&self) -> bool {
        let one = bit(0, Counter::InactiveSplit) | bit(0, Counter::InactiveSplitBytes);
        self.some & (one | one << COUNTERS | one << (2 * COUNTERS)) != 0
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (usize, Counter)> + use<> {
        let mut some = self.some;
        std::iter::from_fn(move || {
            let at = (some != 0).then(|| some.trailing_zeros() as usize)?;
            some &= some - 1;
            Some((at / COUNTERS, EVERY[at % COUNTERS]))
        })
    }
}

fn bit(row: usize, counter: Counter) -> u32 {
    1 << (row * COUNTERS + counter as usize)
}

/// How often a shard was asked by the same other one while nothing happened there.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) handed_out: i64,
    pub(super) asker: u32,
    pub(super) times: u32,
}
