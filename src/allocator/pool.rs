//! Private pools [spec 14].

use std::sync::Arc;
use std::thread;

use super::Allocator;
use crate::device::Stream;
use crate::engine::{Activity, Upstream, next_capture_pool, next_user_pool};
use crate::error::Result;
use crate::observe::snapshot::PoolId;

/// A pool of its own for some allocations (PyTorch's `MemPool`): what is freed in it serves only requests that
/// go to it, and its memory stays until the pool is dropped and its blocks are free, or a request in it does not fit otherwise.
///
/// Dropping it leaves live blocks alive; their segments go back with a later `empty_cache`.
#[derive(Debug)]
pub struct MemPool {
    allocator: Allocator,
    id: PoolId,
}

/// Ends the routing of a thread's requests, also when the scope panics.
struct Routed<'a> {
    pool: &'a MemPool,
}

impl Drop for Routed<'_> {
    fn drop(&mut self) {
        let core = self.pool.allocator.core();
        // Both can fail only if somebody ended this pool's routing by its id.
        let _ = core.end_allocate(self.pool.id);
        let _ = core.release_pool_use(self.pool.id);
    }
}

impl MemPool {
    /// The pool's id, `(0, n)`.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// 1 for a fresh pool, 2 inside a [`scope`](MemPool::scope) [spec 14.2].
    pub fn use_count(&self) -> u64 {
        self.allocator.core().pools.use_count(self.id)
    }

    /// Routes requests of the calling thread, on any stream, into the pool while `f` runs (`use_mem_pool`).
    ///
    /// Meanwhile, for the whole device: frees that wait for other streams are deferred, and `empty_cache` leaves
    /// the default pools alone [spec 14.3]. A request that does not fit has cached memory released and is tried
    /// again, as outside; idle segments of this pool go as well, unless a graph was captured in it. (PyTorch
    /// gives up at once; so does `mirror_defects`.)
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) inside another scope of the same pool.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        let me = thread::current().id();
        let filter = Arc::new(move |_: Stream| thread::current().id() == me);
        self.allocator.core().begin_allocate(self.id, filter, Activity::Scope)?;
        let _routed = Routed { pool: self };
        Ok(f())
    }

    /// Lets requests of the default pools that would fail take this pool's cached memory (`use_on_oom`)
    /// [spec 4.4]. Not once a graph was captured in it: replays write there.
    pub fn set_use_on_oom(&self, on: bool) {
        // Fails only for a pool that is gone, and this one is here.
        let _ = self.allocator.core().set_use_on_oom(self.id, on);
    }

    /// Lets every request take a whole segment (`no_split`). It cannot be taken back [spec 14.2].
    pub fn set_no_split(&self) {
        // As above.
        let _ = self.allocator.core().set_no_split(self.id);
    }
}

impl Drop for MemPool {
    fn drop(&mut self) {
        // What could not be released stays cached and goes with a later `empty_cache`.
        let _ = self.allocator.core().destroy_pool(self.id);
    }
}

impl Allocator {
    /// A new private pool over the driver.
    pub fn create_pool(&self) -> MemPool {
        self.new_pool(None)
    }

    /// A new private pool whose segments come from `upstream`; cached, split and counted like any other, never
    /// expandable [spec 16.3].
    pub fn create_pool_with(&self, upstream: Arc<dyn Upstream>) -> MemPool {
        self.new_pool(Some(upstream))
    }

    fn new_pool(&self, upstream: Option<Arc<dyn Upstream>>) -> MemPool {
        let id = next_user_pool();
        // A fresh id cannot clash.
        let _ = self.core().create_pool(id, upstream);
        MemPool { allocator: self.clone(), id }
    }

    /// A fresh id for the pool of a graph capture, `(n, 0)` [spec 14.1].
    pub fn graph_pool_id(&self) -> PoolId {
        next_capture_pool()
    }

    /// Routes requests whose stream `accepts` takes into the pool, which is made if it is new
    /// (`beginAllocateToPool`) [spec 14.2]. `accepts` is called for each request, without a lock. It may be for a
    /// graph capture, so until the end nothing is released and nothing waited for; see
    /// [`begin_capture_pool`](Allocator::begin_capture_pool) and [`MemPool::scope`] for the two usual cases.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) if the pool is being allocated to already, or was released.
    pub fn begin_allocate_to_pool(
        &self,
        id: PoolId,
        accepts: impl Fn(Stream) -> bool + Send + Sync + 'static,
    ) -> Result<()> {
        self.core().begin_allocate(id, Arc::new(accepts), Activity::Unknown)
    }

    /// Ends what [`begin_allocate_to_pool`](Allocator::begin_allocate_to_pool) began. The use it counted stays
    /// until [`release_pool`](Allocator::release_pool).
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) if the pool is not being allocated to.
    pub fn end_allocate_to_pool(&self, id: PoolId) -> Result<()> {
        self.core().end_allocate(id)
    }

    /// One user of the pool less; when none is left, `empty_cache` and failing requests return its memory.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) for an unknown pool or one without users.
    pub fn release_pool(&self, id: PoolId) -> Result<()> {
        self.core().release_pool_use(id)
    }
}
