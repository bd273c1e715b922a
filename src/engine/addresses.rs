//! From an address to its block, for clients that keep addresses instead of handles.
//!
//! A radix table over 2 MiB pages: three loads, no lock, no hashing. Only blocks that were given out by
//! address are in it.
//!
//! A slot is filled by whoever has the block in hand and gives its address out. It is emptied under the lock of the
//! block's shard, so that plain stores do: of several threads that free one address, one finds it there.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::MutexGuard;

use super::Core;
use super::lock::ShardGuard;
use super::shard::ShardState;
use super::shards::Shard;
use crate::pool::block::BlockId;

const PAGE_BITS: u32 = 21;
const MID_BITS: u32 = 14;
const TOP_BITS: u32 = 13;
/// One slot per 512 bytes of a page.
const SLOTS: usize = 1 << (PAGE_BITS - 9);

// Of fixed length, so that no index is checked.
type Page = Box<[AtomicU64; SLOTS]>;
type Mid = Box<[OnceLock<Page>; 1 << MID_BITS]>;
type Top = Box<[OnceLock<Mid>; 1 << TOP_BITS]>;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the shard.
    pub(crate) shard: u32,
    pub(crate) block: BlockId,
}

impl Place {
    /// 0 means "nothing", so the shard is stored off by one.
    fn pack(self) -> u64 {
        (u64::from(self.shard) + 1) << 32 | u64::from(self.block.0)
    }

    fn unpack(word: u64) -> Option<Place> {
        let shard = (word >> 32).checked_sub(1)? as u32;
        Some(Place { shard, block: BlockId(word as u32) })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Addresses {
    top: OnceLock<Top>,
}

/// The array in a cell, made if need be; it is too large for a stack. Never `None`.
fn made<T: Default, const N: usize>(cell: &OnceLock<Box<[T; N]>>) -> Option<&[T; N]> {
    if let Some(known) = cell.get() {
        return Some(known);
    }
    let fresh: Box<[T]> = (0..N).map(|_| T::default()).collect();
    let fresh = fresh.try_into().ok()?;
    Some(cell.get_or_init(|| fresh))
}

fn split(addr: u64) -> Option<(usize, usize, usize)> {
    let page = addr >> PAGE_BITS;
    let top = (page >> MID_BITS) as usize;
    if top >= 1 << TOP_BITS || addr & 511 != 0 {
        return None;
    }
    Some((top, (page & ((1 << MID_BITS) - 1)) as usize, (addr >> 9) as usize % SLOTS))
}

impl Addresses {
    #[inline]
    fn slot(&self, addr: u64) -> Option<&AtomicU64> {
        let (top, mid, slot) = split(addr)?;
        Some(&self.top.get()?[top].get()?[mid].get()?[slot])
    }

    /// The same, made if need be; `None` for an address beyond what the table covers (2^48 bytes, multiples of 512).
    fn make_slot(&self, addr: u64) -> Option<&AtomicU64> {
        let (top, mid, slot) = split(addr)?;
        Some(&made(&made(&made(&self.top)?[top])?[mid])?[slot])
    }

    #[inline]
    pub(crate) fn get(&self, addr: u64) -> Option<Place> {
        Place::unpack(self.slot(addr)?.load(Ordering::Acquire))
    }
}

/// A block that was given out by address, under its shard's lock: it stays so until that is gone.
pub(crate) struct Given<'a> {
    pub(crate) shard: &'a Shard,
    /// As it is: a block may be parked, though not this one.
    pub(crate) state: ShardGuard<'a, ShardState>,
    /// `NONE`: it came from the driver, past the cache.
    pub(crate) block: BlockId,
    pub(super) entry: Entry<'a>,
}

/// Where an address is noted.
pub(super) enum Entry<'a> {
    Slot(&'a AtomicU64),
    Far(MutexGuard<'a, HashMap<u64, Place>>, u64),
}

impl Entry<'_> {
    /// The address is not known any more. Its shard is locked.
    #[inline]
    pub(super) fn clear(self) {
        match self {
            // Nobody reads more from it than whether it is what it was.
            Entry::Slot(slot) => slot.store(0, Ordering::Relaxed),
            Entry::Far(mut far, addr) => drop(far.remove(&addr)),
        }
    }
}

impl Given<'_> {
    /// Takes the block from those who know its address.
    pub(crate) fn take(self) {
        self.entry.clear();
    }
}

impl Core {
    /// Notes a block that is given out by address.
    #[inline]
    pub(crate) fn note_address(&self, addr: u64, place: Place) {
        match self.addresses.slot(addr) {
            Some(slot) => slot.store(place.pack(), Ordering::Release),
            None => self.note_elsewhere(addr, place),
        }
    }

    /// The first address of its page, or one that the table does not cover.
    #[cold]
    fn note_elsewhere(&self, addr: u64, place: Place) {
        match self.addresses.make_slot(addr) {
            Some(slot) => slot.store(place.pack(), Ordering::Release),
            None => drop(self.far_addresses.lock().insert(addr, place)),
        }
    }

    /// Locks the shard of a block that was given out by address.
    #[inline(always)]
    pub(crate) fn given(&self, addr: u64) -> Option<Given<'_>> {
        let Some(slot) = self.addresses.slot(addr) else { return self.given_far(addr) };
        let word = slot.load(Ordering::Acquire);
        let Place { shard, block } = Place::unpack(word)?;
        let shard = self.shards.at(shard)?;
        let state = shard.lock_hot();
        // Whoever was faster has freed it; if it was given out again since, it is not this caller's.
        (slot.load(Ordering::Relaxed) == word).then(|| Given {
            shard,
            state,
            block,
            entry: Entry::Slot(slot),
        })
    }

    #[cold]
    fn given_far(&self, addr: u64) -> Option<Given<'_>> {
        let far = self.far_addresses.lock();
        let Place { shard, block } = *far.get(&addr)?;
        let shard = self.shards.at(shard)?;
        Some(Given { shard, state: shard.lock_hot(), block, entry: Entry::Far(far, addr) })
    }

    pub(crate) fn find_address(&self, addr: u64) -> Option<Place> {
        self.addresses.get(addr).or_else(|| self.far_addresses.lock().get(&addr).copied())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_block_by_its_start() {
        let table = Addresses::default();
        let place = Place { shard: 0, block: BlockId(0) };
        assert_eq!(table.get(0x7f00_0000_0200), None);
        table.make_slot(0x7f00_0000_0200).unwrap().store(place.pack(), Ordering::Release);
        assert_eq!(table.get(0x7f00_0000_0200), Some(place));
        assert_eq!(table.get(0x7f00_0000_0000), None);
        assert_eq!(table.get(0x7f00_0000_0201), None);
        assert!(table.make_slot(0x7f00_0000_0201).is_none());
        assert!(table.make_slot(1 << 48).is_none());
    }
}
