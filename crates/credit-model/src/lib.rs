//! The credit protocol of `src/engine`: the real counters and bank, and `Shards::with_credit` restated without
//! blocks and devices.

#[allow(dead_code)]
#[path = "../../../src/engine/bank.rs"]
mod bank;
#[allow(dead_code)]
#[path = "../../../src/engine/counters.rs"]
mod counters;
mod lock {
    pub(crate) use parking_lot::{Mutex as ShardMutex, MutexGuard as ShardGuard};
}
mod stats {
    /// As the crate's own.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Stat {
        pub(crate) current: i64,
        pub(crate) peak: i64,
        pub(crate) allocated: i64,
        pub(crate) freed: i64,
    }

    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct StatArray {
        pub(crate) all: Stat,
        pub(crate) large_pool: Stat,
        pub(crate) small_pool: Stat,
    }
}

mod observe {
    pub(crate) mod snapshot {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum PoolKind {
            Small,
            Large,
        }
    }
}

use parking_lot::{Mutex, MutexGuard};

use bank::Bank;
use counters::{Change, Counter, Counters, NeedCredit};
use observe::snapshot::PoolKind;

/// A device with some shards.
pub struct Device {
    bank: Bank,
    shards: Vec<Mutex<Counters>>,
}

impl Device {
    /// Shards without a block, of which some had one once, all at the same time: their credit is what these had.
    pub fn new(shards: usize, past: &[(usize, i64)]) -> Self {
        let bank = Bank::default();
        let mut first = Counters::new(true);
        bank.leave_sole(&mut first);
        let others = (1..shards).map(|_| Counters::new(false));
        let device = Device { bank, shards: std::iter::once(first).chain(others).map(Mutex::new).collect() };
        past.iter().for_each(|&(shard, bytes)| device.malloc(shard, bytes));
        past.iter().for_each(|&(shard, bytes)| device.free(shard, bytes));
        device
    }

    /// A block is handed out on a shard.
    pub fn malloc(&self, shard: usize, bytes: i64) {
        self.with_credit(shard, |counters, bank| counters.hand_out(PoolKind::Small, &change(bytes), bank));
    }

    /// A block comes back.
    pub fn free(&self, shard: usize, bytes: i64) {
        self.with_credit(shard, |counters, bank| counters.free(PoolKind::Small, &change(bytes), bank));
    }

    /// Allocated bytes: now, and at most.
    pub fn allocated_bytes(&self) -> (i64, i64) {
        let all = self.lock_all();
        let counters: Vec<&Counters> = all.iter().map(|c| &**c).collect();
        let stat = self.bank.read(&counters, Counter::AllocatedBytes).all;
        (stat.current, stat.peak)
    }

    fn lock_all(&self) -> Vec<MutexGuard<'_, Counters>> {
        self.shards.iter().map(Mutex::lock).collect()
    }

    fn with_credit(&self, shard: usize, step: impl Fn(&mut Counters, &Bank) -> Result<(), NeedCredit>) {
        if step(&mut self.shards[shard].lock(), &self.bank).is_ok() {
            return;
        }
        let count = self.shards.len();
        for donor in (shard + 1..count).chain(0..shard) {
            self.shards[donor].lock().surrender(&self.bank);
            if step(&mut self.shards[shard].lock(), &self.bank).is_ok() {
                return;
            }
        }
        let mut all = self.lock_all();
        self.settle(&mut all);
        all[shard].lift();
        let done = step(&mut all[shard], &self.bank);
        assert!(done.is_ok(), "a lifted limit suffices");
        self.settle(&mut all);
    }

    fn settle(&self, all: &mut [MutexGuard<'_, Counters>]) {
        let mut counters: Vec<&mut Counters> = all.iter_mut().map(|c| &mut **c).collect();
        self.bank.settle(&mut counters);
    }
}

fn change(bytes: i64) -> Change {
    Change { bytes, requested: bytes, split: 0, split_bytes: 0, oversize: false }
}
