//! The lock of a shard, and of the bank: held for tens of nanoseconds, taken twice in a hot pair.
//!
//! One atomic exchange to take it, a plain store to give it back: half the cost of a lock that must see on release
//! whether somebody sleeps. Nobody sleeps on it for long: who has to wait spins with growing pauses, then lets
//! others run. The holder never blocks, calls the driver or user code (see the order of locks in [`super`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::lock_api::{GuardSend, Mutex, MutexGuard, RawMutex};

/// The guarded state of a shard or of the bank.
pub(crate) type ShardMutex<T> = Mutex<SpinLock, T>;
/// What [`ShardMutex::lock`] gives.
pub(crate) type ShardGuard<'a, T> = MutexGuard<'a, SpinLock, T>;

/// Pauses double up to this many spins.
const MOST_SPINS: u32 = 64;
/// Rounds of pauses before the processor is given away, and before sleeping: the holder was descheduled then.
const SPIN_ROUNDS: u32 = 24;
const YIELD_ROUNDS: u32 = 128;
const SLEEP: Duration = Duration::from_micros(50);

/// A flag: whether the lock is held.
#[derive(Debug)]
pub(crate) struct SpinLock(AtomicBool);

// SAFETY: the flag goes from false to true in one atomic exchange, so at most one caller of `lock` or a successful
// `try_lock` is between that and its `unlock`; acquire and release order what the lock guards.
unsafe impl RawMutex for SpinLock {
    #[allow(clippy::declare_interior_mutable_const)] // how lock_api wants the initial value
    const INIT: SpinLock = SpinLock(AtomicBool::new(false));

    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl SpinLock {
    #[cold]
    fn lock_slow(&self) {
        let mut spins = 1;
        let mut round = 0u32;
        loop {
            for _ in 0..spins {
                std::hint::spin_loop();
            }
            if !self.0.load(Ordering::Relaxed) && self.try_lock() {
                return;
            }
            spins = (spins * 2).min(MOST_SPINS);
            round += 1;
            match round {
                0..SPIN_ROUNDS => {}
                SPIN_ROUNDS..YIELD_ROUNDS => std::thread::yield_now(),
                _ => std::thread::sleep(SLEEP),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn lets_one_in_at_a_time() {
        let lock = Arc::new(ShardMutex::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || (0..20_000).for_each(|_| *lock.lock() += 1))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*lock.lock(), 80_000);
    }
}
