//! The peaks, and the credit that no shard holds; see [`super::counters`].

use super::counters::{ALL, COUNTERS, Counter, Counters, EVERY, Rows};
use super::lock::{ShardGuard, ShardMutex};
use crate::stats::{Stat, StatArray};

/// What all shards' counters have in common: the peaks, and the credit that no shard holds.
///
/// Aligned so that nothing that every hit reads shares a cache line with it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Bank {
    state: ShardMutex<BankState>,
}

#[derive(Debug, Default)]
pub(super) struct BankState {
    pub(super) spare: Rows,
    peak: Rows,
}

impl Bank {
    pub(super) fn lock(&self) -> ShardGuard<'_, BankState> {
        self.state.lock()
    }

    /// Takes the sums, moves the peaks they passed, and deals the credit anew. Every shard is locked by the caller.
    pub(crate) fn settle(&self, shards: &mut [&mut Counters]) {
        let mut bank = self.lock();
        for row in 0..3 {
            for counter in EVERY {
                settle_one(&mut bank, shards, row, counter);
            }
        }
        shards.iter_mut().for_each(|shard| shard.publish());
    }

    /// From one shard to several: its limits were the peaks. Called before the second shard is added.
    pub(crate) fn leave_sole(&self, only: &mut Counters) {
        self.settle(&mut [only]);
        only.set_sole(false);
    }

    /// Sets every peak to the current sum.
    pub(crate) fn reset_peak(&self, shards: &mut [&mut Counters]) {
        {
            let mut bank = self.lock();
            bank.peak = [[i64::MIN; COUNTERS]; 3];
            for shard in shards.iter_mut() {
                for row in 0..3 {
                    for counter in EVERY {
                        shard.limit[row][counter as usize] = shard.value(row, counter);
                    }
                }
            }
        }
        self.settle(shards);
    }

    /// One counter over all shards.
    pub(crate) fn read(&self, shards: &[&Counters], counter: Counter) -> StatArray {
        let bank = self.lock();
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
    // Half of the room below the peak is shared out, so that not every shard must come for credit at once.
    let (room, count) = (peak - sum, shards.len().max(1) as i64);
    let share = room / (2 * count);
    bank.spare[row][i] = room - share * count;
    for shard in shards.iter_mut() {
        shard.limit[row][i] = shard.value(row, counter) + share;
        shard.keep[row][i] = (share / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::{Change, NeedCredit};
    use super::*;
    use crate::observe::snapshot::PoolKind;
    use proptest::prelude::*;

    /// What is in clients' hands on one shard.
    type Live = Vec<(PoolKind, Change)>;

    struct Device {
        bank: Bank,
        shards: Vec<Counters>,
        live: Vec<Live>,
        /// Times that credit was called in, and that every shard was locked.
        collected: u32,
        exclusive: u32,
    }

    impl Device {
        fn new(shards: usize) -> Self {
            let bank = Bank::default();
            let mut first = Counters::new(true);
            bank.leave_sole(&mut first);
            let others = (1..shards).map(|_| Counters::new(false));
            let shards: Vec<Counters> = std::iter::once(first).chain(others).collect();
            Device { bank, live: vec![Vec::new(); shards.len()], shards, collected: 0, exclusive: 0 }
        }

        /// Blocks that stay, and leave so many inactive splits that no sum of them falls below 0.
        fn lay_ground(&mut self) {
            for at in 0..self.shards.len() {
                for bytes in [512, 2 << 20] {
                    self.malloc(at, bytes, bytes, 1 << 20);
                }
            }
        }

        /// As [`Shards::with_credit`](super::super::shards::Shards::with_credit) does it.
        fn step(&mut self, at: usize, step: impl Fn(&mut Counters, &Bank) -> Result<(), NeedCredit>) {
            if step(&mut self.shards[at], &self.bank).is_ok() {
                return;
            }
            self.collected += 1;
            let count = self.shards.len();
            for donor in (1..count).map(|i| (at + i) % count) {
                self.shards[donor].surrender(&self.bank);
                if step(&mut self.shards[at], &self.bank).is_ok() {
                    return;
                }
            }
            self.exclusive += 1;
            self.bank.settle(&mut self.shards.iter_mut().collect::<Vec<_>>());
            self.shards[at].lift();
            assert!(step(&mut self.shards[at], &self.bank).is_ok(), "a lifted limit suffices");
            self.bank.settle(&mut self.shards.iter_mut().collect::<Vec<_>>());
        }

        fn malloc(&mut self, at: usize, bytes: i64, requested: i64, split: i64) {
            let kind = if bytes > 1 << 20 { PoolKind::Large } else { PoolKind::Small };
            let change =
                Change { bytes, requested, split, split_bytes: split * bytes, oversize: bytes > 3 << 20 };
            self.step(at, |counters, bank| counters.hand_out(kind, &change, bank));
            self.live[at].push((kind, change));
        }

        fn free(&mut self, at: usize, nth: usize) {
            let (kind, change) = self.live[at].remove(nth);
            let change = Change { split: -change.split, split_bytes: -change.split_bytes, ..change };
            self.step(at, |counters, bank| counters.free(kind, &change, bank));
        }

        fn sum(&self, kind: PoolKind, of: impl Fn(&Change) -> i64) -> i64 {
            self.live.iter().flatten().filter(|(k, _)| *k == kind).map(|(_, change)| of(change)).sum()
        }

        /// (small, large, all) of every counter, added up plainly.
        fn sums(&self) -> Vec<[i64; 3]> {
            let of = |counter: Counter, change: &Change| match counter {
                Counter::Allocation | Counter::Active => 1,
                Counter::AllocatedBytes | Counter::ActiveBytes => change.bytes,
                Counter::RequestedBytes => change.requested,
                Counter::InactiveSplit => change.split,
                Counter::InactiveSplitBytes => change.split_bytes,
                Counter::OversizeAllocation => i64::from(change.oversize),
            };
            let one = |counter| {
                let small = self.sum(PoolKind::Small, |c| of(counter, c));
                let large = self.sum(PoolKind::Large, |c| of(counter, c));
                [small, large, small + large]
            };
            EVERY.iter().map(|&counter| one(counter)).collect()
        }
    }

    const SIZES: [i64; 8] = [512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20];

    proptest! {
        #[test]
        fn peaks_are_those_of_a_plain_sum_at_every_step(
            shards in 2usize..17,
            ops in prop::collection::vec((0usize..16, 0u8..8, 0usize..64, -1i64..2), 1..600),
        ) {
            let mut device = Device::new(shards);
            device.lay_ground();
            let mut peaks = device.sums();
            for (at, op, pick, split) in ops {
                let at = at % shards;
                let live = device.live[at].len();
                if op < 4 || live == 2 {
                    device.malloc(at, SIZES[pick % 8], SIZES[pick % 8] - pick as i64, split);
                } else {
                    device.free(at, 2 + pick % (live - 2));
                }
                let sums = device.sums();
                let counters: Vec<&Counters> = device.shards.iter().collect();
                for ((&counter, sum), peak) in EVERY.iter().zip(sums).zip(&mut peaks) {
                    let stat = device.bank.read(&counters, counter);
                    let stat = [stat.small_pool, stat.large_pool, stat.all];
                    for row in 0..3 {
                        peak[row] = sum[row].max(peak[row]);
                        prop_assert_eq!((stat[row].current, stat[row].peak), (sum[row], peak[row]), "{:?} {}", counter, row);
                    }
                }
            }
        }
    }

    /// How often 16 streams in turn, none aware of the others, need more than their own lock.
    #[test]
    fn locking_everything_is_rare_in_a_steady_state() {
        for held in [1usize, 32] {
            let mut device = Device::new(16);
            let mut random = 1u64;
            let mut next = |n: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((random >> 33) % n) as usize
            };
            let steps = 100_000;
            for step in 0..2 * steps {
                if step == steps {
                    (device.collected, device.exclusive) = (0, 0);
                }
                let (at, bytes) = (next(16), SIZES[next(8)]);
                if device.live[at].len() == held {
                    device.free(at, 0);
                } else {
                    device.malloc(at, bytes, bytes, 0);
                }
            }
            println!(
                "{held} held: per 1,000 steps, credit called in {:.1} times, all locked {:.2} times",
                f64::from(device.collected) / 100.0,
                f64::from(device.exclusive) / 100.0
            );
            assert!(device.collected < steps / 5, "{held} held: called in {} times", device.collected);
            assert!(device.exclusive < steps / 500, "{held} held: all locked {} times", device.exclusive);
        }
    }
}
