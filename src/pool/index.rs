//! Best fit: the free block of least size that is large enough, of least address among equals.
//!
//! One pairing heap by address per exact size, the sizes in a [`SizeMap`]. Heap links live in the block
//! records, so nothing is allocated.

use super::block::{BlockId, Slab};
use super::sizes::SizeMap;
use crate::size::MIN_BLOCK;

#[derive(Debug, Default)]
pub(crate) struct FreeIndex {
    sizes: SizeMap,
}

/// All block sizes are multiples of 512, so a class holds one size.
#[inline]
fn class(size: u64) -> u64 {
    size / MIN_BLOCK - 1
}

impl FreeIndex {
    #[inline(always)]
    pub(crate) fn insert(&mut self, slab: &mut Slab, id: BlockId) {
        let block = &mut slab[id];
        block.child = BlockId::NONE;
        block.sibling = BlockId::NONE;
        block.set_back(BlockId::NONE);
        let key = class(block.size);
        let Some(root) = self.sizes.get(key) else { return self.sizes.set(key, id) };
        let top = meld(slab, root, id);
        if top != root {
            self.sizes.replace(key, top);
        }
    }

    /// Takes the first of its size out, as the [best fit](FreeIndex::best_fit) is.
    #[inline(always)]
    pub(crate) fn remove_first(&mut self, slab: &mut Slab, id: BlockId) {
        let block = &slab[id];
        let key = class(block.size);
        if block.child.is_none() {
            return self.sizes.remove(key);
        }
        let heir = heir(slab, id);
        slab[heir].set_back(BlockId::NONE);
        self.sizes.replace(key, heir);
    }

    #[inline(always)]
    pub(crate) fn remove(&mut self, slab: &mut Slab, id: BlockId) {
        let block = &slab[id];
        let (back, sibling) = (block.back(), block.sibling);
        if back.is_none() {
            return self.remove_first(slab, id);
        }
        let heir = if block.child.is_none() { BlockId::NONE } else { heir(slab, id) };
        // The heir is below it, so it may take its place.
        let after = match heir.some() {
            None => sibling,
            Some(heir) => {
                slab[heir].set_back(back);
                slab[heir].sibling = sibling;
                heir
            }
        };
        slab[sibling].set_back(heir.some().unwrap_or(back));
        let before = &mut slab[back];
        if before.child == id {
            before.child = after;
        } else {
            before.sibling = after;
        }
    }

    /// The best fit for `size` bytes, which stays in the index.
    #[inline]
    pub(crate) fn best_fit(&self, size: u64) -> Option<BlockId> {
        self.sizes.successor(class(size))
    }
}

/// Joins two heaps that have neither parent nor siblings.
#[inline]
fn meld(slab: &mut Slab, a: BlockId, b: BlockId) -> BlockId {
    let (top, below) = if slab[a].addr < slab[b].addr { (a, b) } else { (b, a) };
    let first = slab[top].child;
    slab[below].sibling = first;
    slab[below].set_back(top);
    slab[first].set_back(below);
    slab[top].child = below;
    top
}

/// The root of what is below `id`, where there is something.
#[inline(always)]
fn heir(slab: &mut Slab, id: BlockId) -> BlockId {
    let child = slab[id].child;
    if slab[child].sibling.is_none() { child } else { merge_children(slab, id) }
}

/// Joins the children of `id`, of which there are some, into one heap (pairs from left to right, then all from right
/// to left).
#[inline(never)]
fn merge_children(slab: &mut Slab, id: BlockId) -> BlockId {
    let mut next = slab[id].child;
    let mut pairs = BlockId::NONE;
    while let Some(a) = next.some() {
        let b = slab[a].sibling;
        slab[a].sibling = BlockId::NONE;
        slab[a].set_back(BlockId::NONE);
        let pair = match b.some() {
            None => {
                next = BlockId::NONE;
                a
            }
            Some(b) => {
                next = slab[b].sibling;
                slab[b].sibling = BlockId::NONE;
                slab[b].set_back(BlockId::NONE);
                meld(slab, a, b)
            }
        };
        slab[pair].sibling = pairs;
        pairs = pair;
    }
    let mut root = BlockId::NONE;
    while let Some(pair) = pairs.some() {
        pairs = slab[pair].sibling;
        slab[pair].sibling = BlockId::NONE;
        root = match root.some() {
            None => pair,
            Some(root) => meld(slab, root, pair),
        };
    }
    root
}

#[cfg(test)]
mod tests {
    use super::super::block::Block;
    use super::*;
    use crate::observe::snapshot::PoolKind;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn finds_the_least_size_and_address(ops in prop::collection::vec((0u8..5, 1u64..40, 0u64..5000), 1..500)) {
            let mut slab = Slab::new();
            let mut index = FreeIndex::default();
            let mut model = BTreeMap::new();
            for (op, units, spot) in ops {
                let (size, addr) = (units * 512, spot << 20);
                if op <= 2 {
                    if model.keys().any(|&(_, a)| a == addr) { continue; }
                    let id = slab.insert(Block::segment(addr, size, 0, PoolKind::Small, false));
                    index.insert(&mut slab, id);
                    model.insert((size, addr), id);
                } else {
                    let key = if op == 3 { model.range((size, 0)..).next() } else { model.iter().nth(spot as usize % model.len().max(1)) };
                    let Some((&key, &id)) = key else { continue };
                    index.remove(&mut slab, id);
                    slab.remove(id);
                    model.remove(&key);
                }
                let want = model.range((size, 0)..).next().map(|(_, &id)| id);
                prop_assert_eq!(index.best_fit(size), want);
            }
        }
    }
}
