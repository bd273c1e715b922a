//! Where a step gets the [credit](super::credit) from that its shard lacks.
//!
//! 1. From one other shard that has all of it, passing over those that are locked. A block parked there is counted as free.
//! 2. In turn with others who found none: from all shards, piece by piece.
//! 3. Still in turn: every shard is locked, and the peaks move where the sums pass them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use smallvec::SmallVec;

use super::counted::Lack;
use super::counters::{Counters, NeedCredit};
use super::credit::{Asker, Manner, Owed, Purse};
use super::lock::{ShardMutex, lock_asked};
use super::shard::ShardState;
use super::shards::{Shard, Shards};
use super::shared::Shared;

/// Who comes so soon after another thread stays with it.
const NEAR: u64 = 300;
/// For so long nobody has come before those who stayed leave, and for so long they stay at most. Microseconds, as all
/// three.
const QUIET: u64 = 150;
const LONGEST_STAY: u64 = 1000;
/// After so long the processor is offered to others at every look.
const YIELD_AFTER: u64 = 20;
/// Spins between two looks.
const SPINS: u32 = 8;
/// Who comes again after fewer blocks comes with every one, since its memory grows, and does not stay.
const GROWING: i64 = 2;

/// Those whom no single shard can lend, served in turn.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Queue {
    turn: ShardMutex<()>,
    /// When the last one came, in microseconds, and a tag of its thread.
    came: AtomicU64,
}

const TAG_BITS: u32 = 16;

/// Of the calling thread; those of two threads are seldom the same.
fn thread_tag() -> u64 {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| (std::ptr::from_ref(here) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - TAG_BITS))
}

/// Microseconds since some moment.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64
}

impl Queue {
    /// Runs `serve` in turn, then stays for a moment where several threads come.
    ///
    /// So the blocks that several threads ask for are live at once, and the peak grows to what so many threads need;
    /// from then on they rarely come here. If each left at once, the peak would stay low, and almost every request would
    /// have to come here: with 16 threads a tenth as many requests or fewer.
    fn serve<R>(&self, stays: bool, serve: impl FnOnce() -> R) -> R {
        let (time, tag) = (now(), thread_tag());
        let before = self.came.swap(time << TAG_BITS | tag, Ordering::Relaxed);
        let turn = lock_asked(&self.turn);
        let result = serve();
        drop(turn);
        let another = before != 0 && before & ((1 << TAG_BITS) - 1) != tag;
        if stays && another && time.saturating_sub(before >> TAG_BITS) < NEAR {
            self.stay(time);
        }
        result
    }

    /// Waits until nobody has come for a while.
    fn stay(&self, since: u64) {
        let mut time = now();
        let last = || self.came.load(Ordering::Relaxed) >> TAG_BITS;
        while time < since + LONGEST_STAY && time < last() + QUIET {
            if time > since + YIELD_AFTER {
                std::thread::yield_now();
            }
            (0..SPINS).for_each(|_| std::hint::spin_loop());
            time = now();
        }
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
    /// change is gone. It may [stay](Queue::serve) for a millisecond if the caller holds nothing that others want.
    #[cold]
    pub(crate) fn with_credit<R>(
        &self,
        shard: &Shard,
        shared: &Shared,
        may_stay: bool,
        mut step: impl FnMut(&mut ShardState) -> Result<R, NeedCredit>,
    ) -> Option<R> {
        let mut own = shard.lock();
        let mut purse = own.open_purse(shard, shared);
        let stays = may_stay && own.counters.handed_out() - own.counters.queued_at >= GROWING;
        drop(own);
        if let Outcome::Done(result) = self.try_lent(shard, shared, Manner::Whole, &mut purse, &mut step) {
            return result;
        }
        self.queue.serve(stays, || {
            match self.try_lent(shard, shared, Manner::Piecemeal, &mut purse, &mut step) {
                Outcome::Done(result) => result,
                Outcome::Lacking => self.exclusively(shard, shared, &purse, &mut step),
            }
        })
    }

    /// Fills the purse and runs the step with it. If that does not suffice, what there is goes into a new purse.
    fn try_lent<R>(
        &self,
        shard: &Shard,
        shared: &Shared,
        manner: Manner,
        purse: &mut Purse,
        step: &mut impl FnMut(&mut ShardState) -> Result<R, NeedCredit>,
    ) -> Outcome<R> {
        self.collect(shard, shared, manner, purse);
        let mut own = shard.lock();
        own.counters.deposit(purse, shared.bank.generation());
        if let Ok(result) = step(&mut own) {
            return Outcome::Done(Some(result));
        }
        *purse = own.open_purse(shard, shared);
        own.counters.queued_at = own.counters.handed_out();
        if purse.is_full() { Outcome::Done(None) } else { Outcome::Lacking }
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
                Manner::Piecemeal => Some(lender.lock_hot_asked()),
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
        shard: &Shard,
        shared: &Shared,
        purse: &Purse,
        step: &mut impl FnMut(&mut ShardState) -> Result<R, NeedCredit>,
    ) -> Option<R> {
        self.with_all(|states| {
            let asker = states.iter().position(|s| s.stream == shard.stream)?;
            let own = &mut states[asker];
            own.counters.deposit(purse, shared.bank.generation());
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
    /// For what the last step lacked; what is here of that goes into the purse, lest somebody else borrows it meanwhile.
    fn open_purse(&mut self, shard: &Shard, shared: &Shared) -> Purse {
        let counters = &mut self.counters;
        let asker = Asker { shard: shard.index, thread: thread_tag() };
        let mut purse = Purse::new(std::mem::take(&mut counters.lack), asker, shared.bank.generation());
        counters.withdraw(&mut purse);
        purse
    }

    /// Puts unused credit into the purse. A parked block is counted as free, so that it needs none; one that is watched
    /// while a client has it, or while it waits for its event, stays watched, and so does what it will need.
    fn lend(&mut self, purse: &mut Purse, manner: Manner, shared: &Shared) -> bool {
        self.count_parked();
        let owed = if purse.minds_what_is_owed(&self.counters) { self.owed() } else { Owed::default() };
        self.counters.lend(purse, owed, manner, shared.bank.generation())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn micros_of_serving(queue: &Queue, stays: bool) -> u64 {
        let start = Instant::now();
        queue.serve(stays, || ());
        start.elapsed().as_micros() as u64
    }

    #[test]
    fn one_thread_never_waits_for_company() {
        let queue = Queue::default();
        let start = Instant::now();
        (0..20_000).for_each(|_| queue.serve(true, || ()));
        assert!(start.elapsed().as_micros() < 20_000 * u128::from(QUIET) / 2);
    }

    #[test]
    fn who_comes_soon_after_another_thread_stays() {
        let queue = Queue::default();
        // On a busy machine the two may be apart for once.
        let stayed = (0..1000).any(|_| {
            std::thread::scope(|scope| scope.spawn(|| queue.serve(true, || ())).join().unwrap());
            micros_of_serving(&queue, true) >= QUIET
        });
        assert!(stayed);
    }

    #[test]
    fn who_may_not_stay_does_not() {
        let queue = Queue::default();
        let shortest = (0..100)
            .map(|_| {
                std::thread::scope(|scope| scope.spawn(|| queue.serve(true, || ())).join().unwrap());
                micros_of_serving(&queue, false)
            })
            .min();
        assert!(shortest < Some(QUIET));
    }
}
