//! Credit: how far each shard may grow without asking, so that the peak of the sum over all shards stays exact
//! although nobody takes the sum.
//!
//! The limits of all shards plus what is in [purses](Purse) never exceed the known peak, for each statistic and row.
//! Credit stays where it was used last: nobody gives any back unasked. A shard that lacks some looks for another that
//! has it, one lock at a time. Only when all of them together do not have enough, every shard is locked, the values
//! are brought up to date, and the peak moves if the sum passed it ([`Bank::settle`](super::bank::Bank::settle)).
//! [`super::lending`] is the way through these steps.

// The path, since the model of the protocol includes this file by path too.
#[cfg(test)]
#[path = "credit/tests.rs"]
mod tests;

use super::counted::{ALL, Asked, Counter, EVERY, Lack, Rows, row};
use super::counters::{Change, Counters};
use crate::observe::snapshot::PoolKind;

/// By how much the splits rise when the watched block comes back, unchecked: credit for that must stay.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owed {
    row: usize,
    split: i64,
    split_bytes: i64,
}

impl Owed {
    /// When a block goes, which makes that change.
    pub(super) fn when(kind: PoolKind, change: &Change) -> Self {
        Owed { row: row(kind), split: change.split.max(0), split_bytes: change.split_bytes.max(0) }
    }

    fn of(&self, row: usize, counter: Counter) -> i64 {
        match counter {
            Counter::InactiveSplit if self.row == row || row == ALL => self.split,
            Counter::InactiveSplitBytes if self.row == row || row == ALL => self.split_bytes,
            _ => 0,
        }
    }
}

/// Who asks for credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asker {
    /// Index of the shard that lacks.
    pub(super) shard: u32,
    /// Tag of the thread; that of another is seldom the same. 0: any other.
    pub(super) thread: u64,
}

/// Credit on its way from some shards to one that lacks it, outside all locks.
#[derive(Debug)]
pub(crate) struct Purse {
    asker: Asker,
    /// What is to be brought, and what of it is still lacking.
    wanted: Lack,
    lack: Lack,
    has: Rows,
    /// Credit from before a settlement is worthless: the settlement has given it to somebody else.
    generation: u64,
}

impl Purse {
    pub(super) fn new(lack: Lack, asker: Asker, generation: u64) -> Self {
        Purse { asker, wanted: lack, lack, has: Rows::default(), generation }
    }

    /// Empties it if what it has is worthless.
    fn renew(&mut self, generation: u64) {
        if self.generation != generation {
            *self = Purse::new(self.wanted, self.asker, generation);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.lack.is_empty()
    }

    /// Whether what it takes from a shard depends on what that [owes](Owed).
    pub(super) fn minds_what_is_owed(&self, from: &Counters) -> bool {
        self.lack.splits() || from.is_of(self.asker.thread)
    }
}

/// How much one shard lends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// All that is lacking, or nothing: of several who fill their purses bit by bit at once, none would get enough.
    Whole,
    /// As far as it goes; for one asker at a time.
    Piecemeal,
}

/// A shard that another came to so often in vain for its owner to stir is idle, as those of streams that one thread uses
/// in turn are. From a busy one, more than what is lacking would soon be fetched back.
const IDLE: u32 = 3;

impl Counters {
    /// Puts what the purse lacks into it, as far as it is unused here; all that is unused where the shard is idle; and
    /// everything if it is the asking thread's, which is elsewhere now. `generation` is the present one. Whether any was
    /// lent.
    pub(super) fn lend(&mut self, purse: &mut Purse, owed: Owed, manner: Manner, generation: u64) -> bool {
        purse.renew(generation);
        if self.is_of(purse.asker.thread) {
            return self.lend_everything(purse, owed);
        }
        let unused = |own: &Counters, row, counter| own.unused(row, counter) - owed.of(row, counter);
        let enough = |(row, counter)| unused(self, row, counter) >= purse.lack.of(row, counter);
        if manner == Manner::Whole && !purse.lack.each().all(enough) {
            return false;
        }
        let idle = self.asked_by(purse.asker.shard);
        let mut lent = false;
        for (row, counter) in purse.lack.each() {
            let unused = unused(self, row, counter);
            if unused <= 0 {
                continue;
            }
            let amount = if idle { unused } else { unused.min(purse.lack.of(row, counter)) };
            self.hand_over(purse, row, counter, amount);
            lent = true;
        }
        self.publish();
        lent
    }

    /// Whether that thread was the last to ask for this shard.
    fn is_of(&self, thread: u64) -> bool {
        thread != 0 && self.thread == thread
    }

    fn lend_everything(&mut self, purse: &mut Purse, owed: Owed) -> bool {
        let mut lent = false;
        for (row, counter) in (0..=ALL).flat_map(|row| EVERY.map(|counter| (row, counter))) {
            let amount = self.unused(row, counter) - owed.of(row, counter);
            if amount > 0 {
                self.hand_over(purse, row, counter, amount);
                lent = true;
            }
        }
        self.publish();
        lent
    }

    fn hand_over(&mut self, purse: &mut Purse, row: usize, counter: Counter, amount: i64) {
        self.give(row, counter, amount);
        purse.has[row][counter as usize] += amount;
        purse.lack.lessen(row, counter, amount);
    }

    /// Puts the unused credit for what is lacking into the purse, since all of that is needed, and more. Remembers whose
    /// thread the shard is.
    pub(super) fn withdraw(&mut self, purse: &mut Purse) {
        self.thread = purse.asker.thread;
        for (row, counter) in purse.wanted.each() {
            let unused = self.unused(row, counter);
            self.give(row, counter, unused);
            purse.has[row][counter as usize] += unused;
        }
        self.publish();
    }

    fn asked_by(&mut self, asker: u32) -> bool {
        let handed_out = self.handed_out();
        if (self.asked.handed_out, self.asked.asker) != (handed_out, asker) {
            self.asked = Asked { handed_out, asker, times: 0 };
        }
        self.asked.times = self.asked.times.saturating_add(1);
        self.asked.times > IDLE
    }

    /// Takes over what the purse has; nothing if that is worthless.
    pub(super) fn deposit(&mut self, purse: &Purse, generation: u64) {
        if purse.generation != generation {
            return;
        }
        // Not published: the step that asked for it finds its room too small, and looks at the limits.
        for (row, has) in purse.has.iter().enumerate() {
            for (counter, &has) in EVERY.into_iter().zip(has) {
                if has != 0 {
                    self.give(row, counter, -has);
                }
            }
        }
    }
}
