//! The credit protocol of `src/engine`: the real counters, credit and bank, and `Shards::with_credit` restated
//! without blocks and devices.

#[allow(dead_code)]
#[path = "../../../src/engine/bank.rs"]
mod bank;
#[allow(dead_code)]
#[path = "../../../src/engine/counted.rs"]
mod counted;
#[allow(dead_code)]
#[path = "../../../src/engine/counters.rs"]
mod counters;
#[allow(dead_code)]
#[path = "../../../src/engine/credit.rs"]
mod credit;
#[allow(dead_code)]
#[path = "../../../src/engine/room.rs"]
mod room;
mod lock {
    pub(crate) use parking_lot::Mutex as ShardMutex;
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
use counted::Counter;
use counters::{Change, Counters, NeedCredit};
use credit::{Asker, Manner, Owed, Purse};
use observe::snapshot::PoolKind;

/// A device with some shards.
pub struct Device {
    bank: Bank,
    shards: Vec<Mutex<Counters>>,
    /// Whose turn it is to collect piece by piece.
    turn: Mutex<()>,
}

impl Device {
    /// Shards without a block, of which some had one once, all at the same time: their credit is what these had.
    pub fn new(shards: usize, past: &[(usize, i64)]) -> Self {
        let bank = Bank::default();
        let mut first = Counters::new(true);
        bank.leave_sole(&mut first);
        let others = (1..shards).map(|_| Counters::new(false));
        let device = Device {
            bank,
            shards: std::iter::once(first).chain(others).map(Mutex::new).collect(),
            turn: Mutex::new(()),
        };
        past.iter().for_each(|&(shard, bytes)| device.malloc(shard, bytes));
        past.iter().for_each(|&(shard, bytes)| device.free(shard, bytes));
        device
    }

    /// A block is handed out on a shard.
    pub fn malloc(&self, shard: usize, bytes: i64) {
        self.with_credit(shard, |counters| counters.hand_out(PoolKind::Small, &change(bytes)));
    }

    /// A block comes back.
    pub fn free(&self, shard: usize, bytes: i64) {
        self.with_credit(shard, |counters| counters.free(PoolKind::Small, &change(bytes)));
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

    fn with_credit(&self, shard: usize, step: impl Fn(&mut Counters) -> Result<(), NeedCredit>) {
        if step(&mut self.shards[shard].lock()).is_ok() {
            return;
        }
        let purse = self.open_purse(&mut self.shards[shard].lock(), shard);
        let Err(purse) = self.try_lent(shard, purse, Manner::Whole, &step) else { return };
        let _turn = self.turn.lock();
        if let Err(purse) = self.try_lent(shard, purse, Manner::Piecemeal, &step) {
            self.exclusively(shard, &purse, &step);
        }
    }

    fn open_purse(&self, own: &mut Counters, shard: usize) -> Purse {
        let asker = Asker { shard: shard as u32, thread: shard as u64 + 1 };
        let mut purse = Purse::new(std::mem::take(&mut own.lack), asker, self.bank.generation());
        own.withdraw(&mut purse);
        purse
    }

    fn try_lent(
        &self,
        shard: usize,
        mut purse: Purse,
        manner: Manner,
        step: &impl Fn(&mut Counters) -> Result<(), NeedCredit>,
    ) -> Result<(), Purse> {
        for lender in (0..self.shards.len()).filter(|&lender| lender != shard) {
            let state = match manner {
                Manner::Whole => self.shards[lender].try_lock(),
                Manner::Piecemeal => Some(self.shards[lender].lock()),
            };
            if let Some(mut state) = state {
                state.lend(&mut purse, Owed::default(), manner, self.bank.generation());
            }
        }
        let mut own = self.shards[shard].lock();
        own.deposit(&purse, self.bank.generation());
        step(&mut own).map_err(|NeedCredit| self.open_purse(&mut own, shard))
    }

    fn exclusively(
        &self,
        shard: usize,
        purse: &Purse,
        step: &impl Fn(&mut Counters) -> Result<(), NeedCredit>,
    ) {
        let mut all = self.lock_all();
        all[shard].deposit(purse, self.bank.generation());
        if step(&mut all[shard]).is_ok() {
            return;
        }
        let before = all[shard].lift();
        let done = step(&mut all[shard]);
        assert!(done.is_ok(), "a lifted limit suffices");
        all[shard].lower(&before);
        let mut counters: Vec<&mut Counters> = all.iter_mut().map(|c| &mut **c).collect();
        self.bank.settle(&mut counters, shard);
    }
}

fn change(bytes: i64) -> Change {
    Change { bytes, requested: bytes, split: 0, split_bytes: 0, oversize: false }
}
