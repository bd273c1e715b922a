//! From an address to its block, for clients that keep addresses instead of handles.
//!
//! A radix table over 2 MiB pages: three loads, no lock, no hashing. Only blocks that were given out by
//! address are in it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Core;
use crate::pool::block::BlockId;

const PAGE_BITS: u32 = 21;
const MID_BITS: u32 = 14;
const TOP_BITS: u32 = 13;
/// One slot per 512 bytes of a page.
const SLOTS: usize = 1 << (PAGE_BITS - 9);

type Page = Box<[AtomicU64]>;
type Mid = Box<[OnceLock<Page>]>;

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
    top: OnceLock<Box<[OnceLock<Mid>]>>,
}

fn empty<T>(bits: u32) -> Box<[OnceLock<T>]> {
    (0..1usize << bits).map(|_| OnceLock::new()).collect()
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
    fn slot(&self, addr: u64) -> Option<&AtomicU64> {
        let (top, mid, slot) = split(addr)?;
        Some(&self.top.get()?[top].get()?[mid].get()?[slot])
    }

    /// Notes a block; `false` if the address is beyond what the table covers (2^48 bytes, multiples of 512).
    #[inline]
    pub(crate) fn insert(&self, addr: u64, place: Place) -> bool {
        let Some((top, mid, slot)) = split(addr) else { return false };
        let top = &self.top.get_or_init(|| empty(TOP_BITS))[top];
        let mid = &top.get_or_init(|| empty(MID_BITS))[mid];
        let page = mid.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(0)).collect());
        page[slot].store(place.pack(), Ordering::Release);
        true
    }

    /// Takes a block out: of several callers with one address, one gets it.
    #[inline]
    pub(crate) fn remove(&self, addr: u64) -> Option<Place> {
        Place::unpack(self.slot(addr)?.swap(0, Ordering::AcqRel))
    }

    #[inline]
    pub(crate) fn get(&self, addr: u64) -> Option<Place> {
        Place::unpack(self.slot(addr)?.load(Ordering::Acquire))
    }
}

impl Core {
    /// Notes a block that is given out by address.
    #[inline]
    pub(crate) fn note_address(&self, addr: u64, place: Place) {
        if !self.addresses.insert(addr, place) {
            self.far_addresses.lock().insert(addr, place);
        }
    }

    /// Takes a block out by its address: of several callers, one gets it.
    #[inline]
    pub(crate) fn take_address(&self, addr: u64) -> Option<Place> {
        self.addresses.remove(addr).or_else(|| self.far_addresses.lock().remove(&addr))
    }

    pub(crate) fn find_address(&self, addr: u64) -> Option<Place> {
        self.addresses.get(addr).or_else(|| self.far_addresses.lock().get(&addr).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_a_block_to_one_caller() {
        let table = Addresses::default();
        let place = Place { shard: 0, block: BlockId(0) };
        assert_eq!(table.remove(0x7f00_0000_0200), None);
        assert!(table.insert(0x7f00_0000_0200, place));
        assert_eq!(table.get(0x7f00_0000_0200), Some(place));
        assert_eq!(table.get(0x7f00_0000_0000), None);
        assert_eq!(table.get(0x7f00_0000_0201), None);
        assert_eq!(table.remove(0x7f00_0000_0200), Some(place));
        assert_eq!(table.remove(0x7f00_0000_0200), None);
        assert!(!table.insert(1 << 48, place));
    }
}
