//! Where a step gets the [credit](super::credit) from that its shard lacks.
//!
//! 1. From one other shard that has all of it, passing over those that are locked. A block parked there is filed.
//! 2. In turn with others who found none: from all shards, piece by piece.
//! 3. Still in turn: every shard is locked, and the peaks move where the sums pass them.

use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

use super::counters::{Counters, NeedCredit};
use super::credit::{Lack, Manner, Owed, Purse};
use super::lock::ShardMutex;
use super::shard::ShardState;
use super::shards::{Shard, Shards};
use super::shared::Shared;
use crate::device::Stream;

/// Looks at the queue before one who is served leaves, and spins between two: some 350 us in all, if nobody else is.
const LOOKS: u32 = 1000;
const SPINS: u32 = 8;

/// Those whom no single shard can lend, served in turn.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Queue {
    turn: ShardMutex<()>,
    arrived: AtomicU32,
    served: AtomicU32,
}

impl Queue {
    /// Runs `serve` in turn, then stays for a moment until those who wait already are served too.
    ///
    /// So the blocks that several threads ask for at once are live at once, and the peak grows to what so many
    /// threads need; from then on they rarely come here. If each left at once, threads would spend their time
    /// waiting with nothing in hands, the peak would stay low, and almost every request would have to come here:
    /// with 16 threads a tenth as many requests or fewer. For the same reason it is good here that who waits for the
    /// lock stays away for long (see [`super::lock`]): with a quicker queue, 16 threads made an eighth of the pairs.
    fn serve<R>(&self, serve: impl FnOnce() -> R) -> R {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let turn = self.turn.lock();
        let result = serve();
        self.served.fetch_add(1, Ordering::Relaxed);
        let arrived = self.arrived.load(Ordering::Relaxed);
        drop(turn);
        for _ in 0..LOOKS {
            if arrived.wrapping_sub(self.served.load(Ordering::Relaxed)) as i32 <= 0 {
                break;
            }
            (0..SPINS).for_each(|_| std::hint::spin_loop());
        }
        result
    }
}

/// What became of a step.
enum Outcome<R> {
    /// It ran, or can't whatever credit there is.
    Done(Option<R>),
    /// There is not enough credit.
    Lacking,
}

impl Shards {
    /// Runs a step that a shard lacked credit for. `None` if the step fails for another reason: what it was to
    /// change is gone.
    #[cold]
    pub(crate) fn with_credit<R>(
        &self,
        shard: &Shard,
        shared: &Shared,
        mut step: impl FnMut(&mut ShardState) -> Result<R, NeedCredit>,
    ) -> Option<R> {
        let mut lack = std::mem::take(&mut shard.lock_hot().counters.lack);
        if let Outcome::Done(result) = self.try_lent(shard, shared, Manner::Whole, &mut lack, &mut step) {
            return result;
        }
        self.queue.serve(|| match self.try_lent(shard, shared, Manner::Piecemeal, &mut lack, &mut step) {
            Outcome::Done(result) => result,
            Outcome::Lacking => self.exclusively(shard.stream, shared, &mut step),
        })
    }

    /// Collects credit and runs the step with it; `lack` is what is lacking, then what still is.
    fn try_lent<R>(
        &self,
        shard: &Shard,
        shared: &Shared,
        manner: Manner,
        lack: &mut Lack,
        step: &mut impl FnMut(&mut ShardState) -> Result<R, NeedCredit>,
    ) -> Outcome<R> {
        let mut purse = Purse::new(*lack, shard.index);
        self.collect(shard, shared, manner, &mut purse);
        let mut own = shard.lock();
        own.counters.deposit(&purse, shared.bank.generation());
        if let Ok(result) = step(&mut own) {
            return Outcome::Done(Some(result));
        }
        *lack = std::mem::take(&mut own.counters.lack);
        if lack.is_empty() { Outcome::Done(None) } else { Outcome::Lacking }
    }

    /// Fills the purse from the other shards, first from where there was credit the last time.
    fn collect(&self, shard: &Shard, shared: &Shared, manner: Manner, purse: &mut Purse) {
        let count = self.count();
        let start = shard.lender.load(Ordering::Relaxed).min(count);
        for index in (start..count).chain(0..start) {
            if purse.is_full() {
                return;
            }
            let Some(lender) = self.at(index).filter(|s| s.index != shard.index) else { continue };
            let state = match manner {
                Manner::Whole => lender.try_lock_hot(),
                Manner::Piecemeal => Some(lender.lock_hot()),
            };
            if state.is_some_and(|mut state| state.lend(purse, manner, shared)) {
                shard.lender.store(index, Ordering::Relaxed);
            }
        }
    }

    /// Runs a step that no credit suffices for: every shard is locked, the step runs, the peaks move.
    /// The step must be one that changes each statistic once.
    fn exclusively<R>(
        &self,
        stream: Stream,
        shared: &Shared,
        step: &mut impl FnMut(&mut ShardState) -> Result<R, NeedCredit>,
    ) -> Option<R> {
        self.with_all(|states| {
            let asker = states.iter().position(|s| s.stream == stream)?;
            let own = &mut states[asker];
            // While this one waited for the locks, another may have let go of enough.
            if let Ok(result) = step(own) {
                return Some(result);
            }
            let before = own.counters.lift();
            let result = step(own).ok();
            own.counters.lower(&before);
            own.counters.lack = Lack::default();
            let mut counters: SmallVec<[&mut Counters; 16]> =
                states.iter_mut().map(|s| &mut s.counters).collect();
            shared.bank.settle(&mut counters, asker);
            result
        })
    }
}

impl ShardState {
    /// Puts unused credit into the purse. A parked block is filed, so that it needs none; one that is watched while
    /// a client has it, or while it waits for its event, stays watched, and so does what it will need.
    fn lend(&mut self, purse: &mut Purse, manner: Manner, shared: &Shared) -> bool {
        if self.is_parked() {
            self.settle_lazy(shared);
        }
        let owed = if purse.wants_splits() { self.owed() } else { Owed::default() };
        self.counters.lend(purse, owed, manner, shared.bank.generation(), self.epoch)
    }
}
