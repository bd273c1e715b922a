//! The same pattern with a second stream: handed out, [`record_stream`](crate::Allocation::record_stream), freed, and the
//! same asked for again once the event is done.
//!
//! The watched block stays watched while another stream uses it and while it waits for the event. If still nothing else
//! has happened on its shard when that is done, completing the free would restore the free set as it was before the
//! block was handed out: it is parked. What it does to the statistics is then the same as for a block that was parked
//! at once: a free in two halves moves the sums as one does, and no value passes what it was.

use super::{ShardState, Stage};
use crate::device::Stream;
use crate::observe::history::TraceAction;
use crate::pool::block::BlockId;

impl ShardState {
    /// Whether the block was handed out last. Where a free would not park it, another stream uses it.
    #[inline]
    pub(in crate::engine) fn is_watched(&self, id: BlockId) -> bool {
        self.lazy.block == id
    }

    /// Notes that `stream` uses the block, no pool being active, if that is the watched one.
    #[inline]
    pub(in crate::engine) fn watch_use(&mut self, id: BlockId, stream: Stream) -> bool {
        let watched = self.is_watched(id);
        if watched {
            self.lazy.stage = Stage::Used;
            self.add_use(id, stream, false);
        }
        watched
    }

    /// The first half of a free, if the block is the watched one and one other stream uses it: that stream, whose event
    /// the block waits for from now on.
    #[inline]
    pub(in crate::engine) fn free_watched(&mut self, id: BlockId) -> Option<Stream> {
        if !self.is_watched(id) {
            return None;
        }
        let stream = self.take_single_use(id)?;
        self.lazy.stage = Stage::Pending;
        self.record_half(TraceAction::FreeRequested, id);
        Some(stream)
    }

    /// The event is done that the block waits for: the second half, if it is the watched one.
    #[inline]
    pub(in crate::engine) fn park_pending(&mut self, id: BlockId) -> bool {
        if !self.is_watched(id) || self.lazy.stage != Stage::Pending {
            return false;
        }
        self.set_parked(id);
        self.slab[id].events = 0;
        self.record_half(TraceAction::FreeCompleted, id);
        true
    }

    #[inline]
    fn record_half(&mut self, action: TraceAction, id: BlockId) {
        if self.ring.is_some() {
            let block = &self.slab[id];
            let (addr, requested, site) = (block.addr, block.requested, block.site);
            self.record(action, addr, requested, site);
        }
    }
}
