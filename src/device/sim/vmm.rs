//! Virtual memory: reservations, physical handles, mappings and access rights.

use std::collections::BTreeMap;

use super::AddressPolicy;
use super::faults::{Fault, Outcome, Refusal, code};
use super::memory::{AddressSpace, PAGE, Physical};
use crate::device::{HandleType, PhysicalHandle};

#[derive(Debug)]
struct Handle {
    bytes: u64,
    mappings: usize,
    released: bool,
}

#[derive(Debug)]
struct Mapping {
    bytes: u64,
    handle: u64,
    accessors: Vec<u32>,
}

/// What the simulated device can do with virtual memory.
#[derive(Clone, Debug)]
pub(super) struct VmmAbilities {
    pub(super) supported: bool,
    pub(super) posix: bool,
    pub(super) fabric: bool,
    /// Ordinals that may be given access.
    pub(super) accessors: Vec<u32>,
}

/// The virtual memory of one process.
#[derive(Debug)]
pub(super) struct Vmm {
    can: VmmAbilities,
    pub(super) reservations: AddressSpace,
    handles: BTreeMap<u64, Handle>,
    last_handle: u64,
    mappings: BTreeMap<u64, Mapping>,
}

impl Vmm {
    pub(super) fn new(can: VmmAbilities, base: u64) -> Self {
        let reservations = AddressSpace::new(base, AddressPolicy::FirstFit);
        Vmm { can, reservations, handles: BTreeMap::new(), last_handle: 0, mappings: BTreeMap::new() }
    }

    fn check_supported(&self) -> Outcome<()> {
        if self.can.supported { Ok(()) } else { Err(Fault::NotSupported.into()) }
    }

    fn check_size(&self, bytes: u64) -> Outcome<()> {
        self.check_supported()?;
        if bytes == 0 || !bytes.is_multiple_of(PAGE) {
            return Err(invalid(format!("{bytes} bytes is not a positive multiple of 2 MiB")));
        }
        Ok(())
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Outcome<u64> {
        self.check_size(bytes)?;
        self.reservations.take(bytes)
    }

    pub(super) fn free_reservation(&mut self, address: u64, bytes: u64) -> Outcome<()> {
        self.check_supported()?;
        match self.reservations.size_at(address) {
            None => return Err(invalid(format!("no reservation begins at {address:#x}"))),
            Some(reserved) if reserved != bytes => {
                return Err(invalid(format!(
                    "the reservation at {address:#x} has {reserved} bytes, not {bytes}"
                )));
            }
            Some(_) => {}
        }
        if let Some((&at, _)) = self.mappings.range(address..address + bytes).next() {
            return Err(invalid(format!("{at:#x} is still mapped in the reservation at {address:#x}")));
        }
        self.reservations.give_back(address);
        Ok(())
    }

    pub(super) fn create(
        &mut self,
        bytes: u64,
        kind: HandleType,
        physical: &mut Physical,
        process: usize,
    ) -> Outcome<PhysicalHandle> {
        self.check_size(bytes)?;
        let granted = match kind {
            HandleType::None => true,
            HandleType::PosixFileDescriptor => self.can.posix,
            HandleType::Fabric => self.can.fabric,
        };
        if !granted {
            return Err(Fault::Driver(code::NOT_PERMITTED).into());
        }
        physical.take(process, bytes)?;
        self.last_handle += 1;
        self.handles.insert(self.last_handle, Handle { bytes, mappings: 0, released: false });
        Ok(PhysicalHandle(self.last_handle))
    }

    fn live_handle(&mut self, handle: PhysicalHandle) -> Outcome<&mut Handle> {
        self.handles.get_mut(&handle.0).filter(|h| !h.released).ok_or_else(|| {
            Refusal::misuse(code::INVALID_HANDLE, format!("handle {} is unknown or released", handle.0))
        })
    }

    pub(super) fn handle_bytes(&self, handle: PhysicalHandle) -> u64 {
        self.handles.get(&handle.0).map_or(0, |h| h.bytes)
    }

    /// The memory lives until it is released and no longer mapped; `true` when this was its end.
    pub(super) fn release(
        &mut self,
        handle: PhysicalHandle,
        physical: &mut Physical,
        process: usize,
    ) -> Outcome<bool> {
        self.check_supported()?;
        self.live_handle(handle)?.released = true;
        Ok(self.bury(handle.0, physical, process))
    }

    fn bury(&mut self, handle: u64, physical: &mut Physical, process: usize) -> bool {
        let dead = self.handles.get(&handle).is_some_and(|h| h.released && h.mappings == 0);
        if dead && let Some(state) = self.handles.remove(&handle) {
            physical.give_back(process, state.bytes);
        }
        dead
    }

    pub(super) fn map(&mut self, address: u64, bytes: u64, handle: PhysicalHandle) -> Outcome<()> {
        self.check_size(bytes)?;
        let end = address.checked_add(bytes).ok_or_else(|| invalid("the range wraps around"))?;
        let size = self.live_handle(handle)?.bytes;
        if bytes > size {
            return Err(invalid(format!("{bytes} bytes of handle {}, which has {size}", handle.0)));
        }
        if !address.is_multiple_of(PAGE) {
            return Err(invalid(format!("{address:#x} is not 2 MiB aligned")));
        }
        if self.reservations.around(address).is_none_or(|(start, len)| end > start + len) {
            return Err(invalid(format!("{address:#x}+{bytes} does not lie in one reservation")));
        }
        if let Some((at, mapping)) = self.mappings.range(..end).next_back()
            && at + mapping.bytes > address
        {
            return Err(invalid(format!("{address:#x}+{bytes} overlaps the mapping at {at:#x}")));
        }
        self.live_handle(handle)?.mappings += 1;
        self.mappings.insert(address, Mapping { bytes, handle: handle.0, accessors: Vec::new() });
        Ok(())
    }

    /// Undoes one mapping; the handle whose memory ended with it, if so.
    pub(super) fn unmap(
        &mut self,
        address: u64,
        bytes: u64,
        physical: &mut Physical,
        process: usize,
    ) -> Outcome<Option<PhysicalHandle>> {
        self.check_supported()?;
        match self.mappings.get(&address) {
            None => return Err(invalid(format!("no mapping begins at {address:#x}"))),
            Some(m) if m.bytes != bytes => {
                return Err(invalid(format!(
                    "the mapping at {address:#x} has {} bytes, not {bytes}",
                    m.bytes
                )));
            }
            Some(_) => {}
        }
        let handle = self.mappings.remove(&address).map_or(0, |m| m.handle);
        if let Some(state) = self.handles.get_mut(&handle) {
            state.mappings -= 1;
        }
        Ok(self.bury(handle, physical, process).then_some(PhysicalHandle(handle)))
    }

    /// The range has to consist of whole mappings without a gap.
    pub(super) fn set_access(&mut self, address: u64, bytes: u64, accessor: u32) -> Outcome<()> {
        self.check_size(bytes)?;
        if !self.can.accessors.contains(&accessor) {
            return Err(Fault::Driver(code::INVALID_DEVICE).into());
        }
        let end = address.checked_add(bytes).ok_or_else(|| invalid("the range wraps around"))?;
        let mut covered = address;
        for (&at, mapping) in self.mappings.range(address..end) {
            if at != covered {
                break;
            }
            covered += mapping.bytes;
        }
        if covered != end {
            return Err(invalid(format!("{address:#x}+{bytes} is no row of whole mappings")));
        }
        for (_, mapping) in self.mappings.range_mut(address..end) {
            if !mapping.accessors.contains(&accessor) {
                mapping.accessors.push(accessor);
            }
        }
        Ok(())
    }

    /// Where `address` lies physically: handle, offset in it, and the bytes from there to the mapping's end.
    /// `None` unless `accessor` may touch it.
    pub(super) fn translate(&self, address: u64, accessor: u32) -> Option<(PhysicalHandle, u64, u64)> {
        let (&at, mapping) = self.mappings.range(..=address).next_back()?;
        let offset = address - at;
        (offset < mapping.bytes && mapping.accessors.contains(&accessor)).then_some((
            PhysicalHandle(mapping.handle),
            offset,
            mapping.bytes - offset,
        ))
    }

    pub(super) fn leaks(&self) -> Vec<String> {
        let reservations = self.reservations.live().map(|(at, len)| format!("reservation {at:#x}+{len}"));
        let mappings = self.mappings.iter().map(|(at, m)| format!("mapping {at:#x}+{}", m.bytes));
        let handles = self.handles.iter().filter(|(_, h)| !h.released);
        let handles = handles.map(|(id, h)| format!("physical handle {id}, {} bytes", h.bytes));
        reservations.chain(mappings).chain(handles).collect()
    }
}

fn invalid(what: impl Into<String>) -> Refusal {
    Refusal::misuse(code::INVALID_VALUE, what)
}
