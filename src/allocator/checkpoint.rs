//! Checkpoints of private pools: what a runtime needs that replays graphs which share one pool [spec 14.7].

use super::Allocator;
use crate::engine::{PoolCheckpoint, PoolRestore};
use crate::error::Result;
use crate::observe::snapshot::PoolId;

impl Allocator {
    /// Remembers the layout of a private pool: where its blocks are and which of them are live. Idle segments of the
    /// pool stay from here on while it is in use.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool): `Could not find pool of id`; `Not expected to checkpoint freeable graph`
    /// once the last user has released it; a block that was freed while another stream still uses it.
    pub fn checkpoint_pool(&self, id: PoolId) -> Result<PoolCheckpoint> {
        self.core().checkpoint_pool(id)
    }

    /// Brings a pool back to a layout, as when a replayed graph has run instead of the code that was captured: every
    /// live block is freed, and the blocks that were live in the checkpoint are live again, with their rounded size
    /// as the requested one. Segments obtained since stay, free. The statistics, peaks included, see all of it.
    ///
    /// Only blocks known by address take part ([`alloc_raw`](Allocator::alloc_raw),
    /// [`Allocation::into_raw`](super::Allocation::into_raw)). No other thread may use the pool meanwhile.
    ///
    /// # Errors
    /// Those of [`checkpoint_pool`](Allocator::checkpoint_pool); a live block that belongs to an
    /// [`Allocation`](super::Allocation); a live block with recorded streams inside a capture or pool scope; a
    /// segment that is gone; `Invalid expandable segment structure during checkpoint restore`. Nothing is changed
    /// then. [`Error::Device`](crate::Error::Device) while it waits for recorded streams: the pool is empty then.
    #[track_caller]
    pub fn restore_pool(&self, checkpoint: &PoolCheckpoint) -> Result<PoolRestore> {
        self.core().restore_pool(checkpoint)
    }

    /// Whether the live blocks of a pool are exactly those at the given addresses [spec 14.8].
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool): `Could not find pool of id`.
    pub fn check_pool_live_allocations(&self, id: PoolId, addresses: &[u64]) -> Result<bool> {
        self.core().pool_live_is(id, addresses)
    }
}
