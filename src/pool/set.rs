//! The free set of one pool on one stream [spec 3].

use super::block::{BlockId, Slab, State};
use super::chain;
use super::index::FreeIndex;

/// Free blocks of one (pool, stream, kind), and the unmapped ranges of its expandable reservations.
///
/// Expandable blocks are kept apart from ordinary ones, and those that an unmapped range follows ("tails")
/// apart from both: the search rules treat the three differently [spec 3.2 step 3].
#[derive(Debug)]
pub(crate) struct FreeSet {
    ordinary: FreeIndex,
    expandable: FreeIndex,
    /// Sorted by (size, address). A handful at most: one per hole in a reservation.
    tails: Vec<(u64, u64, BlockId)>,
    /// Sorted by address.
    unmapped: Vec<(u64, BlockId)>,
}

impl FreeSet {
    pub(crate) fn new() -> Self {
        FreeSet {
            ordinary: FreeIndex::default(),
            expandable: FreeIndex::default(),
            tails: Vec::new(),
            unmapped: Vec::new(),
        }
    }

    /// Files a block as free.
    pub(crate) fn insert(&mut self, slab: &mut Slab, id: BlockId) {
        slab[id].state = State::Free;
        self.file::<true>(slab, id);
    }

    #[inline(never)]
    fn insert_tail(&mut self, slab: &Slab, id: BlockId) {
        let block = &slab[id];
        let key = (block.size, block.addr, id);
        let at = self.tails.partition_point(|tail| *tail < key);
        self.tails.insert(at, key);
    }

    /// Takes a free block out; it is `Held` then.
    pub(crate) fn remove(&mut self, slab: &mut Slab, id: BlockId) {
        slab[id].state = State::Held;
        self.unfile::<true>(slab, id);
    }

    /// Whether it was a tail.
    #[inline]
    fn remove_tail(&mut self, id: BlockId) -> bool {
        let Some(at) = self.tails.iter().position(|tail| tail.2 == id) else { return false };
        self.tails.remove(at);
        true
    }

    /// The index of a block that is no tail.
    #[inline(always)]
    fn index_of<const MIXED: bool>(&mut self, slab: &Slab, id: BlockId) -> &mut FreeIndex {
        if MIXED && slab[id].is_expandable() { &mut self.expandable } else { &mut self.ordinary }
    }

    /// Cuts the first `size` bytes off a free block: they become a block of their own, which is returned and is
    /// `Held`, the rest stays free.
    #[inline]
    pub(crate) fn cut(&mut self, slab: &mut Slab, id: BlockId, size: u64) -> BlockId {
        self.remove(slab, id);
        let front = chain::split_front(slab, id, size);
        self.insert(slab, id);
        front
    }

    /// Lets a block swallow neighbours that are in this set.
    #[inline]
    pub(crate) fn merge(
        &mut self,
        slab: &mut Slab,
        id: BlockId,
        prev: Option<BlockId>,
        next: Option<BlockId>,
    ) {
        if let Some(prev) = prev {
            self.remove(slab, prev);
            chain::absorb_prev(slab, id);
        }
        if let Some(next) = next {
            self.remove(slab, next);
            chain::absorb_next(slab, id);
        }
    }

    /// [`insert`](FreeSet::insert) of what is `Free` already, where only ordinary blocks come, unless `MIXED`.
    #[inline(always)]
    pub(crate) fn file<const MIXED: bool>(&mut self, slab: &mut Slab, id: BlockId) {
        if MIXED && slab[id].is_expandable() && chain::next_in(slab, id, State::Unmapped).is_some() {
            return self.insert_tail(slab, id);
        }
        self.index_of::<MIXED>(slab, id).insert(slab, id);
    }

    /// [`remove`](FreeSet::remove) where only ordinary blocks go, unless `MIXED`. Its state is for the caller to set.
    #[inline(always)]
    pub(crate) fn unfile<const MIXED: bool>(&mut self, slab: &mut Slab, id: BlockId) {
        if MIXED && slab[id].is_expandable() && self.remove_tail(id) {
            return;
        }
        self.index_of::<MIXED>(slab, id).remove(slab, id);
    }

    /// [`unfile`](FreeSet::unfile) for what [`candidate`](FreeSet::candidate) found.
    #[inline(always)]
    pub(crate) fn unfile_candidate<const MIXED: bool>(&mut self, slab: &mut Slab, id: BlockId) {
        if MIXED && slab[id].is_expandable() && self.remove_tail(id) {
            return;
        }
        self.index_of::<MIXED>(slab, id).remove_first(slab, id);
    }

    /// The first candidate for `size` bytes by the order (size, address), expandable blocks judged by their
    /// potential [spec 3.2 steps 2 and 3]. It stays in the set.
    #[inline(always)]
    pub(crate) fn candidate(&self, slab: &Slab, size: u64, expandable: bool) -> Option<BlockId> {
        let ordinary = self.ordinary.best_fit(size);
        if expandable { self.expandable_candidate(slab, size, ordinary) } else { ordinary }
    }

    #[inline(always)]
    fn expandable_candidate(&self, slab: &Slab, size: u64, ordinary: Option<BlockId>) -> Option<BlockId> {
        let key = |id: BlockId| (slab[id].size, slab[id].addr);
        let whole = match (ordinary, self.expandable.best_fit(size)) {
            (Some(a), Some(b)) => Some(if key(a) < key(b) { a } else { b }),
            (a, b) => a.or(b),
        };
        if self.tails.last().is_none_or(|largest| largest.0 < size) {
            return whole;
        }
        self.tail_before(slab, size, whole).or(whole)
    }

    /// A tail is taken only where it sorts before every other candidate and its potential (with the unmapped
    /// range after it) does not exceed that of the candidate that follows.
    #[inline(never)]
    fn tail_before(&self, slab: &Slab, size: u64, whole: Option<BlockId>) -> Option<BlockId> {
        let first = self.tails.partition_point(|tail| tail.0 < size);
        let potential = |id: BlockId| slab[id].size + slab[id].next.some().map_or(0, |next| slab[next].size);
        let limit = whole.map(|id| (slab[id].size, slab[id].addr));
        let mut run = self.tails[first..].iter().take_while(|t| limit.is_none_or(|l| (t.0, t.1) < l));
        let mut current = run.next()?.2;
        for tail in run {
            if potential(tail.2) >= potential(current) {
                return Some(current);
            }
            current = tail.2;
        }
        match limit {
            Some((whole, _)) if whole < potential(current) => None,
            _ => Some(current),
        }
    }

    /// Files a block as unmapped address space.
    pub(crate) fn insert_unmapped(&mut self, slab: &mut Slab, id: BlockId) {
        slab[id].state = State::Unmapped;
        let key = (slab[id].addr, id);
        let at = self.unmapped.partition_point(|entry| *entry < key);
        self.unmapped.insert(at, key);
    }

    /// Takes an unmapped block out; it is `Held` then.
    pub(crate) fn remove_unmapped(&mut self, slab: &mut Slab, id: BlockId) {
        slab[id].state = State::Held;
        self.unmapped.retain(|entry| entry.1 != id);
    }

    /// Unmapped ranges by address.
    pub(crate) fn unmapped(&self) -> impl Iterator<Item = BlockId> {
        self.unmapped.iter().map(|entry| entry.1)
    }
}
