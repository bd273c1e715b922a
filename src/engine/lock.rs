//! The lock of a shard, of the peaks and of the queue for credit: held for tens of nanoseconds, taken twice in a hot pair.
//!
//! One atomic exchange to take it, a plain store to give it back: half the cost of a lock that must see on release
//! whether somebody sleeps. The holder never blocks, calls the driver or user code (see the order of locks in
//! [`super`]). The queues of events have such a lock too, held over driver calls: there, who waits long sleeps.
//!
//! Where many threads want it, moving the lock and what it guards from core to core takes ten times as long as the
//! work under it (some ten cache lines, 60 to 100 ns each). So throughput comes from letting one thread take it many
//! times in a row: after a few quick looks the others stay away for microseconds, each for a time of its own, since
//! every look takes the lock's cache line from the holder. Whoever has waited long looks often again, so nobody
//! starves; if the holder lost its processor, waiters give theirs away, then sleep.
//!
//! Who needs many locks at once can't wait like that: every lock it has stops somebody. So it [asks](ask) for them
//! all first. Whoever comes to a lock that is asked for stays away a while, busy owners too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::lock_api::{GuardSend, Mutex, MutexGuard, RawMutex};

/// The state that such a lock guards.
pub(crate) type ShardMutex<T> = Mutex<SpinLock<BRIEF>, T>;
/// What [`ShardMutex::lock`] gives.
pub(crate) type ShardGuard<'a, T> = MutexGuard<'a, SpinLock<BRIEF>, T>;

/// The same lock, held over calls of the driver: mostly some 200 ns, but such a call may block. So who waits long sleeps.
pub(crate) type DriverMutex<T> = Mutex<SpinLock<OVER_DRIVER_CALLS>, T>;
/// What [`DriverMutex::lock`] gives.
pub(crate) type DriverGuard<'a, T> = MutexGuard<'a, SpinLock<OVER_DRIVER_CALLS>, T>;

const BRIEF: bool = false;
const OVER_DRIVER_CALLS: bool = true;

/// Looks before the first long pause, after 1, 2 and 4 spins: enough for a holder that is about to leave.
const QUICK_LOOKS: u32 = 3;
/// Nanoseconds of the first long pause. They double up to the longest; each is taken half to one and a half times, at
/// random. With at most 4 us, 8 threads on 16 cores get half as much done as with 32; with 64, hardly more.
const FIRST_PAUSE: u64 = 500;
const LONGEST_PAUSE: u64 = 32_000;
/// Nanoseconds of waiting after which the processor is offered to others at every look.
const YIELD_AFTER: u64 = 200_000;
/// After which pauses are short again: the wait is longer than chance explains.
const EAGER_AFTER: u64 = 2_000_000;
/// After which every sixteenth look is preceded by a sleep: the holder is not running. Where it may be in a call that
/// blocks, every look is, and instead of the offers.
const SLEEP_AFTER: u64 = 20_000_000;
const SLEEP: Duration = Duration::from_micros(50);

/// Nanoseconds for which others stay away from a lock that is asked for: enough to take all of many locks. Not for
/// ever, or somebody who asks again and again would keep them out.
const POLITE: u64 = 20_000;
/// Looks of who asked, before it waits like the others.
const ASKED_LOOKS: u32 = 200;

/// Two flags.
#[derive(Debug)]
pub(crate) struct SpinLock<const HOLDER_MAY_BLOCK: bool> {
    held: AtomicBool,
    /// Somebody wants it at once; only a hint.
    asked: AtomicBool,
}

// SAFETY: `held` goes from false to true in one atomic exchange, so at most one caller of `lock` or a successful
// `try_lock` is between that and its `unlock`; acquire and release order what the lock guards.
unsafe impl<const HOLDER_MAY_BLOCK: bool> RawMutex for SpinLock<HOLDER_MAY_BLOCK> {
    #[allow(clippy::declare_interior_mutable_const)] // how lock_api wants the initial value
    const INIT: Self = SpinLock { held: AtomicBool::new(false), asked: AtomicBool::new(false) };

    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if self.is_asked() || !self.try_lock() {
            self.lock_slow();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.held.store(false, Ordering::Release);
    }
}

impl<const HOLDER_MAY_BLOCK: bool> SpinLock<HOLDER_MAY_BLOCK> {
    #[inline]
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Takes the lock if it looks free.
    fn look(&self) -> bool {
        !self.held.load(Ordering::Relaxed) && self.try_lock()
    }

    #[cold]
    fn lock_slow(&self) {
        for look in 0..QUICK_LOOKS {
            for _ in 0..1 << look {
                std::hint::spin_loop();
            }
            if !self.is_asked() && self.look() {
                return;
            }
        }
        let mut wait = Wait::new();
        while wait.waited < POLITE && self.is_asked() || !self.look() {
            wait.pause(HOLDER_MAY_BLOCK);
        }
    }

    fn lock_asked(&self) {
        for _ in 0..ASKED_LOOKS {
            if self.look() {
                return;
            }
            // Another who had asked may have withdrawn it.
            self.ask();
            std::hint::spin_loop();
        }
        // The holder has lost its processor.
        let mut wait = Wait::new();
        while !self.look() {
            std::thread::yield_now();
            wait.pause(HOLDER_MAY_BLOCK);
        }
    }

    fn ask(&self) {
        if !self.is_asked() {
            self.asked.store(true, Ordering::Relaxed);
        }
    }
}

/// Announces that the caller is about to take the lock by [`lock_asked`].
pub(crate) fn ask<T>(mutex: &ShardMutex<T>) {
    // SAFETY: the raw lock is not unlocked here.
    unsafe { mutex.raw() }.ask();
}

/// Takes the lock before those who come later.
pub(crate) fn lock_asked<T>(mutex: &ShardMutex<T>) -> ShardGuard<'_, T> {
    // SAFETY: it is locked once, for the guard that is made right after, and not unlocked.
    unsafe {
        let raw = mutex.raw();
        raw.lock_asked();
        raw.asked.store(false, Ordering::Relaxed);
        mutex.make_guard_unchecked()
    }
}

/// One thread's wait, once it is a long one.
struct Wait {
    since: Instant,
    /// Nanoseconds.
    waited: u64,
    pause: u64,
    looks: u32,
    random: u64,
}

impl Wait {
    fn new() -> Self {
        // Stacks differ, so no two threads pause alike.
        let here = 0u8;
        let random = (std::ptr::from_ref(&here) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Wait { since: Instant::now(), waited: 0, pause: FIRST_PAUSE, looks: 0, random }
    }

    /// Stays away from the lock for a while.
    fn pause(&mut self, holder_may_block: bool) {
        self.looks += 1;
        let sleeps = if holder_may_block {
            self.waited > YIELD_AFTER
        } else {
            self.waited > SLEEP_AFTER && self.looks.is_multiple_of(16)
        };
        if sleeps {
            std::thread::sleep(SLEEP);
        } else if self.waited > YIELD_AFTER {
            std::thread::yield_now();
        }
        let until = self.waited + self.pause / 2 + self.next_random() % self.pause;
        while self.waited < until {
            std::hint::spin_loop();
            self.waited = self.since.elapsed().as_nanos() as u64;
        }
        self.pause =
            if self.waited > EAGER_AFTER { FIRST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
    }

    /// Xorshift.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 16
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

    /// Thousands within milliseconds on two free cores; tens on one that others use too.
    const ENOUGH: u32 = 30;

    #[test]
    fn hammering_threads_take_turns() {
        let lock = Arc::new(ShardMutex::new((0, 0u32)));
        let end = Instant::now() + Duration::from_secs(20);
        let threads: Vec<_> = (1..=2)
            .map(|me| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    let mut seen = 0;
                    while seen < ENOUGH && Instant::now() < end {
                        for _ in 0..100 {
                            let mut state = lock.lock();
                            let (last, turns) = *state;
                            seen = turns + u32::from(last != me);
                            *state = (me, seen);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let (_, turns) = *lock.lock();
        assert!(turns >= ENOUGH, "{turns} turns in 20 s");
    }

    #[test]
    fn waits_for_a_holder_that_sleeps() {
        waits(&ShardMutex::new(0));
        waits(&DriverMutex::new(0));
    }

    fn waits<const HOLDER_MAY_BLOCK: bool>(lock: &Mutex<SpinLock<HOLDER_MAY_BLOCK>, i32>) {
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| *lock.lock() += 1)).collect();
            std::thread::sleep(Duration::from_millis(40));
            *held = 10;
            drop(held);
            for waiter in waiters {
                waiter.join().unwrap();
            }
        });
        assert_eq!(*lock.lock(), 13);
    }

    #[test]
    fn who_asks_gets_in_between_those_who_hammer() {
        let lock = ShardMutex::new(0u64);
        let stop = AtomicBool::new(false);
        let (asked, turns) = std::thread::scope(|scope| {
            let hammering = scope.spawn(|| {
                let mut turns = 0;
                while !stop.load(Ordering::Relaxed) {
                    *lock.lock() += 1;
                    turns += 1;
                }
                turns
            });
            let asking = [(); 2].map(|()| {
                scope.spawn(|| {
                    (0..2_000).for_each(|_| {
                        ask(&lock);
                        *lock_asked(&lock) += 1;
                    });
                })
            });
            let asked = asking.map(|asking| asking.join().is_ok());
            stop.store(true, Ordering::Relaxed);
            (asked, hammering.join().unwrap())
        });
        assert_eq!(asked, [true; 2]);
        assert_eq!(*lock.lock(), 4_000 + turns);
    }
}
