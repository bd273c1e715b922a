//! A map from size class to the root of that class's heap, with "smallest key not below".
//!
//! Sizes up to 128 MiB have a slot each in a flat table, and three levels of bitmaps say which are in use: a
//! search reads at most one word per level twice. The table is laid out when the first block is filed; the system
//! gives memory only for the pages that are touched. Larger sizes, which are rare, are in a [`SizeList`].

use super::block::BlockId;
use super::size_list::SizeList;

/// Classes in the flat table: 64 groups of 64 words of 64 bits.
const FLAT: usize = 64 * 64 * 64;
const WORDS: usize = FLAT / 64;

#[derive(Debug)]
pub(super) struct SizeMap {
    flat: Option<Flat>,
    /// One bit per word that is not 0.
    groups: [u64; 64],
    /// One bit per group that is not 0.
    top: u64,
    beyond: SizeList,
}

#[derive(Debug)]
struct Flat {
    /// By class: the root, as a number; that of no block is 0.
    roots: Box<[u32; FLAT]>,
    /// One bit per class.
    words: Box<[u64; WORDS]>,
}

impl Default for SizeMap {
    fn default() -> Self {
        SizeMap { flat: None, groups: [0; 64], top: 0, beyond: SizeList::default() }
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

/// A table of zeros, which the system gives page by page.
fn zeros<T: Copy + Default, const N: usize>() -> Option<Box<[T; N]>> {
    vec![T::default(); N].into_boxed_slice().try_into().ok()
}

impl SizeMap {
    /// The value at `key`.
    #[inline(always)]
    pub(super) fn get(&self, key: u64) -> Option<BlockId> {
        if key >= FLAT as u64 {
            return self.beyond.get(key);
        }
        let root = self.flat.as_ref()?.roots[key as usize];
        BlockId(root).some()
    }

    /// Sets the value at `key`, which may be there.
    #[inline(always)]
    pub(super) fn set(&mut self, key: u64, value: BlockId) {
        if key >= FLAT as u64 {
            return self.beyond.set(key, value);
        }
        if self.flat.is_none() {
            self.lay_out();
        }
        let Some(Flat { roots, words }) = &mut self.flat else { return };
        let key = key as usize;
        let (word, group) = (key / 64, key / 4096);
        roots[key] = value.0;
        words[word] |= bit(key);
        self.groups[group] |= bit(word);
        self.top |= bit(group);
    }

    #[cold]
    fn lay_out(&mut self) {
        self.flat = zeros().zip(zeros()).map(|(roots, words)| Flat { roots, words });
    }

    /// Puts another value where there is one.
    #[inline(always)]
    pub(super) fn replace(&mut self, key: u64, value: BlockId) {
        if key >= FLAT as u64 {
            return self.beyond.set(key, value);
        }
        if let Some(flat) = &mut self.flat {
            flat.roots[key as usize] = value.0;
        }
    }

    /// Removes the key, which must be there.
    #[inline(always)]
    pub(super) fn remove(&mut self, key: u64) {
        if key >= FLAT as u64 {
            return self.beyond.remove(key);
        }
        let Some(Flat { roots, words }) = &mut self.flat else { return };
        let key = key as usize;
        let (word, group) = (key / 64, key / 4096);
        roots[key] = 0;
        let left = words[word] & !bit(key);
        words[word] = left;
        let left = self.groups[group] & !(u64::from(left == 0) << (word & 63));
        self.groups[group] = left;
        self.top &= !(u64::from(left == 0) << group);
    }

    /// The value at the smallest key not below `key`.
    #[inline(always)]
    pub(super) fn successor(&self, key: u64) -> Option<BlockId> {
        if key < FLAT as u64
            && let Some(found) = self.flat_successor(key as usize)
        {
            return Some(found);
        }
        self.beyond.successor(key)
    }

    /// Whether a word is empty is a toss-up, so nothing branches on it until a whole group is.
    #[inline(always)]
    fn flat_successor(&self, key: usize) -> Option<BlockId> {
        let Flat { roots, words } = self.flat.as_ref()?;
        let (mut word, group) = (key / 64, key / 4096);
        let mut mask = !0 << (key & 63);
        let later = self.groups[group] & above(word);
        if words[word] & mask == 0 {
            let any = u64::from(later != 0);
            (word, mask) = ((word & !63) + (later.trailing_zeros() as usize & 63), any.wrapping_neg());
        }
        let mut bits = words[word] & mask;
        if bits == 0 {
            word = self.next_group(group)?;
            bits = words[word];
        }
        BlockId(roots[word * 64 + bits.trailing_zeros() as usize]).some()
    }

    /// The first word in use in the groups after this one.
    #[inline]
    fn next_group(&self, group: usize) -> Option<usize> {
        let groups = self.top & above(group);
        if groups == 0 {
            return None;
        }
        let group = groups.trailing_zeros() as usize;
        Some(group * 64 + self.groups[group].trailing_zeros() as usize)
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
                    0 => {
                        let value = BlockId((key as u32 ^ 5) + 1);
                        if model.insert(key, value).is_some() { map.replace(key, value) } else { map.set(key, value) }
                    }
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
