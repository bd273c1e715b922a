//! What handing a block out and taking it back does to the statistics [spec 4.6, 5.2].

use super::counters::Change;
use super::shard::ShardState;
use crate::pool::block::{Block, BlockId};

/// The table of [spec 4.6].
#[inline(always)]
pub(super) fn hand_out_change(
    block: &Block,
    size: u64,
    split: bool,
    requested: u64,
    oversize: bool,
) -> Change {
    let (bytes, requested) = (size as i64, requested as i64);
    if block.is_expandable() {
        return Change { bytes, requested, split: 0, split_bytes: 0, oversize };
    }
    let was_split = block.is_split();
    // What was split was counted whole; what was not and is now, counts with its rest.
    let split_bytes = if was_split { -bytes } else { block.size as i64 - bytes };
    Change { bytes, requested, split: i64::from(split) - i64::from(was_split), split_bytes, oversize }
}

impl ShardState {
    /// What a free does to the statistics [spec 5.2]; the neighbours given are those it merges with.
    #[inline(always)]
    pub(super) fn free_change(&self, id: BlockId, prev: Option<BlockId>, next: Option<BlockId>) -> Change {
        let block = &self.slab[id];
        let bytes = block.size as i64;
        let oversize = block.size >= self.rules.max_split;
        let requested = block.requested as i64;
        if block.is_expandable() {
            return Change { bytes, requested, split: 0, split_bytes: 0, oversize };
        }
        let (mut count, mut absorbed) = (0, 0);
        let (mut before, mut after) = (block.prev, block.next);
        if let Some(prev) = prev {
            (count, absorbed, before) = (1, self.slab[prev].size, self.slab[prev].prev);
        }
        if let Some(next) = next {
            (count, absorbed, after) = (count + 1, absorbed + self.slab[next].size, self.slab[next].next);
        }
        let stays_split = BlockId::any(before, after);
        // Absorbed bytes were counted already: what is left is the block itself, or everything goes.
        let split_bytes = if stays_split { bytes } else { -(absorbed as i64) };
        Change { bytes, requested, split: i64::from(stays_split) - count, split_bytes, oversize }
    }
}
