//! Page-locked host memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;

use super::faults::{Fault, Outcome, Refusal, code};

const HOST_PAGE: usize = 4096;
/// Where addresses without memory behind them begin.
const FAKE_BASE: u64 = 0x7000_0000_0000;

/// The page-locked memory of one process.
#[derive(Debug)]
pub(super) struct Host {
    /// Whether `host_malloc` gives memory that can be read and written.
    real: bool,
    limit: u64,
    in_use: u64,
    next_fake: u64,
    allocated: BTreeMap<u64, u64>,
    registered: BTreeMap<u64, u64>,
}

impl Host {
    pub(super) fn new(real: bool, limit: u64) -> Self {
        let (allocated, registered) = (BTreeMap::new(), BTreeMap::new());
        Host { real, limit, in_use: 0, next_fake: FAKE_BASE, allocated, registered }
    }

    pub(super) fn is_real(&self) -> bool {
        self.real
    }

    pub(super) fn malloc(&mut self, bytes: u64) -> Outcome<u64> {
        if bytes == 0 {
            return Err(Refusal::misuse(code::INVALID_VALUE, "0 bytes"));
        }
        let after = self.in_use.checked_add(bytes).filter(|&sum| sum <= self.limit);
        let after = after.ok_or(Fault::OutOfMemory)?;
        let address = if self.real { allocate(bytes)? } else { self.fake(bytes)? };
        self.in_use = after;
        self.allocated.insert(address, bytes);
        Ok(address)
    }

    fn fake(&mut self, bytes: u64) -> Outcome<u64> {
        let address = self.next_fake;
        let end = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(HOST_PAGE as u64));
        self.next_fake = end.ok_or(Fault::OutOfMemory)?;
        Ok(address)
    }

    pub(super) fn size(&self, address: u64) -> u64 {
        self.allocated.get(&address).or_else(|| self.registered.get(&address)).copied().unwrap_or(0)
    }

    pub(super) fn free(&mut self, address: u64) -> Outcome<()> {
        let Some(bytes) = self.allocated.remove(&address) else {
            let what = format!("{address:#x} is not the start of live host memory (freed twice, or foreign)");
            return Err(Refusal::misuse(code::INVALID_VALUE, what));
        };
        self.in_use -= bytes;
        if self.real {
            deallocate(address, bytes);
        }
        Ok(())
    }

    pub(super) fn register(&mut self, address: u64, bytes: u64) -> Outcome<()> {
        let end = address.checked_add(bytes).filter(|_| address != 0 && bytes != 0);
        let Some(end) = end else {
            return Err(Refusal::misuse(code::INVALID_VALUE, format!("{address:#x}+{bytes} is no memory")));
        };
        let overlaps = |ranges: &BTreeMap<u64, u64>| {
            ranges.range(..end).next_back().is_some_and(|(&at, &len)| at + len > address)
        };
        if overlaps(&self.registered) || overlaps(&self.allocated) {
            let what = format!("{address:#x}+{bytes} is page-locked already");
            return Err(Refusal::misuse(code::HOST_MEMORY_ALREADY_REGISTERED, what));
        }
        let after = self.in_use.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.in_use = after.ok_or(Fault::OutOfMemory)?;
        self.registered.insert(address, bytes);
        Ok(())
    }

    pub(super) fn unregister(&mut self, address: u64) -> Outcome<()> {
        let Some(bytes) = self.registered.remove(&address) else {
            let what = format!("{address:#x} is not the start of registered memory");
            return Err(Refusal::misuse(code::HOST_MEMORY_NOT_REGISTERED, what));
        };
        self.in_use -= bytes;
        Ok(())
    }

    pub(super) fn leaks(&self) -> Vec<String> {
        let allocated = self.allocated.iter().map(|(at, len)| format!("host memory {at:#x}+{len}"));
        let registered =
            self.registered.iter().map(|(at, len)| format!("registered host memory {at:#x}+{len}"));
        allocated.chain(registered).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.real {
            for (&address, &bytes) in &self.allocated {
                deallocate(address, bytes);
            }
        }
    }
}

fn layout(bytes: u64) -> Option<Layout> {
    Layout::from_size_align(usize::try_from(bytes).ok()?, HOST_PAGE).ok()
}

fn allocate(bytes: u64) -> Outcome<u64> {
    let layout = layout(bytes).ok_or(Fault::OutOfMemory)?;
    // SAFETY: the size is not zero (`Host::malloc` refuses that) and the layout was checked. Zeroed, so that
    // safe code may read what it has not written.
    let pointer = unsafe { alloc_zeroed(layout) };
    if pointer.is_null() { Err(Fault::OutOfMemory.into()) } else { Ok(pointer.expose_provenance() as u64) }
}

fn deallocate(address: u64, bytes: u64) {
    let Some(layout) = layout(bytes) else { return };
    // SAFETY: address and size are an entry of `allocated`, which `allocate` made with the same layout; the
    // caller takes the entry out (or drops the map), so nobody frees it again.
    unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address as usize), layout) };
}
