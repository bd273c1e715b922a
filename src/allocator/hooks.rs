//! User code that the allocator calls back.

use std::sync::Arc;

use super::Allocator;
use crate::observe::oom::OomReport;

impl Allocator {
    /// Registers an observer of out-of-memory errors. It is called on the failing thread, without any lock held,
    /// before the error is returned, and may use the allocator (no observer is called for what fails inside one); if
    /// it panics, the panic ends there.
    pub fn attach_out_of_memory_observer(&self, observer: impl Fn(&OomReport) + Send + Sync + 'static) {
        self.core().hooks().add_oom(Arc::new(observer));
    }

    /// Registers a callback for requests that miss the cache: it may free memory through this allocator and
    /// answers whether it did; the cache is searched again then [spec 4.2 step 3]. No lock is held, and
    /// no callback is called for what misses inside one on the same thread; if it panics, the panic ends there.
    pub fn add_free_memory_callback(&self, callback: impl Fn() -> bool + Send + Sync + 'static) {
        self.core().hooks().add_free_memory(Arc::new(callback));
    }
}
