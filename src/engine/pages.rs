//! Reserved address space, and the physical memory that is mapped into it page by page [spec 13.2, 13.3].

use std::panic::Location;

use super::Core;
use super::shard::Request;
use crate::device::{Device, DeviceError, DeviceResult, HandleType, PhysicalHandle, Stream};
use crate::observe::snapshot::PoolKind;

/// One range of address space, for one pool on one stream.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(super) base: u64,
    pub(super) bytes: u64,
    pub(super) page: u64,
    pub(super) kind: PoolKind,
    pub(super) pool: u32,
    /// Who asked for it.
    pub(super) site: &'static Location<'static>,
    /// The physical memory behind each page that is mapped; as long as the highest of them ever demanded.
    pages: Vec<Option<PhysicalHandle>>,
}

/// All reservations of a device, and what kind of handle its pages have.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    all: Vec<Option<Reservation>>,
    handles: HandleChoice,
    /// Other devices that may read and write.
    pub(crate) peers: Vec<u32>,
}

/// The first mapping finds out which kind of shareable handle the device has [spec 13.3].
#[derive(Debug, Default, Clone, Copy)]
enum HandleChoice {
    #[default]
    Unknown,
    Settled(HandleType),
}

impl Reservations {
    pub(super) fn get(&mut self, index: u32) -> Option<&mut Reservation> {
        self.all.get_mut(index as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, reservation: Reservation) {
        match self.all.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(reservation),
            None => self.all.push(Some(reservation)),
        }
    }

    /// The place of the one that an address lies in.
    pub(super) fn place_of(&self, addr: u64) -> Option<u32> {
        let has = |r: &Reservation| (r.base..r.base + r.bytes).contains(&addr);
        self.all.iter().position(|slot| slot.as_ref().is_some_and(has)).map(|at| at as u32)
    }

    /// Forgets a reservation whose address space goes back.
    pub(super) fn remove(&mut self, index: u32) {
        if let Some(slot) = self.all.get_mut(index as usize) {
            *slot = None;
        }
    }

    /// At the end: gives back address space with nothing mapped, which a refused request may have left.
    pub(super) fn free_addresses(&mut self, device: &dyn Device) {
        for reservation in self.all.drain(..).flatten() {
            if reservation.pages.iter().all(Option::is_none) {
                // Nobody is left to hear of a failure.
                let _ = device.address_free(reservation.base, reservation.bytes);
            }
        }
    }

    /// Address and bytes of each range that is mapped without a gap.
    pub(super) fn mapped_runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for reservation in self.all.iter().flatten() {
            let mapped = reservation.pages.iter().enumerate().filter(|(_, page)| page.is_some());
            for address in mapped.map(|(index, _)| reservation.base + index as u64 * reservation.page) {
                match runs.last_mut() {
                    Some((start, bytes)) if *start >= reservation.base && *start + *bytes == address => {
                        *bytes += reservation.page;
                    }
                    _ => runs.push((address, reservation.page)),
                }
            }
        }
        runs
    }

    /// The one that an address lies in.
    pub(crate) fn covering(&self, addr: u64) -> Option<&Reservation> {
        self.all.get(self.place_of(addr)? as usize)?.as_ref()
    }
}

impl Reservation {
    /// Address space with nothing mapped in it.
    pub(super) fn new(base: u64, bytes: u64, page: u64, request: &Request) -> Self {
        let &Request { kind, pool, site, .. } = request;
        Reservation { base, bytes, page, kind, pool, site, pages: Vec::new() }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// The physical handles behind `[addr, addr + bytes)`, which must be whole mapped pages.
    pub(crate) fn handles(&self, addr: u64, bytes: u64) -> Option<Vec<PhysicalHandle>> {
        let first = ((addr - self.base) / self.page) as usize;
        let count = bytes.div_ceil(self.page) as usize;
        self.pages.get(first..first + count)?.iter().copied().collect()
    }
}

impl Core {
    /// Physical memory for a range: create all pages, map them, allow access [spec 13.3]. Undone on failure.
    pub(super) fn map_pages(
        &self,
        reservations: &mut Reservations,
        index: u32,
        addr: u64,
        bytes: u64,
    ) -> DeviceResult<bool> {
        let ordinal = self.properties.ordinal;
        let accessors: Vec<u32> =
            std::iter::once(ordinal).chain(reservations.peers.iter().copied()).collect();
        let Some(page) = reservations.get(index).map(|r| r.page) else { return Ok(false) };
        let count = (bytes / page) as usize;
        let Some(handles) = self.create_pages(&mut reservations.handles, page, count)? else {
            return Ok(false);
        };
        let mut mapped = 0;
        let mut outcome = Ok(());
        for (i, handle) in handles.iter().enumerate() {
            outcome = self.device.mem_map(addr + i as u64 * page, page, *handle);
            if outcome.is_err() {
                break;
            }
            mapped += 1;
        }
        let outcome = outcome
            .and_then(|()| accessors.iter().try_for_each(|&a| self.device.mem_set_access(addr, bytes, a)));
        if let Err(error) = outcome {
            for i in 0..mapped {
                let _ = self.device.mem_unmap(addr + i * page, page);
            }
            self.release_handles(&handles);
            return if error.is_out_of_memory() { Ok(false) } else { Err(error) };
        }
        if let Some(reservation) = reservations.get(index) {
            let first = ((addr - reservation.base) / page) as usize;
            let pages = &mut reservation.pages;
            pages.resize(pages.len().max(first + count), None);
            for (slot, handle) in pages[first..].iter_mut().zip(handles) {
                *slot = Some(handle);
            }
        }
        Ok(true)
    }

    fn create_pages(
        &self,
        choice: &mut HandleChoice,
        page: u64,
        count: usize,
    ) -> DeviceResult<Option<Vec<PhysicalHandle>>> {
        let kind = match *choice {
            HandleChoice::Settled(kind) => kind,
            HandleChoice::Unknown if !shareable_pages() => HandleType::None,
            HandleChoice::Unknown => HandleType::Fabric,
        };
        match self.create_pages_as(kind, page, count) {
            Err(error) if matches!(choice, HandleChoice::Unknown) && kind == HandleType::Fabric => {
                if matches!(error, DeviceError::ShuttingDown { .. }) {
                    return Err(error);
                }
                *choice = HandleChoice::Settled(HandleType::PosixFileDescriptor);
                self.create_pages_as(HandleType::PosixFileDescriptor, page, count)
            }
            // PyTorch takes any failure for a lack of memory once fabric handles have worked [spec 23.9].
            Err(_) if kind == HandleType::Fabric && self.mirror_defects() => Ok(None),
            // Memory ran out before the driver could say anything of the kind. PyTorch settles for fabric, and from
            // then on every mapping fails where there is none [spec 13.3].
            Ok(None) if matches!(choice, HandleChoice::Unknown) && !self.mirror_defects() => Ok(None),
            outcome => {
                *choice = HandleChoice::Settled(kind);
                outcome
            }
        }
    }

    /// `None`: no memory, and nothing is left behind.
    fn create_pages_as(
        &self,
        kind: HandleType,
        page: u64,
        count: usize,
    ) -> DeviceResult<Option<Vec<PhysicalHandle>>> {
        let mut handles = Vec::with_capacity(count);
        for _ in 0..count {
            match self.device.mem_create(page, kind) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    self.release_handles(&handles);
                    return if error.is_out_of_memory() { Ok(None) } else { Err(error) };
                }
            }
        }
        Ok(Some(handles))
    }

    fn release_handles(&self, handles: &[PhysicalHandle]) {
        for handle in handles {
            // The error that led here is the one to report.
            let _ = self.device.mem_release(*handle);
        }
    }

    /// Unmaps page by page and releases the memory. Returns how far it came.
    pub(super) fn unmap_pages(
        &self,
        reservations: &mut Reservations,
        index: u32,
        start: u64,
        end: u64,
        stream: Stream,
    ) -> (u64, DeviceResult<()>) {
        let Some(r) = reservations.get(index) else { return (start, Ok(())) };
        // The program may have destroyed the stream; its work is the device's.
        let waited = self.device.stream_synchronize(stream).or_else(|_| self.device.device_synchronize());
        if let Err(error) = waited {
            return (start, Err(error));
        }
        let mut at = start;
        while at < end {
            if let Err(error) = self.device.mem_unmap(at, r.page) {
                return (at, Err(error));
            }
            let handle = r.pages[((at - r.base) / r.page) as usize].take();
            at += r.page;
            if let Some(Err(error)) = handle.map(|h| self.device.mem_release(h)) {
                return (at, Err(error));
            }
        }
        (at, Ok(()))
    }
}

/// Whether pages are made so that other processes can map them [spec 13.3].
fn shareable_pages() -> bool {
    let off = |name: &str| std::env::var(name).is_ok_and(|v| v == "0");
    !off("GPUCACHE_EXPANDABLE_SEGMENTS_IPC") && !off("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC")
}
