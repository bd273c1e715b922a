//! free and record_stream [spec 5, 6.1].

use super::shard::ShardState;
use super::shards::Shard;
use super::uses::Uses;
use super::{Core, attention};
use crate::device::{DeviceError, DeviceResult, Event, Stream};
use crate::pool::block::BlockId;

/// What is left to do once the shard's lock is gone.
pub(crate) enum Freed {
    /// Nothing.
    Done,
    /// The statistics need every shard's lock.
    NeedsCredit,
    /// Other streams use the block, which is pending.
    HasUses(Uses),
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

    /// The part of a free that needs the shard's lock.
    #[inline]
    pub(crate) fn free_locked(&self, state: &mut ShardState, id: BlockId) -> Freed {
        if id.is_none() {
            state.uncached -= 1;
            return Freed::Uncached;
        }
        if state.park(id) {
            return Freed::Done;
        }
        state.settle_lazy(&self.shared);
        if state.free_plain(id) {
            return Freed::Done;
        }
        self.free_other(state, id)
    }

    /// The same for blocks that are no plain ones.
    #[inline(never)]
    fn free_other(&self, state: &mut ShardState, id: BlockId) -> Freed {
        if state.slab[id].has_uses {
            state.request_free(id, &self.shared);
            return Freed::HasUses(state.take_uses(id, false));
        }
        if state.free_now(id, &self.shared).is_ok() {
            return Freed::Done;
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
            Freed::HasUses(uses) => self.free_with_uses(shard, block, uses),
        }
    }

    /// Notes that `stream` uses a live block too.
    pub(crate) fn record_stream(&self, shard: &Shard, id: BlockId, stream: Stream) {
        if stream == shard.stream {
            return;
        }
        let active = self.attention() & attention::POOLS != 0;
        let mut state = shard.lock();
        state.add_use(id, stream, active);
    }
}

impl Shard {
    /// Notes that a live block may be used until `event`, which was recorded on `stream`. The stream is only a
    /// name here, so that it may be gone by the time of the free. The event is the allocator's from now on.
    pub(crate) fn await_event(&self, id: BlockId, stream: Stream, event: Event) {
        let mut state = self.lock();
        state.slab[id].has_uses = true;
        state.uses.entry(id).or_default().recorded.push((stream, event));
    }

    /// Takes back that `stream` uses a block: an event that the block awaits stands for it.
    pub(crate) fn forget_stream(&self, id: BlockId, stream: Stream) {
        if let Some(uses) = self.lock().uses.get_mut(&id) {
            uses.streams.retain(|known| *known != stream);
            uses.during_activity.retain(|known| *known != stream);
        }
    }
}
