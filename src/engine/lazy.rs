//! The commonest pattern, a block freed and the same asked for again, without touching any structure.
//!
//! When the block that was handed out last comes back and nothing else has happened on its shard since, freeing it
//! would restore the free set as it was before, and asking for the same size again would choose and cut the same
//! block. So neither is done: the block is parked, and unparked by the next equal request. Counters are brought up
//! to date, and a parked block is filed, before anything else is done or seen on the shard
//! ([`ShardState::settle_lazy`], called by [`Shard::lock`](super::shards::Shard::lock)).

mod used;

use super::counters::Change;
use super::credit::Owed;
use super::shard::{Grant, Request, ShardState};
use super::shared::Shared;
use super::trace::Recorded;
use crate::observe::history::TraceAction;
use crate::pool::block::{Block, BlockId};

/// The block handed out last, while nothing else has happened on its shard.
#[derive(Debug)]
pub(crate) struct Lazy {
    /// `NONE`: there is no such block.
    block: BlockId,
    /// `Out` while there is no block.
    stage: Stage,
    /// It was cut off the block that follows it, whose record keeps the last requested size [spec 3.4].
    cut: bool,
    /// The request's mode.
    expandable: bool,
    /// What the next request is compared with; known from the first time on that it is parked.
    pool: u32,
    rounded: u64,
    /// Requested bytes as the counters know them, and the most that its statistics have room for.
    most: u64,
    /// Times it was parked and unparked, and the sum of what was requested then. 0 while there is no block.
    pairs: i64,
    requested: i64,
}

/// Where the watched block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// With a client.
    Out,
    /// The same, and another stream uses it: a free does not park it.
    Used,
    /// Freed, as far as clients know.
    Parked,
    /// Freed and counted as that, but not filed yet: another shard borrowed its credit.
    Counted,
    /// Freed, but another stream uses it; see [`used`].
    Pending,
}

impl Default for Lazy {
    fn default() -> Self {
        Lazy {
            block: BlockId::NONE,
            stage: Stage::Out,
            cut: false,
            expandable: false,
            pool: 0,
            rounded: 0,
            most: 0,
            pairs: 0,
            requested: 0,
        }
    }
}

impl ShardState {
    /// A block was just handed out of the free set, and nothing is watched.
    #[inline]
    pub(super) fn watch(&mut self, block: BlockId, request: &Request, change: &Change, cut: bool) {
        if self.watches && request.scope == 0 && !change.oversize {
            let lazy = &mut self.lazy;
            (lazy.block, lazy.stage) = (block, Stage::Out);
            (lazy.cut, lazy.expandable) = (cut, request.expandable);
        }
    }

    /// Parks the block if it is the watched one.
    #[inline]
    pub(super) fn park(&mut self, id: BlockId) -> bool {
        if self.lazy.block != id || self.lazy.stage != Stage::Out {
            return false;
        }
        self.set_parked(id);
        if self.ring.is_some() {
            let block = &self.slab[id];
            let (addr, requested, site) = (block.addr, block.requested, block.site);
            self.record_as(Recorded::Free, addr, requested, site);
        }
        true
    }

    #[inline]
    fn set_parked(&mut self, id: BlockId) {
        let (lazy, block) = (&mut self.lazy, &self.slab[id]);
        lazy.stage = Stage::Parked;
        if lazy.pairs == 0 {
            (lazy.pool, lazy.most) = (block.pool, block.requested);
            lazy.rounded = self.rules.round_size(block.requested);
        }
    }

    /// Hands the parked block out again, if the request is like the one before.
    #[inline]
    pub(super) fn unpark(&mut self, request: &Request) -> Option<Grant> {
        let lazy = &mut self.lazy;
        let same = lazy.stage == Stage::Parked
            && lazy.rounded == request.rounded
            && lazy.pool == request.pool
            && lazy.expandable == request.expandable
            && request.bytes <= lazy.most
            && request.scope == 0;
        if !same {
            return None;
        }
        lazy.stage = Stage::Out;
        lazy.pairs += 1;
        lazy.requested += request.bytes as i64;
        let block = &mut self.slab[lazy.block];
        let before = std::mem::replace(&mut block.requested, request.bytes);
        block.generation = block.generation.wrapping_add(1);
        block.site = Some(request.site);
        let grant = Grant { block: lazy.block, generation: block.generation, addr: block.addr };
        let (rest, cut) = (block.next, lazy.cut);
        if cut {
            self.slab[rest].requested = before;
        }
        self.record(TraceAction::Alloc, grant.addr, request.bytes, Some(request.site));
        Some(grant)
    }

    /// Whether the watched block is back, which the counters don't know yet.
    pub(super) fn is_watched_back(&self) -> bool {
        !self.lazy.block.is_none() && matches!(self.lazy.stage, Stage::Parked | Stage::Pending)
    }

    /// What the counters need when the watched block comes back for good.
    pub(super) fn owed(&self) -> Owed {
        let lazy = &self.lazy;
        if lazy.block.is_none() || lazy.stage == Stage::Counted {
            return Owed::default();
        }
        Owed::when(self.slab[lazy.block].kind, &self.change_back(lazy.block))
    }

    /// What the watched block's way back does to the statistics: every value goes back to where it was before the
    /// hand-out, the last thing that happened.
    fn change_back(&self, id: BlockId) -> Change {
        let (prev, next) = self.free_neighbours(id);
        self.free_change(id, prev, next)
    }

    /// Brings the counters up to date, files a parked block and makes a pending one that; nothing is watched then.
    #[inline]
    pub(crate) fn settle_lazy(&mut self, shared: &Shared) {
        // Without a block neither is the case.
        if self.lazy.stage != Stage::Out || self.lazy.pairs > 0 {
            self.settle_watched(shared);
        }
        self.lazy.block = BlockId::NONE;
    }

    #[inline(never)]
    fn settle_watched(&mut self, shared: &Shared) {
        debug_assert!(!self.lazy.block.is_none(), "{:?}", self.lazy);
        self.count_pairs();
        self.count_parked();
        let Lazy { block: id, stage, .. } = std::mem::take(&mut self.lazy);
        match stage {
            Stage::Out | Stage::Used | Stage::Parked => {}
            Stage::Pending => self.count_pending(id),
            Stage::Counted => {
                let (prev, next) = self.free_neighbours(id);
                self.file_freed(id, prev, next, shared);
            }
        }
    }

    fn count_pairs(&mut self) {
        let Lazy { block, pairs, most, requested: sum, .. } = self.lazy;
        if pairs == 0 {
            return;
        }
        let Block { kind, requested, .. } = self.slab[block];
        let change = self.change_back(block);
        self.counters.repeat(kind, &change, pairs, sum, requested as i64 - most as i64);
        (self.lazy.pairs, self.lazy.requested, self.lazy.most) = (0, 0, requested);
    }

    /// Counts a parked block as free. Whoever comes next on the shard files it; asking for the same again is no
    /// shortcut any more.
    pub(super) fn count_parked(&mut self) {
        let Lazy { block: id, stage: Stage::Parked, .. } = self.lazy else { return };
        self.count_pairs();
        let freed = self.counters.free(self.slab[id].kind, &self.change_back(id));
        debug_assert!(freed.is_ok(), "no credit can be missing");
        self.lazy.stage = Stage::Counted;
    }
}
