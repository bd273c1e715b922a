//! Virtual memory management.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint, c_void};

use crate::backing::{self, Backing, GRANULARITY};
use crate::books::{Books, Mapping, Physical};
use crate::errors::*;
use crate::{Answer, driver, put};

/// `CUmemAllocationProp`, `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: u32,
    id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32_metadata: *mut c_void,
    flags: [u8; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AccessDesc {
    location: Location,
    flags: u32,
}

const FABRIC: u32 = 8;
const DEVICE: u32 = 1;
const PINNED: u32 = 1;

fn read<T: Copy>(place: *const T) -> Answer<T> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: every entry point's contract is that pointers are null or valid.
    Ok(unsafe { place.read() })
}

fn check_size(bytes: usize) -> Answer {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) { Err(INVALID_VALUE) } else { Ok(()) }
}

/// Forgets physical memory that neither a handle nor a mapping keeps.
fn drop_if_unused(books: &mut Books, handle: u64) {
    let unused = books.physical.get(&handle).is_some_and(|memory| !memory.held && memory.mappings == 0);
    if unused
        && let Some(memory) = books.physical.remove(&handle)
        && memory.charged
    {
        books.refund(memory.device, memory.backing.bytes);
    }
}

/// Bases of the mappings that a range consists of, exactly.
fn mappings_in(books: &Books, address: u64, bytes: usize) -> Option<Vec<u64>> {
    let (mut at, end) = (address, address + bytes as u64);
    let mut bases = Vec::new();
    while at < end {
        bases.push(at);
        at += books.mappings.get(&at)?.bytes as u64;
    }
    (at == end).then_some(bases)
}

pub fn add_physical(
    books: &mut Books,
    device: usize,
    backing: Backing,
    handle_types: u32,
    charged: bool,
) -> u64 {
    let handle = books.fresh();
    books
        .physical
        .insert(handle, Physical { device, backing, handle_types, held: true, mappings: 0, charged });
    handle
}

driver! {
    fn cuMemGetAllocationGranularity(granularity: *mut usize, _properties: *const AllocationProp, _option: c_uint) |_books| {
        put(granularity, GRANULARITY)
    }

    fn cuMemAddressReserve(address: *mut u64, bytes: usize, _alignment: usize, _hint: u64, flags: u64) |books| {
        books.context("cuMemAddressReserve")?;
        check_size(bytes)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let at = backing::reserve(bytes)?;
        books.reservations.insert(at, bytes);
        put(address, at)
    }

    fn cuMemAddressFree(address: u64, bytes: usize) |books| {
        books.context("cuMemAddressFree")?;
        let mapped = books.mappings.range(address..address + bytes as u64).next().is_some();
        if books.reservations.get(&address) != Some(&bytes) || mapped {
            let text = format!("cuMemAddressFree({address:#x}, {bytes}): no such reservation, or something is mapped");
            return books.violation(INVALID_VALUE, text);
        }
        books.reservations.remove(&address);
        backing::release(address, bytes);
        Ok(())
    }

    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const AllocationProp, flags: u64) |books| {
        books.context("cuMemCreate")?;
        check_size(bytes)?;
        let properties = read(properties)?;
        if flags != 0 || properties.kind != PINNED || properties.location.kind != DEVICE {
            return Err(INVALID_VALUE);
        }
        if properties.handle_types & FABRIC != 0 {
            return Err(NOT_SUPPORTED);
        }
        let device = usize::try_from(properties.location.id).map_err(|_| INVALID_DEVICE)?;
        if device >= books.devices.len() {
            return Err(INVALID_DEVICE);
        }
        books.charge(device, bytes)?;
        match Backing::new(bytes) {
            Ok(backing) => {
                let made = add_physical(books, device, backing, properties.handle_types, true);
                put(handle, made)
            }
            Err(code) => {
                books.refund(device, bytes);
                Err(code)
            }
        }
    }

    fn cuMemRelease(handle: u64) |books| {
        match books.physical.get_mut(&handle) {
            Some(memory) if memory.held => memory.held = false,
            _ => return books.violation(INVALID_VALUE, format!("cuMemRelease of {handle:#x}: not held")),
        }
        drop_if_unused(books, handle);
        Ok(())
    }

    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) |books| {
        books.context("cuMemMap")?;
        check_size(bytes)?;
        let end = address + bytes as u64;
        let reserved = books.reservations.range(..=address).next_back()
            .is_some_and(|(base, size)| end <= base + *size as u64);
        let taken = books.mappings.range(..end).next_back()
            .is_some_and(|(base, mapping)| base + mapping.bytes as u64 > address);
        let Some(memory) = books.physical.get_mut(&handle).filter(|memory| memory.held) else {
            return books.violation(INVALID_HANDLE, format!("cuMemMap of {handle:#x}: no such memory"));
        };
        if offset != 0 || flags != 0 || bytes > memory.backing.bytes || !reserved || taken {
            return books.violation(INVALID_VALUE, format!("cuMemMap({address:#x}, {bytes}): not free and reserved"));
        }
        memory.backing.map_at(address, bytes, false)?;
        memory.mappings += 1;
        books.mappings.insert(address, Mapping { bytes, physical: handle, accessors: BTreeSet::new() });
        Ok(())
    }

    fn cuMemUnmap(address: u64, bytes: usize) |books| {
        books.context("cuMemUnmap")?;
        let Some(bases) = mappings_in(books, address, bytes) else {
            return books.violation(INVALID_VALUE, format!("cuMemUnmap({address:#x}, {bytes}): not whole mappings"));
        };
        for base in bases {
            if let Some(mapping) = books.mappings.remove(&base) {
                backing::unmap_within(base, mapping.bytes);
                if let Some(memory) = books.physical.get_mut(&mapping.physical) {
                    memory.mappings -= 1;
                }
                drop_if_unused(books, mapping.physical);
            }
        }
        Ok(())
    }

    fn cuMemSetAccess(address: u64, bytes: usize, access: *const AccessDesc, count: usize) |books| {
        books.context("cuMemSetAccess")?;
        let Some(bases) = mappings_in(books, address, bytes) else {
            return books.violation(INVALID_VALUE, format!("cuMemSetAccess({address:#x}, {bytes}): not whole mappings"));
        };
        for index in 0..count {
            let description = read(access.wrapping_add(index))?;
            let known = (description.location.id as usize) < books.devices.len();
            if description.location.kind != DEVICE || description.flags != 3 || !known {
                return Err(INVALID_VALUE);
            }
            for base in &bases {
                if let Some(mapping) = books.mappings.get_mut(base) {
                    mapping.accessors.insert(description.location.id);
                }
            }
        }
        backing::give_access(address, bytes)
    }
}
