//! The plain hit: a block of the default pool, under the default rules or with expandable segments, with nothing armed
//! and no history.
//!
//! That is what nearly every call is, so it goes without the questions whose answers are known here. The steps are
//! those of [`super::shard`], which serves everything else under the same lock; each way takes the others' blocks.
//!
//! What the steps depend on (which pool, whether the block is split, which neighbours are free) is asked once, and there
//! is code for each answer: a quarter of the instructions asked again or made up for what could not be the case.

use std::panic::Location;

use super::change::hand_out_change;
use super::counters::Change;
use super::parts::DEFAULT_POOL;
use super::private::Route;
use super::shard::{Grant, Request, ShardState, Way};
use super::shards::{Locked, Shard};
use super::shared::Shared;
use crate::observe::snapshot::PoolKind;
use crate::pool::block::{BlockId, State};
use crate::size::Rules;

/// A block that was handed out, in two words: they are returned in registers. What goes through memory and is copied
/// at once, in other units than it was written in, costs as much as a third of a hit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handed {
    /// 0: none was.
    addr: u64,
    block: u64,
}

impl Handed {
    const NONE: Handed = Handed { addr: 0, block: 0 };

    #[inline]
    fn new(grant: &Grant) -> Self {
        Handed { addr: grant.addr, block: u64::from(grant.generation) << 32 | u64::from(grant.block.0) }
    }

    #[inline]
    pub(super) fn grant(self) -> Option<Grant> {
        let (block, generation) = (BlockId(self.block as u32), (self.block >> 32) as u32);
        (self.addr != 0).then_some(Grant { block, generation, addr: self.addr })
    }
}

impl Shard {
    /// Hands out a block without asking anybody else. Not inlined, so that it is in the program once.
    #[inline(never)]
    pub(super) fn hit(&self, bytes: u64, site: &'static Location<'static>) -> Handed {
        if self.birth.is_forked() {
            return Handed::NONE;
        }
        self.hit_in(self.lock_hot(), bytes, site)
    }

    /// The same under a lock that was taken for something else too.
    #[inline(never)]
    pub(super) fn hit_locked(
        &self,
        state: Locked<'_>,
        bytes: u64,
        site: &'static Location<'static>,
    ) -> Handed {
        self.hit_in(state, bytes, site)
    }

    #[inline(always)]
    fn hit_in(&self, mut state: Locked<'_>, bytes: u64, site: &'static Location<'static>) -> Handed {
        let request = state.request(bytes, Route::default(), 0, site);
        if let Some(grant) = state.unpark(&request) {
            return Handed::new(&grant);
        }
        state.take_at_once(&request, self.shared())
    }

    /// Takes a live block back. An error: it is not so simple, and nothing has changed that matters. The lock is for who
    /// goes on; there is none in a forked child.
    #[inline(never)]
    pub(crate) fn free_hit(&self, id: BlockId) -> Result<(), Option<Locked<'_>>> {
        if self.birth.is_forked() {
            return Err(None);
        }
        let mut state = self.lock_hot();
        if !state.watches || id.is_none() {
            return Err(Some(state));
        }
        if state.is_watched(id) {
            return if state.park(id) { Ok(()) } else { Err(Some(state)) };
        }
        state.settle_lazy(self.shared());
        if state.free_at_once(id, self.shared()) { Ok(()) } else { Err(Some(state)) }
    }
}

impl ShardState {
    /// Hands out a block that is not parked. `NONE`: it is not so simple.
    #[inline(always)]
    fn take_at_once(&mut self, request: &Request, shared: &Shared) -> Handed {
        self.settle_lazy(shared);
        let grant = match self.way {
            Way::Ordinary => self.take_plain::<false>(request),
            Way::Expandable => self.take_plain::<true>(request),
            Way::General => return self.take_generally(request.bytes, request.site, shared),
        };
        grant.as_ref().map_or(Handed::NONE, Handed::new)
    }

    /// The same in words, since a request that is referred to from outside is written to the stack on every hit.
    #[inline(never)]
    fn take_generally(&mut self, bytes: u64, site: &'static Location<'static>, shared: &Shared) -> Handed {
        if self.gc_armed {
            return Handed::NONE;
        }
        let request = self.request(bytes, Route::default(), 0, site);
        let found = self.find_free_uncounted(&request);
        let grant = found.and_then(|id| self.hand_out(id, &request, shared).ok());
        grant.as_ref().map_or(Handed::NONE, Handed::new)
    }

    /// Hands out the best fit. `None`, and nothing has changed: there is none, or credit is missing.
    #[inline(always)]
    fn take_plain<const EXPANDABLE: bool>(&mut self, request: &Request) -> Option<Grant> {
        match request.kind {
            PoolKind::Small => self.take_from::<EXPANDABLE>(PoolKind::Small, request),
            PoolKind::Large => self.take_from::<EXPANDABLE>(PoolKind::Large, request),
        }
    }

    /// The same from the pool of a kind that is known where this is inlined.
    #[inline(always)]
    fn take_from<const EXPANDABLE: bool>(&mut self, kind: PoolKind, request: &Request) -> Option<Grant> {
        let id = self.default.set(kind).candidate(&self.slab, request.rounded, EXPANDABLE)?;
        let rest = self.slab[id].size - request.rounded;
        if rest >= Rules::least_remainder(kind, EXPANDABLE) {
            self.take_candidate::<EXPANDABLE, true>(kind, id, request)
        } else {
            self.take_candidate::<EXPANDABLE, false>(kind, id, request)
        }
    }

    /// Hands out the block that was found, or its front.
    #[inline(always)]
    fn take_candidate<const EXPANDABLE: bool, const SPLIT: bool>(
        &mut self,
        kind: PoolKind,
        id: BlockId,
        request: &Request,
    ) -> Option<Grant> {
        let block = &self.slab[id];
        let size = if SPLIT { request.rounded } else { block.size };
        let change = hand_out_change(block, size, SPLIT, request.bytes, false);
        self.counters.hand_out(kind, &change).ok()?;
        let set = self.default.set(kind);
        let taken = if SPLIT {
            set.cut_candidate::<EXPANDABLE>(&mut self.slab, id, size)
        } else {
            set.unfile_candidate::<EXPANDABLE>(&mut self.slab, id);
            id
        };
        let block = &mut self.slab[taken];
        block.state = State::Allocated;
        block.requested = request.bytes;
        block.site = Some(request.site);
        block.scope = 0;
        block.generation = block.generation.wrapping_add(u32::from(!SPLIT));
        let grant = Grant { block: taken, generation: block.generation, addr: block.addr };
        self.watch(taken, request, &change, SPLIT);
        Some(grant)
    }

    /// Takes back a live block that no other stream uses. `false`, and nothing has changed: one does, or credit is missing.
    #[inline(always)]
    pub(super) fn free_at_once(&mut self, id: BlockId, shared: &Shared) -> bool {
        match self.way {
            Way::Ordinary if self.is_plain::<false>(id) => self.free_plain::<false>(id),
            Way::Expandable if self.is_plain::<true>(id) => self.free_plain::<true>(id),
            _ => self.free_generally(id, shared),
        }
    }

    #[inline(never)]
    fn free_generally(&mut self, id: BlockId, shared: &Shared) -> bool {
        !self.slab[id].has_uses && self.free_now(id, shared).is_ok()
    }

    /// Whether [`free_plain`](ShardState::free_plain) may take the block back.
    #[inline(always)]
    fn is_plain<const EXPANDABLE: bool>(&self, id: BlockId) -> bool {
        let block = &self.slab[id];
        block.pool == DEFAULT_POOL
            && block.scope == 0
            && !block.has_uses
            && (EXPANDABLE || !block.is_expandable())
    }

    /// Takes a plain live block back. `false`, and nothing has changed: credit is missing.
    #[inline(always)]
    fn free_plain<const EXPANDABLE: bool>(&mut self, id: BlockId) -> bool {
        match self.free_neighbours(id) {
            (None, None) => self.free_merging::<EXPANDABLE, false, false>(id),
            (None, Some(_)) => self.free_merging::<EXPANDABLE, false, true>(id),
            (Some(_), None) => self.free_merging::<EXPANDABLE, true, false>(id),
            (Some(_), Some(_)) => self.free_merging::<EXPANDABLE, true, true>(id),
        }
    }

    /// The same where it is known which neighbours are free.
    #[inline(always)]
    fn free_merging<const EXPANDABLE: bool, const PREV: bool, const NEXT: bool>(
        &mut self,
        id: BlockId,
    ) -> bool {
        let block = &self.slab[id];
        let (kind, prev, next) = (block.kind, PREV.then_some(block.prev), NEXT.then_some(block.next));
        // Under these rules no block is oversize.
        let change = Change { oversize: false, ..self.free_change(id, prev, next) };
        if self.counters.free(kind, &change).is_err() {
            return false;
        }
        let block = &mut self.slab[id];
        block.site = None;
        block.state = State::Free;
        self.default.set(kind).file_merged::<EXPANDABLE>(&mut self.slab, id, prev, next);
        true
    }
}
