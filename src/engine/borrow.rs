//! `borrow_across_streams`: an idle block of another stream, ordered by an event, before the cache grows.

use std::sync::Arc;

use super::Core;
use super::shard::{Grant, Request};
use super::shards::Shard;
use crate::device::{DeviceError, DeviceResult};
use crate::error::Result;
use crate::pool::block::{Block, State};

impl Core {
    /// Moves the best-fitting idle whole segment of another stream to the request's stream and serves the
    /// request from it. Later work of the borrower waits for what the lender has queued so far.
    ///
    /// Only default pools lend, and only ordinary segments: an expandable one grows for its own stream. While a pool
    /// is active nobody borrows, because the event would tie a stream under capture to another one.
    pub(super) fn borrow(&self, shard: &Arc<Shard>, request: &Request) -> Result<Option<Grant>> {
        if request.expandable || self.any_pool_active() {
            return Ok(None);
        }
        let Some((lender, addr, size)) = self.best_lender(shard, request) else { return Ok(None) };
        let Some(segment) = take_segment(&lender, request, addr, size) else { return Ok(None) };
        // Ordered after it was taken, so that nothing the lender did with it comes later.
        let ordered = self.order(&lender, shard);
        let home = if ordered.is_ok() { shard } else { &lender };
        {
            let mut state = home.lock();
            let id = state.slab.insert(segment);
            state.insert_free(id, &self.shared);
        }
        match ordered {
            Ok(()) => Ok(self.search_again(shard, request)),
            Err(error @ DeviceError::ShuttingDown { .. }) => Err(error.into()),
            // Nobody needs to borrow: the cache can still grow. The lender's stream may have been destroyed, and its
            // segments would stand in the way of every request.
            Err(_) => Ok(None),
        }
    }

    /// Lets later work of the borrower wait for what the lender has queued.
    fn order(&self, lender: &Shard, borrower: &Shard) -> DeviceResult<()> {
        let event = self.device.event_create()?;
        let ordered = self
            .device
            .event_record(event, lender.stream)
            .and_then(|()| self.device.stream_wait_event(borrower.stream, event));
        // The driver keeps what the wait needs.
        let destroyed = self.device.event_destroy(event);
        ordered.and(destroyed)
    }

    fn best_lender(&self, shard: &Shard, request: &Request) -> Option<(Arc<Shard>, u64, u64)> {
        let mut best: Option<(Arc<Shard>, u64, u64)> = None;
        for other in self.shards.by_stream() {
            if other.stream == shard.stream {
                continue;
            }
            let state = other.lock();
            let free = state.free_blocks(request.pool, request.kind);
            let fits = free.into_iter().find(|(_, b)| {
                b.size >= request.rounded
                    && !b.is_split()
                    && !b.is_expandable()
                    && !state.rules.forbids(request.rounded, b.size)
            });
            let found = fits.map(|(_, b)| (b.addr, b.size));
            drop(state);
            if let Some((addr, size)) = found
                && best.as_ref().is_none_or(|(_, _, least)| size < *least)
            {
                best = Some((other, addr, size));
            }
        }
        best
    }
}

/// Takes a whole idle segment out of its shard, unless it was taken meanwhile.
fn take_segment(lender: &Shard, request: &Request, addr: u64, size: u64) -> Option<Block> {
    let mut state = lender.lock();
    let same = |b: &Block| b.addr == addr && b.size == size && b.state == State::Free && !b.is_split();
    let id = state.free_blocks(request.pool, request.kind).into_iter().find(|(_, b)| same(b))?.0;
    state.remove_free(id);
    let mut block = Block::segment(addr, size, request.pool, request.kind, false);
    block.segment_site = state.slab[id].segment_site;
    state.slab.remove(id);
    Some(block)
}
