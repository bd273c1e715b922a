//! The plain hit: a block of the default pool, under the default rules, with nothing armed and no history.
//!
//! That is what nearly every call is, so it goes without the questions whose answers are known here. The steps are
//! those of [`super::shard`], which serves everything else; each of the two ways takes the other's blocks.

use std::panic::Location;

use super::change::hand_out_change;
use super::parts::DEFAULT_POOL;
use super::private::Route;
use super::shard::{Grant, Request, ShardState};
use super::shards::Shard;
use crate::pool::block::{BlockId, State};
use crate::pool::chain;
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
        let mut state = self.lock_hot();
        let request = state.request(bytes, Route::default(), 0, site);
        if let Some(grant) = state.unpark(&request) {
            return Handed::new(&grant);
        }
        if !state.plain {
            return Handed::NONE;
        }
        state.settle_lazy(self.shared());
        state.take_plain(&request).as_ref().map_or(Handed::NONE, Handed::new)
    }

    /// Takes a live block back. `false`: it is not so simple, and nothing has changed.
    #[inline(never)]
    pub(crate) fn free_hit(&self, id: BlockId) -> bool {
        if self.birth.is_forked() {
            return false;
        }
        let mut state = self.lock_hot();
        if !state.watches || id.is_none() {
            return false;
        }
        if state.park(id) {
            return true;
        }
        state.settle_lazy(self.shared());
        state.free_plain(id)
    }
}

impl ShardState {
    /// Hands out the best fit. `None`, and nothing has changed: there is none, or credit is missing.
    #[inline(always)]
    pub(super) fn take_plain(&mut self, request: &Request) -> Option<Grant> {
        let kind = request.kind;
        let index = self.default.set(kind).ordinary();
        let id = index.best_fit(request.rounded)?;
        let block = &self.slab[id];
        let whole = block.size;
        let split = whole - request.rounded >= Rules::least_plain_remainder(kind);
        let size = if split { request.rounded } else { whole };
        let change = hand_out_change(block, size, split, request.bytes, false);
        self.counters.hand_out(kind, &change).ok()?;
        let index = self.default.set(kind).ordinary();
        index.remove_first(&mut self.slab, id);
        let taken = if split {
            let front = chain::split_front(&mut self.slab, id, size);
            index.insert(&mut self.slab, id);
            self.epoch += 1;
            front
        } else {
            id
        };
        self.live += 1;
        let block = &mut self.slab[taken];
        block.state = State::Allocated;
        block.requested = request.bytes;
        block.site = Some(request.site);
        block.scope = 0;
        block.generation = block.generation.wrapping_add(u32::from(!split));
        let grant = Grant { block: taken, generation: block.generation, addr: block.addr };
        self.watch(taken, request, &change, split);
        Some(grant)
    }

    /// Takes a live block back. `false`, and nothing has changed: it is no plain one, or credit is missing.
    #[inline(always)]
    pub(super) fn free_plain(&mut self, id: BlockId) -> bool {
        let block = &self.slab[id];
        if !self.plain
            || block.pool != DEFAULT_POOL
            || block.scope != 0
            || block.has_uses
            || block.is_expandable()
        {
            return false;
        }
        let kind = block.kind;
        let (prev, next) = self.free_neighbours(id);
        let change = self.free_change(id, prev, next);
        if self.counters.free(kind, &change).is_err() {
            return false;
        }
        self.live -= 1;
        self.epoch += 1;
        let index = self.default.set(kind).ordinary();
        let slab = &mut self.slab;
        if let Some(prev) = prev {
            index.remove(slab, prev);
            chain::absorb_prev(slab, id);
        }
        if let Some(next) = next {
            index.remove(slab, next);
            chain::absorb_next(slab, id);
        }
        let block = &mut slab[id];
        block.site = None;
        block.state = State::Free;
        index.insert(slab, id);
        true
    }
}
