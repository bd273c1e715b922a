//! free and record_stream [spec 5, 6.1].

use super::Core;
use super::addresses::Given;
use super::shard::ShardState;
use super::shards::Shard;
use super::uses::Uses;
use crate::device::{DeviceError, DeviceResult, Event, Stream};
use crate::pool::block::BlockId;

/// What is left to do once the shard's lock is gone.
pub(crate) enum Freed {
    /// Nothing.
    Done,
    /// The statistics need every shard's lock.
    NeedsCredit,
    /// Another stream uses the block, which is pending.
    UsedBy(Stream),
    /// The same for several, or for uses of another kind. Boxed, so that what every free returns is small.
    HasUses(Box<Uses>),
    /// It came from the driver, past the cache.
    Uncached,
}

impl Core {
    /// Frees a live block.
    #[inline]
    pub(crate) fn free(&self, shard: &Shard, id: BlockId, addr: u64) -> DeviceResult<()> {
        let freed = self.free_locked(&mut shard.lock_hot(), id);
        match freed {
            Freed::Done => Ok(()),
            left => self.finish_free(shard, id, addr, left),
        }
    }

    /// Frees a block that was given out by address; `false` if none is known there.
    #[inline]
    pub(crate) fn free_address(&self, addr: u64) -> DeviceResult<bool> {
        let Some(Given { shard, mut state, block, entry }) = self.given(addr) else { return Ok(false) };
        entry.clear();
        let freed = self.free_locked(&mut state, block);
        drop(state);
        match freed {
            Freed::Done => {}
            Freed::UsedBy(stream) => self.free_used(shard, block, stream)?,
            left => self.finish_free(shard, block, addr, left)?,
        }
        Ok(true)
    }

    /// The part of a free that needs the shard's lock.
    #[inline]
    pub(crate) fn free_locked(&self, state: &mut ShardState, id: BlockId) -> Freed {
        if !id.is_none() {
            if state.park(id) {
                return Freed::Done;
            }
            if let Some(stream) = state.free_watched(id) {
                return Freed::UsedBy(stream);
            }
        }
        self.free_unwatched(state, id)
    }

    #[inline(never)]
    fn free_unwatched(&self, state: &mut ShardState, id: BlockId) -> Freed {
        if id.is_none() {
            state.uncached -= 1;
            return Freed::Uncached;
        }
        state.settle_lazy(&self.shared);
        if state.free_at_once(id, &self.shared) {
            return Freed::Done;
        }
        if state.slab[id].has_uses {
            state.request_free(id, &self.shared);
            return match state.take_single_use(id) {
                Some(stream) => Freed::UsedBy(stream),
                None => Freed::HasUses(Box::new(state.take_uses(id, false))),
            };
        }
        state.request_free(id, &self.shared);
        Freed::NeedsCredit
    }

    /// The rest of a free, without the shard's lock.
    #[cold]
    pub(crate) fn finish_free(
        &self,
        shard: &Shard,
        block: BlockId,
        addr: u64,
        left: Freed,
    ) -> DeviceResult<()> {
        match left {
            Freed::Done => Ok(()),
            Freed::Uncached => match self.device.free(addr) {
                // The driver has taken it back already.
                Err(DeviceError::ShuttingDown { .. }) => Ok(()),
                outcome => outcome,
            },
            Freed::NeedsCredit => {
                self.complete(shard, block);
                Ok(())
            }
            Freed::UsedBy(stream) => self.free_used(shard, block, stream),
            Freed::HasUses(uses) => self.free_with_uses(shard, block, *uses),
        }
    }

    /// Notes that `stream` uses a live block too.
    pub(crate) fn record_stream(&self, shard: &Shard, id: BlockId, stream: Stream) {
        if stream != shard.stream {
            self.note_use(&mut shard.lock_hot(), id, stream);
        }
    }

    /// The same for one that was given out by address; nothing for one from past the cache.
    #[inline]
    pub(crate) fn record_stream_given(&self, mut given: Given<'_>, stream: Stream) {
        if stream != given.shard.stream && !given.block.is_none() {
            self.note_use(&mut given.state, given.block, stream);
        }
    }

    #[inline]
    fn note_use(&self, state: &mut ShardState, id: BlockId, stream: Stream) {
        let during_activity = self.any_pool_active();
        if during_activity || !state.watch_use(id, stream) {
            self.note_unwatched_use(state, id, stream, during_activity);
        }
    }

    #[inline(never)]
    fn note_unwatched_use(&self, state: &mut ShardState, id: BlockId, stream: Stream, during_activity: bool) {
        // The block may be the one that a free would park.
        state.settle_lazy(&self.shared);
        state.add_use(id, stream, during_activity);
    }
}

impl Shard {
    /// Notes that a live block may be used until `event`, which was recorded on `stream`. The stream is only a
    /// name here, so that it may be gone by the time of the free. The event is the allocator's from now on.
    pub(crate) fn await_event(&self, id: BlockId, stream: Stream, event: Event) {
        let mut state = self.lock();
        state.slab[id].has_uses = true;
        state.uses.entry(id).recorded.push((stream, event));
    }

    /// Takes back that `stream` uses a block: an event that the block awaits stands for it.
    pub(crate) fn forget_stream(&self, id: BlockId, stream: Stream) {
        if let Some(uses) = self.lock().uses.known(id) {
            uses.streams.retain(|known| *known != stream);
            uses.during_activity.retain(|known| *known != stream);
        }
    }
}
