//! The part of [`SizeMap`](super::sizes::SizeMap) for sizes without bound.
//!
//! A sorted list: so large that a device has room for a thousand such blocks at most, and a program has a handful.
//! What it takes from the heap it keeps, so that a hit allocates nothing.

use super::block::BlockId;

#[derive(Debug, Default)]
pub(super) struct SizeList {
    /// Ascending by key, without repeats.
    entries: Vec<(u64, BlockId)>,
}

impl SizeList {
    /// The place of the smallest key not below `key`.
    #[inline]
    fn place(&self, key: u64) -> usize {
        self.entries.partition_point(|entry| entry.0 < key)
    }

    /// The value at `key`.
    #[inline(never)]
    pub(super) fn get(&self, key: u64) -> Option<BlockId> {
        self.entries.get(self.place(key)).filter(|entry| entry.0 == key).map(|entry| entry.1)
    }

    /// Sets the value at `key`.
    #[inline(never)]
    pub(super) fn set(&mut self, key: u64, value: BlockId) {
        let at = self.place(key);
        match self.entries.get_mut(at) {
            Some(entry) if entry.0 == key => entry.1 = value,
            _ => self.entries.insert(at, (key, value)),
        }
    }

    /// Removes the key, which must be there.
    #[inline(never)]
    pub(super) fn remove(&mut self, key: u64) {
        let at = self.place(key);
        if self.entries.get(at).is_some_and(|entry| entry.0 == key) {
            self.entries.remove(at);
        }
    }

    /// The value at the smallest key not below `key`.
    #[inline]
    pub(super) fn successor(&self, key: u64) -> Option<BlockId> {
        if self.entries.is_empty() { None } else { self.entries.get(self.place(key)).map(|entry| entry.1) }
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
            let mut list = SizeList::default();
            let mut model = BTreeMap::new();
            for (op, key, shift) in ops {
                let key = key >> (shift * 5);
                match op {
                    0 => { list.set(key, BlockId(key as u32 ^ 5)); model.insert(key, BlockId(key as u32 ^ 5)); }
                    1 => if let Some((&k, _)) = model.range(key..).next() {
                        list.remove(k);
                        model.remove(&k);
                    },
                    _ => {}
                }
                prop_assert_eq!(list.get(key), model.get(&key).copied());
                prop_assert_eq!(list.successor(key), model.range(key..).next().map(|(_, v)| *v));
            }
        }
    }
}
