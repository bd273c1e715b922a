//! free and record_stream [spec 5, 6.1].

use std::sync::Arc;

use super::events::BlockRef;
use super::shard::ShardState;
use super::shards::Shard;
use super::{Core, attention};
use crate::device::{DeviceResult, Stream};
use crate::pool::block::BlockId;

/// What is left to do once the shard's lock is gone.
pub(crate) enum Freed {
    /// Nothing.
    Done,
    /// The statistics need every shard's lock.
    NeedsCredit,
    /// Other streams use the block.
    HasUses,
}

impl Core {
    /// Frees a live block.
    #[inline]
    pub(crate) fn free(&self, shard: &Arc<Shard>, id: BlockId) -> DeviceResult<()> {
        let freed = self.free_locked(&mut shard.state.lock(), id);
        match freed {
            Freed::Done => Ok(()),
            left => self.finish_free(shard, id, &left),
        }
    }

    /// The part of a free that needs the shard's lock.
    #[inline]
    pub(crate) fn free_locked(&self, state: &mut ShardState, id: BlockId) -> Freed {
        state.request_free(id, &self.shared);
        if state.slab[id].has_uses {
            return Freed::HasUses;
        }
        match state.complete_free(id, &self.shared) {
            Ok(()) => Freed::Done,
            Err(_) => Freed::NeedsCredit,
        }
    }

    /// The rest of a free, without the shard's lock.
    #[cold]
    pub(crate) fn finish_free(&self, shard: &Arc<Shard>, block: BlockId, left: &Freed) -> DeviceResult<()> {
        let block = BlockRef { shard: shard.clone(), block };
        match left {
            Freed::Done => Ok(()),
            Freed::NeedsCredit => {
                self.complete(&block);
                Ok(())
            }
            Freed::HasUses => self.free_with_uses(block),
        }
    }

    /// Notes that `stream` uses a live block too.
    pub(crate) fn record_stream(&self, shard: &Shard, id: BlockId, stream: Stream) {
        if stream == shard.stream {
            return;
        }
        let active = self.attention() & attention::POOLS != 0;
        let mut state = shard.state.lock();
        state.slab[id].has_uses = true;
        let uses = state.uses.entry(id).or_default();
        if let Err(at) = uses.streams.binary_search(&stream) {
            uses.streams.insert(at, stream);
        }
        if active && !uses.during_activity.contains(&stream) {
            uses.during_activity.push(stream);
        }
    }
}
