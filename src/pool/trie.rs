//! The part of [`SizeMap`](super::sizes::SizeMap) for sizes without bound.
//!
//! A 64-ary trie of bitmaps: every step looks at one word. The cost depends on the height (the largest
//! size), never on how many blocks are free, and empty nodes are recycled, so that a hit allocates nothing.

use super::block::BlockId;

const FANOUT_BITS: u32 = 6;
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Node {
    occupied: u64,
    slots: [u32; 64],
}

impl Node {
    const EMPTY: Node = Node { occupied: 0, slots: [NONE; 64] };
}

#[derive(Debug)]
pub(super) struct SizeTrie {
    nodes: Vec<Node>,
    spare: Vec<u32>,
    root: u32,
    height: u32,
}

impl SizeTrie {
    /// A trie whose first `64^height` keys need no growth.
    pub(super) fn new(height: u32) -> Self {
        SizeTrie { nodes: vec![Node::EMPTY], spare: Vec::new(), root: 0, height }
    }

    #[inline]
    fn slot_of(key: u64, level: u32) -> usize {
        ((key >> (level * FANOUT_BITS)) & 63) as usize
    }

    fn covers(&self, key: u64) -> bool {
        key >> (self.height * FANOUT_BITS) == 0
    }

    fn new_node(&mut self) -> u32 {
        if let Some(node) = self.spare.pop() {
            self.nodes[node as usize].occupied = 0;
            return node;
        }
        self.nodes.push(Node::EMPTY);
        (self.nodes.len() - 1) as u32
    }

    /// Adds levels until the key fits.
    #[cold]
    fn grow(&mut self, key: u64) {
        while !self.covers(key) {
            let old = self.root;
            if self.nodes[old as usize].occupied != 0 {
                let top = self.new_node();
                let node = &mut self.nodes[top as usize];
                node.occupied = 1;
                node.slots[0] = old;
                self.root = top;
            }
            self.height += 1;
        }
    }

    /// The value at `key`.
    #[inline(never)]
    pub(super) fn get(&self, key: u64) -> Option<BlockId> {
        if !self.covers(key) {
            return None;
        }
        let mut node = self.root;
        for level in (0..self.height).rev() {
            let slot = Self::slot_of(key, level);
            let here = &self.nodes[node as usize];
            if here.occupied & (1 << slot) == 0 {
                return None;
            }
            node = here.slots[slot];
        }
        Some(BlockId(node))
    }

    /// Sets the value at `key`.
    #[inline(never)]
    pub(super) fn set(&mut self, key: u64, value: BlockId) {
        if !self.covers(key) {
            self.grow(key);
        }
        let mut node = self.root;
        for level in (1..self.height).rev() {
            let slot = Self::slot_of(key, level);
            if self.nodes[node as usize].occupied & (1 << slot) == 0 {
                let fresh = self.new_node();
                let here = &mut self.nodes[node as usize];
                here.occupied |= 1 << slot;
                here.slots[slot] = fresh;
            }
            node = self.nodes[node as usize].slots[slot];
        }
        let slot = Self::slot_of(key, 0);
        let leaf = &mut self.nodes[node as usize];
        leaf.occupied |= 1 << slot;
        leaf.slots[slot] = value.0;
    }

    /// Removes the key, which must be there.
    #[inline(never)]
    pub(super) fn remove(&mut self, key: u64) {
        let mut path = [0u32; 11];
        let mut node = self.root;
        for level in (0..self.height).rev() {
            path[level as usize] = node;
            node = self.nodes[node as usize].slots[Self::slot_of(key, level)];
        }
        for level in 0..self.height {
            let node = path[level as usize];
            let here = &mut self.nodes[node as usize];
            here.occupied &= !(1 << Self::slot_of(key, level));
            if here.occupied != 0 || node == self.root {
                return;
            }
            self.spare.push(node);
        }
    }

    /// The value at the smallest key not below `key`.
    #[inline]
    pub(super) fn successor(&self, key: u64) -> Option<BlockId> {
        let empty = self.nodes[self.root as usize].occupied == 0;
        if empty || !self.covers(key) { None } else { self.descend(key) }
    }

    #[inline(never)]
    fn descend(&self, key: u64) -> Option<BlockId> {
        let mut node = self.root;
        // The deepest place where the search could still turn right.
        let mut turn: Option<(u32, u32)> = None;
        for level in (0..self.height).rev() {
            let slot = Self::slot_of(key, level);
            let here = &self.nodes[node as usize];
            if slot < 63 && here.occupied & (!1u64 << slot) != 0 {
                turn = Some((level, node));
            }
            if here.occupied & (1 << slot) == 0 {
                return turn.map(|(level, node)| self.leftmost_after(key, level, node));
            }
            node = here.slots[slot];
        }
        Some(BlockId(node))
    }

    /// Turns right at `node` and goes down along the smallest keys.
    fn leftmost_after(&self, key: u64, level: u32, node: u32) -> BlockId {
        let right = self.nodes[node as usize].occupied & (!1u64 << Self::slot_of(key, level));
        let mut slot = right.trailing_zeros() as usize;
        let mut node = node;
        for below in (0..=level).rev() {
            node = self.nodes[node as usize].slots[slot];
            if below > 0 {
                slot = self.nodes[node as usize].occupied.trailing_zeros() as usize;
            }
        }
        BlockId(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn agrees_with_a_btree_map(ops in prop::collection::vec((0u8..3, 0u64..1 << 30, 0u32..6), 1..400)) {
            let mut trie = SizeTrie::new(2);
            let mut model = BTreeMap::new();
            for (op, key, shift) in ops {
                let key = key >> (shift * 5);
                match op {
                    0 => { trie.set(key, BlockId(key as u32 ^ 5)); model.insert(key, BlockId(key as u32 ^ 5)); }
                    1 => if let Some((&k, _)) = model.range(key..).next() {
                        trie.remove(k);
                        model.remove(&k);
                    },
                    _ => {}
                }
                prop_assert_eq!(trie.get(key), model.get(&key).copied());
                prop_assert_eq!(trie.successor(key), model.range(key..).next().map(|(_, v)| *v));
            }
        }
    }
}
