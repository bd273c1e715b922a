//! Graph captures with a private pool [spec 14.5].

use std::ops::{Deref, DerefMut};

use super::Allocator;
use crate::device::Stream;
use crate::engine::next_capture_pool;
use crate::error::Result;
use crate::observe::snapshot::PoolId;

/// A capture whose requests go to a private pool; from [`Allocator::begin_capture_pool`].
///
/// Dropping it ends the routing as well, and gives the pool up: right for a capture that has failed.
#[derive(Debug)]
#[must_use = "dropping it ends the capture's use of the pool; keep the pool that `end` returns next to the graph"]
pub struct CaptureScope {
    /// `None` once it has ended.
    pool: Option<GraphPool>,
    id: PoolId,
    origin: Stream,
}

/// One graph's hold on the memory that it uses. Drop it after the graph, or let a [`PooledGraph`] do that.
///
/// While any graph or [`MemPool`](super::MemPool) holds a pool, all its memory stays reserved, and blocks freed in it
/// serve only captures into the same pool: a replay finds its addresses unchanged, and nobody else's data there.
/// When the last hold is gone, the memory goes back with the next `empty_cache` or request that does not fit.
#[derive(Debug)]
pub struct GraphPool {
    allocator: Allocator,
    id: PoolId,
}

/// A graph together with its memory. The graph goes first.
#[derive(Debug)]
pub struct PooledGraph<G> {
    // Fields are dropped in this order.
    graph: G,
    pool: GraphPool,
}

impl Allocator {
    /// Announces the capture of a CUDA graph on `stream`: from here to [`CaptureScope::end`], requests on streams
    /// that take part in that capture go to a private pool [spec 14.5]. Begin the driver's capture right after,
    /// and end it right before. The stream must exist until then.
    ///
    /// `pool` names the pool of an earlier graph or of a [`MemPool`](super::MemPool) to share; graphs that share one
    /// must not run at the same time, for they use each other's freed memory. `None` makes a new pool.
    ///
    /// Meanwhile the device waits for nothing and gives nothing back, so that the capture survives: frees of blocks
    /// that other streams use are put off, `empty_cache` does nothing, and a request that does not fit fails at
    /// once [spec 14.3].
    ///
    /// ```
    /// use gpucache::Allocator;
    /// use gpucache::device::sim::SimDevice;
    ///
    /// let gpu = SimDevice::new(1 << 30);
    /// let allocator = Allocator::simulated(gpu.clone());
    /// let stream = gpu.create_stream();
    /// let scope = allocator.begin_capture_pool(stream, None)?;
    /// gpu.begin_capture(stream)?;
    /// let scratch = allocator.alloc_on(1 << 20, stream)?;
    /// gpu.launch(stream);
    /// drop(scratch); // the graph keeps its memory
    /// let graph = gpu.end_capture(stream)?;
    /// let graph = scope.end()?.keep_with(graph);
    /// assert_eq!(graph.nodes.len(), 1);
    /// # Ok::<(), gpucache::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) for the default stream, for a stream that takes part in a capture
    /// announced before, for a pool that another capture or scope is using right now, and for one that was
    /// released; [`Error::Device`](crate::Error::Device) if the stream's last capture has failed and was not ended.
    pub fn begin_capture_pool(&self, stream: Stream, pool: Option<PoolId>) -> Result<CaptureScope> {
        let id = pool.unwrap_or_else(next_capture_pool);
        self.core().begin_capture(stream, id)?;
        Ok(CaptureScope { pool: Some(GraphPool { allocator: self.clone(), id }), id, origin: stream })
    }
}

impl CaptureScope {
    /// The pool's id, to share it with later captures.
    pub fn pool_id(&self) -> PoolId {
        self.id
    }

    /// Which streams take part in the capture, for other allocators that serve it: see
    /// [`PinnedAllocator::begin_allocate_to_pool`](super::PinnedAllocator::begin_allocate_to_pool).
    pub fn accepts(&self) -> impl Fn(Stream) -> bool + Send + Sync + use<> {
        let filter = self.pool.as_ref().map(|pool| pool.allocator.core().capture_filter(self.origin));
        move |stream| filter.as_ref().is_some_and(|takes| takes(stream))
    }

    /// Ends the routing. What it returns holds the memory for the graph.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) if somebody ended the routing by the pool's id before.
    pub fn end(mut self) -> Result<GraphPool> {
        // Always there: only this function and the drop take it.
        let ended = || crate::Error::Pool("the capture's scope has ended already".into());
        let pool = self.pool.take().ok_or_else(ended)?;
        pool.allocator.core().end_allocate(self.id)?;
        Ok(pool)
    }
}

impl Drop for CaptureScope {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            // Fails only if somebody ended the routing by the pool's id.
            let _ = pool.allocator.core().end_allocate(self.id);
        }
    }
}

impl GraphPool {
    /// The pool's id, to share it with later captures.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Ties the pool to its graph, so that they go in the right order.
    pub fn keep_with<G>(self, graph: G) -> PooledGraph<G> {
        PooledGraph { graph, pool: self }
    }
}

impl Drop for GraphPool {
    fn drop(&mut self) {
        // Fails only if somebody released this hold by the pool's id.
        let _ = self.allocator.core().release_pool_use(self.id);
    }
}

impl<G> PooledGraph<G> {
    /// The memory's pool.
    pub fn pool(&self) -> &GraphPool {
        &self.pool
    }
}

impl<G> Deref for PooledGraph<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.graph
    }
}

impl<G> DerefMut for PooledGraph<G> {
    fn deref_mut(&mut self) -> &mut G {
        &mut self.graph
    }
}
