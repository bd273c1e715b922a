//! One stream's part of the cache, and the steps that hand a block out and take it back [spec 4.6, 5.2].
//!
//! A block never changes its stream and free blocks are ordered by stream first, so that one lock per stream
//! gives the same placement as one lock per device.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use super::change::hand_out_change;
use super::counters::{Change, Counters, NeedCredit};
use super::lazy::Lazy;
use super::parts::{DEFAULT_POOL, PoolPart};
use super::shared::Shared;
use super::trace::{Recorded, Ring};
use super::uses::UseTable;
use crate::device::Stream;
use crate::observe::history::TraceAction;
use crate::observe::snapshot::PoolKind;
use crate::pool::block::{Block, BlockId, Slab, State};
use crate::pool::chain;
use crate::size::Rules;

/// What a client asks for, after rounding and routing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: u64,
    pub(crate) rounded: u64,
    pub(crate) kind: PoolKind,
    pub(crate) pool: u32,
    /// Expandable mode is active for this request [spec 13.1].
    pub(crate) expandable: bool,
    pub(crate) scope: u32,
    pub(crate) site: &'static Location<'static>,
}

/// A block in a client's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) block: BlockId,
    pub(crate) generation: u32,
    pub(crate) addr: u64,
}

/// How [`super::hit`] serves a shard's default pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the default rules, with nothing armed and no history.
    Ordinary,
    /// The same with expandable segments.
    Expandable,
    /// By the steps of this file, which suit all rules.
    General,
}

/// What a shard's lock guards.
#[derive(Debug)]
pub(crate) struct ShardState {
    pub(crate) stream: Stream,
    pub(crate) slab: Slab,
    pub(crate) counters: Counters,
    pub(crate) rules: Rules,
    pub(crate) ring: Option<Ring>,
    /// Garbage collection counts searches [spec 3.2 step 1].
    pub(crate) gc_armed: bool,
    /// The block handed out last; see [`super::lazy`].
    pub(super) lazy: Lazy,
    /// Searches were counted at some time.
    pub(super) gc_seen: bool,
    /// Whether blocks may be watched: searches are not counted, and the allocator is not ending.
    pub(super) watches: bool,
    pub(super) way: Way,
    /// Driver allocations in clients' hands, made while caching was off.
    pub(crate) uncached: u64,
    /// The last handle is gone: the last block to come back ends the allocator.
    pub(crate) closing: bool,
    /// Blocks filed as free, but for what a plain hit files.
    filings: u64,
    /// Streams recorded on blocks, by block.
    pub(super) uses: UseTable,
    pub(super) default: PoolPart,
    pub(super) private: HashMap<u32, PoolPart>,
}

impl ShardState {
    pub(crate) fn new(stream: Stream, rules: Rules, counters: Counters) -> Self {
        ShardState {
            stream,
            slab: Slab::new(),
            counters,
            rules,
            ring: None,
            gc_armed: false,
            lazy: Lazy::default(),
            gc_seen: false,
            watches: true,
            way: Way::General,
            uncached: 0,
            closing: false,
            filings: 0,
            uses: UseTable::default(),
            default: PoolPart::new(),
            private: HashMap::new(),
        }
    }

    #[inline]
    pub(crate) fn record(
        &mut self,
        action: TraceAction,
        addr: u64,
        size: u64,
        site: Option<&'static Location<'static>>,
    ) {
        self.record_as(Recorded::One(action), addr, size, site);
    }

    #[inline]
    pub(super) fn record_as(
        &mut self,
        what: Recorded,
        addr: u64,
        size: u64,
        site: Option<&'static Location<'static>>,
    ) {
        if self.ring.is_some() {
            self.push_record(what, addr, size, site);
        }
    }

    #[inline(never)]
    fn push_record(
        &mut self,
        what: Recorded,
        addr: u64,
        size: u64,
        site: Option<&'static Location<'static>>,
    ) {
        if let Some(ring) = &mut self.ring {
            ring.push(what, addr, size, site, self.counters.is_sole());
        }
    }

    /// The search of [spec 3.2]. The block stays in the free set.
    #[inline]
    pub(crate) fn find_free(&mut self, request: &Request, searches: &AtomicU64) -> Option<BlockId> {
        if self.gc_armed && request.kind == PoolKind::Large && request.pool == DEFAULT_POOL {
            searches.fetch_add(1, Ordering::Relaxed);
        }
        self.find_free_uncounted(request)
    }

    /// The same without counting: a repeated search of one request.
    #[inline]
    pub(crate) fn find_free_uncounted(&mut self, request: &Request) -> Option<BlockId> {
        let part = match request.pool {
            DEFAULT_POOL => &mut self.default,
            pool => self.private.get_mut(&pool)?,
        };
        let found = part.set(request.kind).candidate(&self.slab, request.rounded, request.expandable)?;
        if self.rules.forbids(request.rounded, self.slab[found].size) { None } else { Some(found) }
    }

    /// Hands out a free or held block: splits it where the rules say so, counts, records [spec 4.2 step 7].
    #[inline]
    pub(crate) fn hand_out(
        &mut self,
        id: BlockId,
        request: &Request,
        shared: &Shared,
    ) -> Result<Grant, NeedCredit> {
        let no_split = self.keeps_whole(request.pool);
        let block = &self.slab[id];
        let remainder = block.size - request.rounded;
        let split = !no_split
            && self.rules.should_split(request.kind, request.rounded, remainder, request.expandable);
        let size = if split { request.rounded } else { block.size };
        let was_free = block.state == State::Free;
        let (grant, change) = self.carve(id, size, request, shared)?;
        if was_free {
            self.watch(grant.block, request, &change, split);
        }
        Ok(grant)
    }

    /// Whether every request to the pool takes a whole segment [spec 14.4].
    #[inline]
    pub(super) fn keeps_whole(&mut self, pool: u32) -> bool {
        pool != DEFAULT_POOL && self.part(pool).no_split
    }

    /// Hands out the first `size` bytes of a free or held block, whatever the split rule says.
    #[inline]
    pub(super) fn carve(
        &mut self,
        id: BlockId,
        size: u64,
        request: &Request,
        shared: &Shared,
    ) -> Result<(Grant, Change), NeedCredit> {
        let block = &self.slab[id];
        let (split, free) = (size < block.size, block.state == State::Free);
        let (pool, kind) = (block.pool, block.kind);
        let change = hand_out_change(block, size, split, request.bytes, size >= self.rules.max_split);
        self.counters.hand_out(kind, &change)?;

        let taken = match (free, split) {
            (true, true) => self.with_set(pool, kind, |set, slab| set.cut(slab, id, size)),
            (true, false) => {
                self.with_set(pool, kind, |set, slab| set.remove(slab, id));
                id
            }
            (false, true) => self.cut_held(id, size),
            (false, false) => id,
        };
        if split {
            self.note_insertion(id, shared);
        }
        let block = &mut self.slab[taken];
        block.state = State::Allocated;
        block.requested = request.bytes;
        block.scope = request.scope;
        block.site = Some(request.site);
        block.generation = block.generation.wrapping_add(u32::from(!split));
        let grant = Grant { block: taken, generation: block.generation, addr: block.addr };
        self.record(TraceAction::Alloc, grant.addr, request.bytes, Some(request.site));
        Ok((grant, change))
    }

    /// Cuts the first `size` bytes off a block that is in no set, and files the rest.
    #[cold]
    fn cut_held(&mut self, id: BlockId, size: u64) -> BlockId {
        let front = chain::split_front(&mut self.slab, id, size);
        let (pool, kind) = (self.slab[id].pool, self.slab[id].kind);
        self.with_set(pool, kind, |set, slab| set.insert(slab, id));
        front
    }

    /// Follows a change of what is ruled, observed or counted.
    pub(super) fn update_modes(&mut self) {
        self.gc_seen |= self.gc_armed;
        self.watches = !self.gc_armed && !self.closing;
        let plain = self.watches && !self.gc_seen && self.ring.is_none() && self.rules.allow_every_block();
        self.way = match (plain, self.rules.expandable) {
            (false, _) => Way::General,
            (true, false) => Way::Ordinary,
            (true, true) => Way::Expandable,
        };
    }

    /// Files a block in its free set.
    #[inline]
    pub(crate) fn insert_free(&mut self, id: BlockId, shared: &Shared) {
        let (pool, kind) = (self.slab[id].pool, self.slab[id].kind);
        self.with_set(pool, kind, |set, slab| set.insert(slab, id));
        self.note_insertion(id, shared);
    }

    /// A block was filed.
    #[inline]
    fn note_insertion(&mut self, id: BlockId, shared: &Shared) {
        self.filings += 1;
        // While it is 0, so are all bases, and their cache lines are left alone.
        let searches = shared.large_searches.load(Ordering::Relaxed);
        if searches != 0 {
            self.set_age(id, searches);
        }
    }

    #[cold]
    fn set_age(&mut self, id: BlockId, searches: u64) {
        let block = &mut self.slab[id];
        if block.pool == DEFAULT_POOL && block.kind == PoolKind::Large {
            block.gc_base = searches;
        }
    }

    /// Takes a block out of its free set; it is `Held` then.
    #[inline]
    pub(crate) fn remove_free(&mut self, id: BlockId) {
        let (pool, kind) = (self.slab[id].pool, self.slab[id].kind);
        self.with_set(pool, kind, |set, slab| set.remove(slab, id));
    }

    /// Whether nothing is in clients' hands.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.live() == 0 && self.uncached == 0
    }

    /// Blocks in clients' hands.
    pub(crate) fn live(&self) -> u64 {
        self.counters.live() - u64::from(self.is_watched_back())
    }

    /// Moves with every change of the free sets, so that a slow path sees whether to search again.
    pub(super) fn epoch(&self) -> u64 {
        // Every hit hands out a block or takes one back.
        let hits = 2 * self.counters.handed_out() as u64;
        (self.filings + hits).wrapping_sub(self.counters.live())
    }

    /// The live block behind a handle.
    pub(crate) fn live_block(&self, id: BlockId, generation: u32) -> Option<&Block> {
        self.slab.get(id).filter(|b| b.generation == generation && b.state == State::Allocated)
    }

    /// Frees a block that no other stream uses: both halves at once.
    #[inline]
    pub(crate) fn free_now(&mut self, id: BlockId, shared: &Shared) -> Result<(), NeedCredit> {
        self.settle_lazy(shared);
        let (prev, next) = self.free_neighbours(id);
        let change = self.free_change(id, prev, next);
        let block = &self.slab[id];
        let (kind, addr, requested, site) = (block.kind, block.addr, block.requested, block.site);
        self.counters.free(kind, &change)?;
        self.leave_scopes(id, shared);
        self.record_as(Recorded::Free, addr, requested, site);
        self.file_freed(id, prev, next, shared);
        Ok(())
    }

    /// The first half of a free [spec 5.1]: the block is no longer a client's.
    pub(crate) fn request_free(&mut self, id: BlockId, shared: &Shared) {
        self.count_pending(id);
        let block = &self.slab[id];
        let (addr, requested, site) = (block.addr, block.requested, block.site);
        self.leave_scopes(id, shared);
        self.record(TraceAction::FreeRequested, addr, requested, site);
    }

    /// A block that is no longer a client's counts for no scope.
    #[inline]
    fn leave_scopes(&mut self, id: BlockId, shared: &Shared) {
        let block = &mut self.slab[id];
        if block.scope != 0 {
            shared.scopes.release(std::mem::take(&mut block.scope), block.size);
        }
    }

    /// The second half [spec 5.2]: merges the block with its free neighbours and files it.
    pub(crate) fn complete_free(&mut self, id: BlockId, shared: &Shared) -> Result<(), NeedCredit> {
        let (prev, next) = self.free_neighbours(id);
        let change = self.free_change(id, prev, next);
        let block = &self.slab[id];
        let (kind, addr, requested, site) = (block.kind, block.addr, block.requested, block.site);
        self.counters.complete_free(kind, &change)?;
        self.record(TraceAction::FreeCompleted, addr, requested, site);
        self.file_freed(id, prev, next, shared);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn free_neighbours(&self, id: BlockId) -> (Option<BlockId>, Option<BlockId>) {
        (chain::prev_in(&self.slab, id, State::Free), chain::next_in(&self.slab, id, State::Free))
    }

    #[inline]
    pub(super) fn file_freed(
        &mut self,
        id: BlockId,
        prev: Option<BlockId>,
        next: Option<BlockId>,
        shared: &Shared,
    ) {
        let block = &mut self.slab[id];
        (block.site, block.state) = (None, State::Free);
        let (pool, kind) = (block.pool, block.kind);
        self.with_set(pool, kind, |set, slab| set.file_merged::<true>(slab, id, prev, next));
        self.note_insertion(id, shared);
    }

    /// Lets a block swallow neighbours that are in the free set.
    pub(crate) fn merge_free(&mut self, id: BlockId, prev: Option<BlockId>, next: Option<BlockId>) {
        let (pool, kind) = (self.slab[id].pool, self.slab[id].kind);
        self.with_set(pool, kind, |set, slab| set.merge(slab, id, prev, next));
    }
}
