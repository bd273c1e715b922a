//! Memory that other processes and other devices reach [spec 13.7, 19].

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Core;
use crate::device::{Device, DeviceError, DeviceResult, FabricHandle, IpcHandle, PhysicalHandle};
use crate::error::{Error, Result};

/// What names a page to another process.
#[derive(Debug)]
pub(crate) enum PageHandle {
    Descriptor(std::os::fd::OwnedFd),
    Fabric(FabricHandle),
}

/// What names the memory of a block to another process; the offset is that of the block in it.
#[derive(Debug)]
pub(crate) enum Exported {
    Segment { handle: IpcHandle, offset: u64 },
    Pages { page: u64, pages: Vec<PageHandle>, offset: u64 },
}

/// Segments of other processes: the driver opens each only once.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    open: Mutex<HashMap<IpcHandle, Weak<ForeignSegment>>>,
}

/// A segment of another process; closed when the last block in it goes.
#[derive(Debug)]
pub(crate) struct ForeignSegment {
    device: Arc<dyn Device>,
    base: u64,
}

impl Drop for ForeignSegment {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure.
        let _ = self.device.ipc_close(self.base);
    }
}

/// Pages of another process, mapped here.
#[derive(Debug)]
pub(crate) struct ForeignPages {
    device: Arc<dyn Device>,
    base: u64,
    page: u64,
    /// Reserved pages, and how many of them are mapped.
    count: u64,
    mapped: u64,
}

impl Drop for ForeignPages {
    fn drop(&mut self) {
        // As above; the address space is given back only if nothing is left in it.
        let _ = self.device.device_synchronize();
        let mut pages = 0..self.mapped;
        if pages.all(|index| self.device.mem_unmap(self.base + index * self.page, self.page).is_ok()) {
            let _ = self.device.address_free(self.base, self.count * self.page);
        }
    }
}

impl ForeignSegment {
    pub(crate) fn base(&self) -> u64 {
        self.base
    }
}

impl ForeignPages {
    pub(crate) fn base(&self) -> u64 {
        self.base
    }
}

impl Core {
    /// Names the memory of a live block. Expandable segments name the pages that hold the block.
    pub(crate) fn export(&self, address: u64, bytes: u64) -> Result<Exported> {
        self.check_process()?;
        let growth = self.growth.lock();
        let Some(reservation) = growth.reservations.covering(address) else {
            let (base, _) = self.device.address_range(address)?;
            return Ok(Exported::Segment { handle: self.device.ipc_export(base)?, offset: address - base });
        };
        let page = reservation.page();
        let offset = (address - reservation.base()) % page;
        let Some(handles) = reservation.handles(address - offset, bytes + offset) else {
            return Err(Error::InvalidPointer { address, reason: "its pages are not mapped" });
        };
        let pages =
            handles.into_iter().map(|handle| self.export_page(handle)).collect::<DeviceResult<_>>()?;
        Ok(Exported::Pages { page, pages, offset })
    }

    fn export_page(&self, handle: PhysicalHandle) -> DeviceResult<PageHandle> {
        // Pages are of one kind [spec 13.3], and the driver says of which.
        self.device.mem_export_fd(handle).map(PageHandle::Descriptor).or_else(|error| {
            let fabric = self.device.mem_export_fabric(handle);
            fabric.map(PageHandle::Fabric).map_err(|_| error)
        })
    }

    /// Opens another process's segment, or finds it open.
    pub(crate) fn open_segment(&self, handle: &IpcHandle) -> Result<Arc<ForeignSegment>> {
        self.check_process()?;
        let mut open = self.foreign.open.lock();
        if let Some(segment) = open.get(handle).and_then(Weak::upgrade) {
            return Ok(segment);
        }
        let base = self.device.ipc_open(handle)?;
        let segment = Arc::new(ForeignSegment { device: Arc::clone(&self.device), base });
        open.retain(|_, segment| segment.strong_count() > 0);
        open.insert(*handle, Arc::downgrade(&segment));
        Ok(segment)
    }

    /// Maps another process's pages one after another.
    pub(crate) fn map_foreign(&self, page: u64, pages: &[PageHandle]) -> Result<ForeignPages> {
        self.check_process()?;
        let count = pages.len() as u64;
        let base = self.device.address_reserve(page * count)?;
        // Its drop undoes what was done when a step fails.
        let mut mapping = ForeignPages { device: Arc::clone(&self.device), base, page, count, mapped: 0 };
        for handle in pages {
            let physical = self.import_page(handle)?;
            let mapped = self.device.mem_map(base + mapping.mapped * page, page, physical);
            // The mapping keeps the memory.
            let released = self.device.mem_release(physical);
            mapped?;
            mapping.mapped += 1;
            released?;
        }
        self.device.mem_set_access(base, page * count, self.properties.ordinal)?;
        Ok(mapping)
    }

    fn import_page(&self, handle: &PageHandle) -> DeviceResult<PhysicalHandle> {
        use std::os::fd::AsFd;
        match handle {
            PageHandle::Descriptor(fd) => self.device.mem_import_fd(fd.as_fd()),
            PageHandle::Fabric(fabric) => self.device.mem_import_fabric(fabric),
        }
    }

    /// Lets device `accessor` reach this device's mapped memory, now and later.
    pub(crate) fn allow_access(&self, accessor: u32) -> Result<(), DeviceError> {
        let mut growth = self.growth.lock();
        if growth.reservations.peers.contains(&accessor) {
            return Ok(());
        }
        for (address, bytes) in growth.reservations.mapped_runs() {
            self.device.mem_set_access(address, bytes, accessor)?;
        }
        growth.reservations.peers.push(accessor);
        Ok(())
    }
}
