//! How far a shard's statistics may grow: limits, and the room that a hit compares with.

use super::counters::{
    ALL, COUNT, COUNTERS, Counter, Counters, EVERY, LANE_COUNTERS, LANES, NeedCredit, Rows, lane,
};
use super::credit::Lack;

/// A limit that no value reaches. A shard's part of a sum can be below 0, and the distance to it must not overflow.
const LIFTED: i64 = i64::MAX / 2;

impl Counters {
    /// Follows a change of limits.
    pub(super) fn publish(&mut self) {
        for lane in 0..LANES {
            self.share(lane, 0, 0);
        }
    }

    /// The same for the one lane that a counter belongs to.
    pub(super) fn publish_one(&mut self, counter: Counter) {
        self.share(lane(counter), 0, 0);
    }

    /// Sets the room of both kinds: where the limits allow it, `more` for the one in `row`, and half of what is left
    /// for each.
    pub(super) fn share(&mut self, lane: usize, row: usize, more: i64) {
        let (own, others, both) =
            (self.lane_room(lane, row), self.lane_room(lane, 1 - row), self.lane_room(lane, ALL));
        if lane == COUNT {
            (self.count_room[row], self.count_room[1 - row], self.count_room[ALL]) = (own, others, both);
            return;
        }
        let left_over = (both - more).max(0) / 2;
        let room = own.min(both - left_over.min(others));
        self.room[lane][row] = room;
        self.room[lane][1 - row] = others.min(both - room);
    }

    /// How far the lane's counters may grow. A hit moves the active as the allocated: the nearer limit counts.
    fn lane_room(&self, lane: usize, row: usize) -> i64 {
        let value = self.lane_value(lane, row);
        let limits = &self.limit[row];
        let (counters, pending) = (LANE_COUNTERS[lane], self.pending_in(lane, row));
        let room = limits[counters[0] as usize] - value;
        match counters.get(1) {
            Some(&active) => room.min(limits[active as usize] - value - pending),
            None => room,
        }
    }

    /// Makes room for what is handed out (count, bytes, requested) and for the splits where this is the only shard;
    /// elsewhere notes what is missing. The values are still those before.
    #[cold]
    #[inline(never)]
    #[allow(clippy::too_many_arguments)] // a struct would be written to the stack on every hit
    pub(super) fn raise_for(
        &mut self,
        row: usize,
        count: i64,
        bytes: i64,
        requested: i64,
        split: i64,
        split_bytes: i64,
        oversize: bool,
    ) -> Result<(), NeedCredit> {
        self.lack = Lack::default();
        let more = [count, bytes, requested, split, split_bytes, i64::from(oversize)];
        for (lane, more) in more.into_iter().enumerate() {
            let fits = lane != COUNT && self.fits(row, lane, more);
            if more > 0 && !fits {
                self.raise(row, lane, more);
            }
        }
        if self.lack.is_empty() { Ok(()) } else { Err(NeedCredit) }
    }

    fn raise(&mut self, row: usize, lane: usize, more: i64) {
        for row in [row, ALL] {
            for &counter in LANE_COUNTERS[lane] {
                let need = more - self.unused(row, counter);
                if need <= 0 {
                    continue;
                }
                if self.sole {
                    self.limit[row][counter as usize] += need;
                } else {
                    self.lack.set(row, counter, need);
                }
            }
        }
        self.share(lane, row, more);
    }

    pub(super) fn unused(&self, row: usize, counter: Counter) -> i64 {
        self.limit[row][counter as usize] - self.value(row, counter)
    }

    /// Gives credit away, at most what is unused; or gets some (below 0). To be [published](Counters::publish).
    pub(super) fn give(&mut self, row: usize, counter: Counter, amount: i64) {
        self.limit[row][counter as usize] -= amount;
    }

    /// Lets the next operation pass, and returns the limits until then; only while every shard is locked, and
    /// followed by [`lower`](Counters::lower).
    pub(super) fn lift(&mut self) -> Rows {
        let before = std::mem::replace(&mut self.limit, [[LIFTED; COUNTERS]; 3]);
        self.publish();
        before
    }

    /// Ends [`lift`](Counters::lift): the limits are what they were, or the values where these are beyond them.
    pub(super) fn lower(&mut self, before: &Rows) {
        for (row, before) in before.iter().enumerate() {
            for counter in EVERY {
                let i = counter as usize;
                self.limit[row][i] = before[i].max(self.value(row, counter));
            }
        }
        self.publish();
    }
}
