//! `parking_lot`'s mutex, as far as the engine's counters use it, over loom's.

/// A mutex whose every lock operation loom schedules.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

pub use loom::sync::MutexGuard;

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    /// Locks it; a panic of another thread is one here too.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|_| panic!("another thread has panicked"))
    }

    /// Locks it if nobody has.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}
