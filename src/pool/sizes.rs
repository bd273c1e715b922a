//! A map from size class to the root of that class's heap, with "smallest key not below".
//!
//! Sizes up to 128 MiB have a slot each in a flat table, and three levels of bitmaps say which are in use: a
//! search reads at most one word per level twice. The table is laid out when the first block is filed; the system
//! gives memory only for the pages that are touched. Larger sizes, which are rare, are in a [`SizeTrie`].

use super::block::BlockId;
use super::trie::SizeTrie;

/// Classes in the flat table: 64 groups of 64 words of 64 bits.
const FLAT: u64 = 64 * 64 * 64;

#[derive(Debug)]
pub(super) struct SizeMap {
    /// By class; meaningful where its bit is set.
    roots: Box<[u32]>,
    /// One bit per class.
    words: Box<[u64]>,
    /// One bit per word that is not 0.
    groups: [u64; 64],
    /// One bit per group that is not 0.
    top: u64,
    beyond: SizeTrie,
}

impl Default for SizeMap {
    fn default() -> Self {
        SizeMap {
            roots: Box::default(),
            words: Box::default(),
            groups: [0; 64],
            top: 0,
            beyond: SizeTrie::new(4),
        }
    }
}

/// The bit of `n` among the 64 of its word.
#[inline]
fn bit(n: usize) -> u64 {
    1 << (n & 63)
}

/// All bits above that of `n`.
#[inline]
fn above(n: usize) -> u64 {
    !1 << (n & 63)
}

impl SizeMap {
    #[cold]
    fn lay_out(&mut self) {
        self.roots = vec![0; FLAT as usize].into_boxed_slice();
        self.words = vec![0; FLAT as usize / 64].into_boxed_slice();
    }

    /// The value at `key`.
    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<BlockId> {
        if key >= FLAT {
            return self.beyond.get(key);
        }
        let key = key as usize;
        let word = self.words.get(key / 64)?;
        if word & bit(key) == 0 { None } else { Some(BlockId(self.roots[key])) }
    }

    /// Sets the value at `key`.
    #[inline]
    pub(super) fn set(&mut self, key: u64, value: BlockId) {
        if key >= FLAT {
            return self.beyond.set(key, value);
        }
        if self.words.is_empty() {
            self.lay_out();
        }
        let key = key as usize;
        let (word, group) = (key / 64, key / 4096);
        self.words[word] |= bit(key);
        self.groups[group] |= bit(word);
        self.top |= bit(group);
        self.roots[key] = value.0;
    }

    /// Removes the key, which must be there.
    #[inline]
    pub(super) fn remove(&mut self, key: u64) {
        if key >= FLAT {
            return self.beyond.remove(key);
        }
        let key = key as usize;
        let (word, group) = (key / 64, key / 4096);
        self.words[word] &= !bit(key);
        if self.words[word] == 0 {
            self.groups[group] &= !bit(word);
            if self.groups[group] == 0 {
                self.top &= !bit(group);
            }
        }
    }

    /// The value at the smallest key not below `key`.
    #[inline]
    pub(super) fn successor(&self, key: u64) -> Option<BlockId> {
        if key < FLAT
            && self.top != 0
            && let Some(found) = self.flat_successor(key as usize)
        {
            return Some(found);
        }
        self.beyond.successor(key).map(|(_, root)| root)
    }

    #[inline]
    fn flat_successor(&self, key: usize) -> Option<BlockId> {
        let (mut word, mut group) = (key / 64, key / 4096);
        let mut bits = self.words[word] & (bit(key) | above(key));
        if bits == 0 {
            let mut words = self.groups[group] & above(word);
            if words == 0 {
                let groups = self.top & above(group);
                if groups == 0 {
                    return None;
                }
                group = groups.trailing_zeros() as usize;
                words = self.groups[group];
            }
            word = group * 64 + words.trailing_zeros() as usize;
            bits = self.words[word];
        }
        Some(BlockId(self.roots[word * 64 + bits.trailing_zeros() as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn agrees_with_a_btree_map(ops in prop::collection::vec((0u8..3, 0u64..1 << 20, 0u32..5), 1..400)) {
            let mut map = SizeMap::default();
            let mut model = BTreeMap::new();
            for (op, key, shift) in ops {
                let key = key >> (shift * 4);
                match op {
                    0 => { map.set(key, BlockId(key as u32 ^ 5)); model.insert(key, BlockId(key as u32 ^ 5)); }
                    1 => if let Some((&k, _)) = model.range(key..).next() {
                        map.remove(k);
                        model.remove(&k);
                    },
                    _ => {}
                }
                prop_assert_eq!(map.get(key), model.get(&key).copied());
                prop_assert_eq!(map.successor(key), model.range(key..).next().map(|(_, v)| *v));
            }
        }
    }
}
