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

    /// Where it is among the tails.
    #[inline]
    fn tail_at(&self, id: BlockId) -> Option<usize> {
        self.tails.iter().position(|tail| tail.2 == id)
    }

    /// Takes it out if it is a tail, and says whether it was.
    #[inline(always)]
    fn unfile_tail(&mut self, slab: &Slab, id: BlockId) -> bool {
        let tail = if slab[id].is_expandable() { self.tail_at(id) } else { None };
        tail.is_some_and(|at| {
            self.tails.remove(at);
            true
        })
    }

    /// A tail has another size now, and may be another record.
    #[inline]
    fn refile_tail(&mut self, slab: &Slab, mut at: usize, id: BlockId) {
        let block = &slab[id];
        let key = (block.size, block.addr, id);
        while at > 0 && self.tails[at - 1] > key {
            self.tails[at] = self.tails[at - 1];
            at -= 1;
        }
        while at + 1 < self.tails.len() && self.tails[at + 1] < key {
            self.tails[at] = self.tails[at + 1];
            at += 1;
        }
        self.tails[at] = key;
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
    fn file<const MIXED: bool>(&mut self, slab: &mut Slab, id: BlockId) {
        if MIXED && slab[id].is_expandable() && chain::next_in(slab, id, State::Unmapped).is_some() {
            return self.insert_tail(slab, id);
        }
        self.index_of::<MIXED>(slab, id).insert(slab, id);
    }

    /// [`remove`](FreeSet::remove) where only ordinary blocks go, unless `MIXED`. Its state is for the caller to set.
    #[inline(always)]
    fn unfile<const MIXED: bool>(&mut self, slab: &mut Slab, id: BlockId) {
        if MIXED && self.unfile_tail(slab, id) {
            return;
        }
        self.index_of::<MIXED>(slab, id).remove(slab, id);
    }

    /// The same for what [`candidate`](FreeSet::candidate) found.
    #[inline(always)]
    pub(crate) fn unfile_candidate<const MIXED: bool>(&mut self, slab: &mut Slab, id: BlockId) {
        if MIXED && self.unfile_tail(slab, id) {
            return;
        }
        self.index_of::<MIXED>(slab, id).remove_first(slab, id);
    }

    /// [`cut`](FreeSet::cut) of what [`candidate`](FreeSet::candidate) found; see [`chain::cut_front`] for what is left to set.
    /// A tail stays one, and no other block becomes one.
    #[inline(always)]
    pub(crate) fn cut_candidate<const MIXED: bool>(
        &mut self,
        slab: &mut Slab,
        id: BlockId,
        size: u64,
    ) -> BlockId {
        if MIXED
            && slab[id].is_expandable()
            && let Some(at) = self.tail_at(id)
        {
            let front = chain::cut_front(slab, id, size);
            self.refile_tail(slab, at, id);
            return front;
        }
        self.index_of::<MIXED>(slab, id).remove_first(slab, id);
        let front = chain::cut_front(slab, id, size);
        self.index_of::<MIXED>(slab, id).insert(slab, id);
        front
    }

    /// Lets a block that is `Free` swallow those neighbours that are in this set, and files it.
    #[inline(always)]
    pub(crate) fn file_merged<const MIXED: bool>(
        &mut self,
        slab: &mut Slab,
        id: BlockId,
        prev: Option<BlockId>,
        next: Option<BlockId>,
    ) {
        if let Some(prev) = prev {
            // Another block follows it, so it is no tail.
            self.index_of::<MIXED>(slab, prev).remove(slab, prev);
            chain::absorb_prev(slab, id);
        }
        let Some(next) = next else { return self.file::<MIXED>(slab, id) };
        // Swallowing a tail makes one.
        if MIXED
            && slab[next].is_expandable()
            && let Some(at) = self.tail_at(next)
        {
            chain::absorb_next(slab, id);
            return self.refile_tail(slab, at, id);
        }
        self.index_of::<MIXED>(slab, next).remove(slab, next);
        chain::absorb_next(slab, id);
        self.index_of::<MIXED>(slab, id).insert(slab, id);
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
        match self.tails.last() {
            Some(largest) if largest.0 >= size => {}
            _ => return whole,
        }
        if let [only] = self.tails.as_slice() {
            // Not by `filter`, which is not inlined into so much.
            return match whole {
                Some(whole) if comes_before(slab, whole, only) => Some(whole),
                _ => Some(only.2),
            };
        }
        self.tail_before(slab, size, whole).or(whole)
    }

    /// A tail is taken only where it sorts before every other candidate and its potential (with the unmapped
    /// range after it) does not exceed that of the candidate that follows.
    #[inline(never)]
    fn tail_before(&self, slab: &Slab, size: u64, whole: Option<BlockId>) -> Option<BlockId> {
        let first = self.tails.partition_point(|tail| tail.0 < size);
        let potential = |id| potential(slab, id);
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

/// Whether a block is taken rather than the only tail; see [`FreeSet::tail_before`].
#[inline(always)]
fn comes_before(slab: &Slab, whole: BlockId, tail: &(u64, u64, BlockId)) -> bool {
    let block = &slab[whole];
    (block.size, block.addr) < (tail.0, tail.1) || block.size < potential(slab, tail.2)
}

/// Bytes of a tail with the unmapped range after it.
#[inline]
fn potential(slab: &Slab, id: BlockId) -> u64 {
    slab[id].size + slab[id].next.some().map_or(0, |next| slab[next].size)
}

#[cfg(test)]
mod tests {
    use super::super::block::Block;
    use super::*;
    use crate::observe::snapshot::PoolKind;
    use proptest::prelude::*;

    const UNIT: u64 = 512;

    /// A free block of so many units that an unmapped range follows.
    fn tail(set: &mut FreeSet, slab: &mut Slab, place: u64, units: u64) -> BlockId {
        let whole = Block::segment(place << 30, (units + 1) * UNIT, 0, PoolKind::Small, true);
        let id = slab.insert(whole);
        let unmapped = chain::split_back(slab, id, units * UNIT);
        set.insert_unmapped(slab, unmapped);
        set.insert(slab, id);
        id
    }

    proptest! {
        /// The short way for one tail finds what the way for several does.
        #[test]
        fn one_tail_is_chosen_as_several_would_be(
            (tail_units, after, size) in (1u64..20, 1u64..20, 1u64..20),
            whole in prop::option::of((1u64..20, any::<bool>())),
        ) {
            let mut slab = Slab::new();
            let mut set = FreeSet::new();
            let id = slab.insert(Block::segment(5 << 30, (tail_units + after) * UNIT, 0, PoolKind::Small, true));
            let unmapped = chain::split_back(&mut slab, id, tail_units * UNIT);
            set.insert_unmapped(&mut slab, unmapped);
            set.insert(&mut slab, id);
            let whole = whole.map(|(units, before)| {
                let place = if before { 1 << 30 } else { 9 << 30 };
                let whole = slab.insert(Block::segment(place, units * UNIT, 0, PoolKind::Small, true));
                set.insert(&mut slab, whole);
                whole
            });
            let size = size * UNIT;
            let fitting = whole.filter(|&w| slab[w].size >= size);
            let slow = set.tail_before(&slab, size, fitting).or(fitting);
            prop_assert_eq!(set.candidate(&slab, size, true), slow);
        }

        /// Tails are cut and swallowed, so that they overtake each other.
        #[test]
        fn tails_stay_sorted(
            sizes in prop::collection::vec(1u64..40, 1..6),
            ops in prop::collection::vec((any::<bool>(), 1u64..12, any::<prop::sample::Index>()), 1..60),
        ) {
            let mut slab = Slab::new();
            let mut set = FreeSet::new();
            for (place, units) in (1..).zip(&sizes) {
                tail(&mut set, &mut slab, place, *units);
            }
            let mut out = Vec::new();
            for (takes, units, which) in ops {
                if takes {
                    let Some(id) = set.candidate(&slab, units * UNIT, true) else { continue };
                    if slab[id].size > units * UNIT {
                        let front = set.cut_candidate::<true>(&mut slab, id, units * UNIT);
                        slab[front].state = State::Allocated;
                        out.push(front);
                    } else {
                        set.unfile_candidate::<true>(&mut slab, id);
                        slab[id].state = State::Allocated;
                        out.push(id);
                    }
                } else if !out.is_empty() {
                    let id = out.swap_remove(which.index(out.len()));
                    let free = |id: BlockId| id.some().filter(|&id| slab[id].state == State::Free);
                    let (prev, next) = (free(slab[id].prev), free(slab[id].next));
                    slab[id].state = State::Free;
                    set.file_merged::<true>(&mut slab, id, prev, next);
                }
                let mut expected: Vec<_> = slab
                    .iter()
                    .filter(|(id, b)| b.state == State::Free && chain::next_in(&slab, *id, State::Unmapped).is_some())
                    .map(|(id, b)| (b.size, b.addr, id))
                    .collect();
                expected.sort_unstable();
                prop_assert_eq!(&set.tails, &expected);
            }
        }
    }
}
