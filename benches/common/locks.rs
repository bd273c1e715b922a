//! The yardstick: what two uncontended locks cost on this machine.

use std::hint::black_box;

use parking_lot::Mutex;

/// Two locks, as a pair needs at least when each of its calls takes one.
pub(crate) struct TwoLocks {
    first: Mutex<u64>,
    second: Mutex<u64>,
}

impl TwoLocks {
    pub(crate) fn new() -> Self {
        // A process that never had a second thread could get cheaper atomics from some C libraries.
        let _ = std::thread::spawn(|| ()).join();
        TwoLocks { first: Mutex::new(0), second: Mutex::new(0) }
    }

    /// Locks and unlocks one after the other.
    #[inline]
    pub(crate) fn pair(&self) {
        *black_box(&self.first).lock() += 1;
        *black_box(&self.second).lock() += 1;
    }
}
