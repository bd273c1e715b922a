//! Block records in a slab, addressed by index.

use std::alloc::{Layout, handle_alloc_error};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::Location;

use crate::observe::snapshot::PoolKind;

/// Names a block record in its shard's [`Slab`]: counts the words of the records before it, so that its address needs no
/// more than the processor's own scaling (2 to 3 % of a replay).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct BlockId(pub(crate) u32);

impl BlockId {
    /// No block. Every slab has a record for it, vacant and behind all addresses, so that a neighbour's state is read, and
    /// a heap's links are written, without asking whether there is one.
    pub(crate) const NONE: BlockId = BlockId(0);

    /// The record at a place. Where there is no number for it left, the host has no memory for it: there are 32 GiB
    /// of them.
    fn at(place: usize) -> Self {
        match u32::try_from(place * WORDS) {
            Ok(words) => BlockId(words),
            Err(_) => handle_alloc_error(Layout::new::<Block>()),
        }
    }

    /// Where its record is, if it is an id.
    fn place(self) -> Option<usize> {
        let words = self.0 as usize;
        words.is_multiple_of(WORDS).then_some(words / WORDS)
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self == BlockId::NONE
    }

    #[inline]
    pub(crate) fn some(self) -> Option<BlockId> {
        if self.is_none() { None } else { Some(self) }
    }

    /// Whether one of the two is a block, asked at once.
    #[inline]
    pub(crate) fn any(a: BlockId, b: BlockId) -> bool {
        a.0 | b.0 != 0
    }
}

/// A map keyed by block records.
pub(crate) type BlockMap<V> = HashMap<BlockId, V, BuildHasherDefault<BlockHasher>>;

/// Spreads an index over the word: the ids are the allocator's own, so nobody can make them collide.
#[derive(Debug, Default)]
pub(crate) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    /// Ids count words, so the lowest bits of the product say nothing; they are what chooses the bucket.
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0 ^ u64::from(n)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// What a block record stands for at the moment.
///
/// | state | in the free set | counts as |
/// |---|---|---|
/// | `Vacant` | – | nothing: the record is unused |
/// | `Free` | yes | cached |
/// | `Allocated` | no | live |
/// | `Pending` | no | freed by the client, another stream may still use it |
/// | `Unmapped` | in the unmapped set | address space only |
/// | `Held` | no | in the hands of a slow path that has not finished |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    Vacant,
    Free,
    Allocated,
    Pending,
    Unmapped,
    Held,
}

/// One block: a range of a segment. What a cache hit touches comes first and fills one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Block {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    /// Stale while the block is free [spec 3.4].
    pub(crate) requested: u64,
    /// Who asked for it.
    pub(crate) site: Option<&'static Location<'static>>,
    /// Neighbours in the segment, by address.
    pub(crate) prev: BlockId,
    pub(crate) next: BlockId,
    /// Links of the free index's heap; see also [`back`](Block::back).
    pub(crate) child: BlockId,
    pub(crate) sibling: BlockId,
    /// Scope that the bytes of an active block are counted for; 0: none. A free block keeps a link here.
    pub(crate) scope: u32,
    /// Slot of the owning pool; 0 is the default pool.
    pub(crate) pool: u32,
    /// Changes whenever the record is reused, so that stale handles are noticed.
    pub(crate) generation: u32,
    pub(crate) state: State,
    pub(crate) kind: PoolKind,
    /// Whether other streams were recorded on it; which ones is kept aside.
    pub(crate) has_uses: bool,
    /// Whether it is part of an expandable reservation.
    pub(super) expandable: bool,
    /// Outstanding events.
    pub(crate) events: u32,
    /// Value of the pool's search counter when it became free [spec 8.3].
    pub(crate) gc_base: u64,
    /// Who asked for the segment: kept up to date in the last block of a segment, or of a run of mapped ones. What is cut off
    /// leaves that where it is.
    pub(crate) segment_site: Option<&'static Location<'static>>,
}

const _: () = assert!(std::mem::offset_of!(Block, events) == 64);

/// Words of a record.
const WORDS: usize = size_of::<Block>() / size_of::<u64>();

impl Block {
    /// A block that covers a whole segment, not in any set yet.
    pub(crate) fn segment(addr: u64, size: u64, pool: u32, kind: PoolKind, expandable: bool) -> Self {
        Block {
            addr,
            size,
            requested: 0,
            prev: BlockId::NONE,
            next: BlockId::NONE,
            child: BlockId::NONE,
            sibling: BlockId::NONE,
            scope: 0,
            pool,
            generation: 0,
            state: State::Held,
            kind,
            has_uses: false,
            expandable,
            events: 0,
            gc_base: 0,
            site: None,
            segment_site: None,
        }
    }

    #[inline]
    pub(crate) fn is_expandable(&self) -> bool {
        self.expandable
    }

    /// The heap's link towards the root; only blocks in a free index have one.
    #[inline]
    pub(super) fn back(&self) -> BlockId {
        BlockId(self.scope)
    }

    #[inline]
    pub(super) fn set_back(&mut self, back: BlockId) {
        self.scope = back.0;
    }

    /// Whether the segment has other blocks [spec 0.3].
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        BlockId::any(self.prev, self.next)
    }

    /// Allocated, or freed but still in use by another stream.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state, State::Allocated | State::Pending)
    }

    /// One past the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.size
    }
}

/// All block records of one shard. Vacant records are linked through `next` and reused.
#[derive(Debug)]
pub(crate) struct Slab {
    blocks: Vec<Block>,
    vacant: BlockId,
}

impl Slab {
    pub(crate) fn new() -> Self {
        // The one that `BlockId::NONE` names.
        let mut none = Block::segment(u64::MAX, 0, 0, PoolKind::Small, false);
        none.state = State::Vacant;
        Slab { blocks: vec![none], vacant: BlockId::NONE }
    }

    /// Stores a record; a reused slot gets a new generation.
    pub(crate) fn insert(&mut self, mut block: Block) -> BlockId {
        if let Some(id) = self.vacant.some() {
            self.vacant = self[id].next;
            let slot = &mut self[id];
            block.generation = slot.generation.wrapping_add(1);
            *slot = block;
            return id;
        }
        let id = BlockId::at(self.blocks.len());
        self.blocks.push(block);
        id
    }

    /// A record for the first `size` bytes of the block `rest`, linked to its neighbours; they are not linked to it.
    /// Its state, requested bytes, site and scope are for the caller to set. Writes the first cache line only: the rest of
    /// the record is what it was before, or is set when it matters.
    #[inline(always)]
    pub(super) fn insert_front(&mut self, rest: BlockId, size: u64) -> BlockId {
        let Block { addr, pool, kind, prev, expandable, .. } = self[rest];
        let id = if self.vacant.is_none() { self.grow() } else { self.vacant };
        let block = &mut self[id];
        let vacant = block.next;
        (block.addr, block.size) = (addr, size);
        (block.prev, block.next) = (prev, rest);
        block.pool = pool;
        block.generation = block.generation.wrapping_add(1);
        (block.kind, block.has_uses, block.expandable) = (kind, false, expandable);
        self.vacant = vacant;
        id
    }

    /// One more vacant record.
    #[cold]
    fn grow(&mut self) -> BlockId {
        let mut block = Block::segment(0, 0, 0, PoolKind::Small, false);
        (block.state, block.next) = (State::Vacant, self.vacant);
        let id = BlockId::at(self.blocks.len());
        self.blocks.push(block);
        id
    }

    /// Gives a record back.
    #[inline]
    pub(crate) fn remove(&mut self, id: BlockId) {
        let vacant = self.vacant;
        let slot = &mut self[id];
        slot.state = State::Vacant;
        slot.next = vacant;
        self.vacant = id;
    }

    fn has(&self, id: BlockId) -> bool {
        id.place().is_some_and(|place| place < self.blocks.len())
    }

    /// The record, unless there is none or it is vacant.
    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.place()?).filter(|b| b.state != State::Vacant)
    }

    /// All records in use, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.blocks
            .iter()
            .enumerate()
            .filter(|(_, b)| b.state != State::Vacant)
            .map(|(i, b)| (BlockId::at(i), b))
    }
}

impl std::ops::Index<BlockId> for Slab {
    type Output = Block;
    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        debug_assert!(self.has(id), "{id:?} of {}", self.blocks.len());
        // SAFETY: ids are made by `at` for a record that `blocks` has or gets at once, and are carried about as numbers that
        // nobody changes; records are never dropped, and nobody mixes the ids of two slabs; one that comes from outside goes through `get`. So this many words from the start
        // begins a record. A hit indexes some ten times.
        unsafe { &*self.blocks.as_ptr().byte_add(id.0 as usize * size_of::<u64>()) }
    }
}

impl std::ops::IndexMut<BlockId> for Slab {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        debug_assert!(self.has(id), "{id:?} of {}", self.blocks.len());
        // SAFETY: as above; the pointer comes from a unique borrow of all records.
        unsafe { &mut *self.blocks.as_mut_ptr().byte_add(id.0 as usize * size_of::<u64>()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_has_a_record_that_nobody_finds() {
        let mut slab = Slab::new();
        assert!(slab.get(BlockId::NONE).is_none());
        assert_eq!(slab.iter().count(), 0);
        assert_eq!(slab[BlockId::NONE].state, State::Vacant);
        let id = slab.insert(Block::segment(512, 512, 0, PoolKind::Small, false));
        assert!(id.some().is_some(), "an id of a block is never that of none");
        assert!(BlockId::any(id, BlockId::NONE) && BlockId::any(BlockId::NONE, id));
        assert!(!BlockId::any(BlockId::NONE, BlockId::NONE));
        slab.remove(id);
        assert_eq!(slab.iter().count(), 0);
    }

    #[test]
    fn ids_are_spread_over_the_buckets() {
        let hash = |place| {
            let mut hasher = BlockHasher::default();
            hasher.write_u32(BlockId::at(place).0);
            hasher.finish()
        };
        for shift in [0, 57] {
            let mut seen = [false; 128];
            (0..1000).for_each(|place| seen[(hash(place) >> shift) as usize % 128] = true);
            assert!(seen.iter().filter(|seen| **seen).count() > 120, "bits from {shift} on");
        }
    }

    #[test]
    fn every_id_names_its_own_record() {
        let mut slab = Slab::new();
        let block = |n: u64| Block::segment(n * 512, 512, 0, PoolKind::Small, false);
        let ids: Vec<BlockId> = (0..100).map(|n| slab.insert(block(n))).collect();
        for (n, &id) in (0..).zip(&ids) {
            assert_eq!(slab[id].addr, n * 512);
            slab[id].requested = n;
        }
        assert!(slab.iter().map(|(id, b)| (id, b.requested)).eq(ids.iter().copied().zip(0..)));
        let none = |words: u32| slab.get(BlockId(words)).is_none();
        assert!(none(ids[5].0 + 1), "between two records");
        assert!(none(ids[99].0 + WORDS as u32) && none(u32::MAX), "behind the last");
    }
}
