//! User code that the allocator calls: never under a lock that a hit needs, panics contained.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::observe::oom::OomReport;

/// Called when a request misses the cache; answers whether it freed something [spec 4.2 step 3].
pub(crate) type FreeMemoryCallback = Arc<dyn Fn() -> bool + Send + Sync>;

/// Called when a request fails for lack of memory [spec 11.1].
pub(crate) type OomObserver = Arc<dyn Fn(&OomReport) + Send + Sync>;

thread_local! {
    /// Hooks whose user code the thread is in.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
pub(crate) struct Hooks {
    free_memory: RwLock<Vec<FreeMemoryCallback>>,
    oom: RwLock<Vec<OomObserver>>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

impl Hooks {
    pub(crate) fn add_free_memory(&self, callback: FreeMemoryCallback) {
        self.free_memory.write().push(callback);
    }

    pub(crate) fn add_oom(&self, observer: OomObserver) {
        self.oom.write().push(observer);
    }

    /// Runs every callback; whether any says that it released something.
    pub(crate) fn free_memory(&self) -> bool {
        let callbacks = self.free_memory.read().clone();
        let mut any = false;
        self.call(callbacks, |callback| any |= callback());
        any
    }

    pub(crate) fn report_oom(&self, report: &OomReport) {
        let observers = self.oom.read().clone();
        self.call(observers, |observer| observer(report));
    }

    /// Calls user code, which may use the allocator: where it is called from such code, it calls nothing, or code
    /// that misses the cache or runs out of memory itself would go on for ever.
    fn call<F>(&self, all: Vec<F>, mut call: impl FnMut(F)) {
        let me = std::ptr::from_ref(self) as usize;
        if all.is_empty() || INSIDE.try_with(|inside| inside.borrow().contains(&me)).unwrap_or(true) {
            return;
        }
        INSIDE.with_borrow_mut(|inside| inside.push(me));
        for each in all {
            // A panic must not turn an error into an abort.
            let _ = catch_unwind(AssertUnwindSafe(|| call(each)));
        }
        INSIDE.with_borrow_mut(|inside| inside.retain(|h| *h != me));
    }
}
