//! The end of an allocator: the last handle goes, blocks may still be out.
//!
//! Handles count as owners of the [`Core`]; blocks in clients' hands do not, so that a hit touches no shared
//! count. When the last handle goes while blocks are out, the core keeps itself alive (a forgotten `Arc`) until
//! the last block of the last shard has come back.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Core;
use super::parts::DEFAULT_POOL;
use crate::observe::snapshot::PoolKind;

/// Shards that still have blocks out, once the last handle is gone.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    open_shards: AtomicUsize,
}

impl Core {
    /// The last handle goes. Whether blocks are still out; the caller then forgets one strong count for them.
    pub(crate) fn close(&self) -> bool {
        let open = self.shards.with_all(|states| {
            let mut open = 0;
            for state in states.iter_mut() {
                state.closing = true;
                state.update_modes();
                open += usize::from(!state.is_done());
            }
            self.closing.open_shards.store(open, Ordering::Release);
            open > 0
        });
        // Who gave back a block that another stream uses, before the shard was closing, took the queues of events before it
        // let go of the shard, and needs the core until it lets go of them (`free_used_locked`).
        drop(self.events.state.lock());
        open
    }

    /// A closing shard's last block came back. Whether it was the last shard.
    pub(crate) fn shard_closed(&self) -> bool {
        self.closing.open_shards.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Drop for Core {
    /// Gives everything back. The driver may be gone already; nobody is left to hear of a failure.
    fn drop(&mut self) {
        let mut growth = std::mem::take(&mut *self.growth.lock());
        let mut slots: Vec<u32> = self.pools.all_slots();
        slots.push(DEFAULT_POOL);
        // The second time for what one failing call has kept back.
        for _attempt in 0..2 {
            let _ = self.synchronize_and_free_events(None);
            for &slot in &slots {
                for kind in [PoolKind::Large, PoolKind::Small] {
                    let _ = self.release_pool(&mut growth, slot, kind);
                }
            }
        }
        growth.reservations.free_addresses(&*self.device);
        self.destroy_events();
    }
}
