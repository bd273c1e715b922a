//! How far a shard's statistics may grow: limits, and the room that a hit compares with.

use super::counted::{ALL, COUNT, Counter, EVERY, LANE_COUNTERS, LANES, Rows, lane};
use super::counters::{Counters, NeedCredit};

/// By lane, where the slack of its counters is; twice the same where there is one.
const SLACKS: [[usize; 2]; LANES] = {
    let mut slacks = [[0; 2]; LANES];
    let mut lane = 0;
    while lane < LANES {
        let counters = LANE_COUNTERS[lane];
        slacks[lane] = [counters[0] as usize, counters[counters.len() - 1] as usize];
        lane += 1;
    }
    slacks
};

/// A limit that no value reaches. A shard's part of a sum can be below 0, and the distance to it must not overflow.
const LIFTED: i64 = i64::MAX / 2;

impl Counters {
    /// Follows changes of limits: no room is larger than they allow. Where they allow more, an operation that lacks room
    /// takes it.
    pub(super) fn publish(&mut self) {
        let moved = std::mem::take(&mut self.moved);
        if moved.has(COUNT) {
            self.share_count();
        }
        for lane in (COUNT + 1..LANES).filter(|&lane| moved.has(lane)) {
            self.trim(lane);
        }
    }

    /// Takes from the rooms what they have too much.
    fn trim(&mut self, lane: usize) {
        for row in 0..ALL {
            self.move_room(lane, row, self.least_slack(lane, row).min(0));
        }
        // What the two have too much together comes from the larger first.
        let larger = usize::from(self.room[lane][1] > self.room[lane][0]);
        let beyond = self.least_slack(lane, ALL).min(0);
        let by = beyond.max(-self.room[lane][larger]);
        self.move_room(lane, larger, by);
        self.move_room(lane, 1 - larger, beyond - by);
    }

    #[inline]
    fn least_slack(&self, lane: usize, row: usize) -> i64 {
        let [first, second] = SLACKS[lane];
        self.slack[row][first].min(self.slack[row][second])
    }

    /// Sets the room of both kinds: where the limits allow it, `more` for the one in `row`, and half of what is left
    /// for each.
    #[inline]
    pub(super) fn share(&mut self, lane: usize, row: usize, more: i64) {
        if lane == COUNT {
            return self.share_count();
        }
        let least = |row| self.least_slack(lane, row);
        let (own, others) = (self.room[lane][row], self.room[lane][1 - row]);
        let (most, most_others, both) =
            (own + least(row), others + least(1 - row), own + others + least(ALL));
        let left_over = (both - more).max(0) / 2;
        let room = most.min(both - left_over.min(most_others));
        self.move_room(lane, row, room - own);
        self.move_room(lane, 1 - row, most_others.min(both - room) - others);
    }

    /// Numbers of blocks are not shared out: each row's room is all that its own limits leave.
    fn share_count(&mut self) {
        let [first, second] = SLACKS[COUNT];
        for (row, slack) in self.slack.iter_mut().enumerate() {
            let by = slack[first].min(slack[second]);
            slack[first] -= by;
            slack[second] -= by;
            self.count_room[row] += by;
            if row != ALL {
                self.anchor[COUNT][row] += by;
            }
        }
    }

    /// Takes what a room grows by from what the limits leave beyond it.
    #[inline]
    fn move_room(&mut self, lane: usize, row: usize, by: i64) {
        self.room[lane][row] += by;
        self.anchor[lane][row] += by;
        let [first, second] = SLACKS[lane];
        for row in [row, ALL] {
            self.slack[row][first] -= by;
            if second != first {
                self.slack[row][second] -= by;
            }
        }
    }

    /// What a row's limits leave that is in rooms.
    #[inline]
    fn room_in(&self, row: usize, lane: usize) -> i64 {
        match (lane, row) {
            (COUNT, row) => self.count_room[row],
            (lane, ALL) => self.room[lane][0] + self.room[lane][1],
            (lane, row) => self.room[lane][row],
        }
    }

    /// A counter of a kind went down, but not what its lane's room is for.
    pub(super) fn loosen(&mut self, row: usize, counter: Counter, by: i64) {
        self.slack[row][counter as usize] += by;
        self.slack[ALL][counter as usize] += by;
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
        self.lack.clear();
        if count > self.count_room[row].min(self.count_room[ALL]) {
            self.raise(row, COUNT, count);
        }
        let more = [0, bytes, requested, split, split_bytes, i64::from(oversize)];
        for (lane, more) in more.into_iter().enumerate().skip(1) {
            if !self.fits(row, lane, more) {
                self.raise(row, lane, more);
            }
        }
        if self.lack.is_empty() { Ok(()) } else { Err(NeedCredit) }
    }

    fn raise(&mut self, row: usize, lane: usize, more: i64) {
        for row in [row, ALL] {
            let room = self.room_in(row, lane);
            for &counter in LANE_COUNTERS[lane] {
                let slack = &mut self.slack[row][counter as usize];
                let need = more - room - *slack;
                if need <= 0 {
                    continue;
                }
                if self.sole {
                    *slack += need;
                } else {
                    self.lack.set(row, counter, need);
                }
            }
        }
        self.share(lane, row, more);
    }

    pub(super) fn unused(&self, row: usize, counter: Counter) -> i64 {
        self.slack[row][counter as usize] + self.room_in(row, lane(counter))
    }

    /// How far a value may go without asking. While this is the only shard, that is the peak itself.
    pub(super) fn limit(&self, row: usize, counter: Counter) -> i64 {
        self.value(row, counter) + self.unused(row, counter)
    }

    pub(super) fn limits(&self) -> Rows {
        let mut limits = Rows::default();
        for (row, limits) in limits.iter_mut().enumerate() {
            for counter in EVERY {
                limits[counter as usize] = self.limit(row, counter);
            }
        }
        limits
    }

    /// Gives credit away, at most what is unused; or gets some (below 0). To be [published](Counters::publish).
    pub(super) fn give(&mut self, row: usize, counter: Counter, amount: i64) {
        self.slack[row][counter as usize] -= amount;
        self.moved.add(counter);
    }

    fn set_limits(&mut self, limit: impl Fn(&Self, usize, Counter) -> i64) {
        for row in 0..=ALL {
            for counter in EVERY {
                let less = self.limit(row, counter) - limit(self, row, counter);
                if less != 0 {
                    self.give(row, counter, less);
                }
            }
        }
        self.publish();
    }

    /// Lets the next operation pass, and returns the limits until then; only while every shard is locked, and
    /// followed by [`lower`](Counters::lower).
    pub(super) fn lift(&mut self) -> Rows {
        let before = self.limits();
        self.set_limits(|_, _, _| LIFTED);
        before
    }

    /// Ends [`lift`](Counters::lift): the limits are what they were, or the values where these are beyond them.
    pub(super) fn lower(&mut self, before: &Rows) {
        self.set_limits(|own, row, counter| before[row][counter as usize].max(own.value(row, counter)));
    }
}
