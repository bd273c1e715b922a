//! Memory between processes: handles that name the memory file.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};

use crate::backing::{self, Backing};
use crate::books::{Kind, Region};
use crate::errors::*;
use crate::vmm::add_physical;
use crate::{driver, put};

/// `CUipcMemHandle`: pid, descriptor, mark, zeros.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle([u8; 64]);

const MARK: &[u8; 8] = b"fakecuda";
const POSIX_FILE_DESCRIPTOR: u32 = 1;

driver! {
    fn cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64) |books| {
        books.context("cuIpcGetMemHandle")?;
        let (_, region) = books.region_of(address).ok_or(INVALID_VALUE)?;
        let backing = region.backing.as_ref().filter(|_| region.kind == Kind::Device).ok_or(INVALID_VALUE)?;
        let mut bytes = [0; 64];
        bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[4..8].copy_from_slice(&backing.fd().as_raw_fd().to_le_bytes());
        bytes[8..16].copy_from_slice(MARK);
        put(handle, IpcHandle(bytes))
    }

    fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: IpcHandle, _flags: c_uint) |books| {
        let device = books.device("cuIpcOpenMemHandle")?;
        let bytes = handle.0;
        if &bytes[8..16] != MARK {
            return Err(INVALID_VALUE);
        }
        let pid = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let fd = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        // The real driver's answer for a handle of the same process.
        if pid == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        let file = std::fs::File::options().read(true).write(true)
            .open(format!("/proc/{pid}/fd/{fd}"))
            .map_err(|_| INVALID_VALUE)?;
        let backing = Backing::adopt(file.as_fd())?;
        let at = backing.map()?;
        let region = Region { kind: Kind::Opened, bytes: backing.bytes, device, backing: Some(backing) };
        books.regions.insert(at, region);
        put(address, at)
    }

    fn cuIpcCloseMemHandle(address: u64) |books| {
        books.context("cuIpcCloseMemHandle")?;
        match books.regions.get(&address) {
            Some(region) if region.kind == Kind::Opened => {
                backing::release(address, region.bytes);
                books.regions.remove(&address);
                Ok(())
            }
            _ => books.violation(INVALID_VALUE, format!("cuIpcCloseMemHandle of {address:#x}: not opened")),
        }
    }

    fn cuMemExportToShareableHandle(shareable: *mut c_void, handle: u64, kind: c_uint, _flags: u64) |books| {
        books.context("cuMemExportToShareableHandle")?;
        let memory = books.physical.get(&handle).filter(|memory| memory.held).ok_or(INVALID_VALUE)?;
        if kind != POSIX_FILE_DESCRIPTOR || memory.handle_types & kind == 0 {
            return Err(INVALID_VALUE);
        }
        let fd = memory.backing.fd().try_clone_to_owned().map_err(|_| OUT_OF_MEMORY)?;
        put(shareable.cast::<c_int>(), fd.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(handle: *mut u64, shareable: *mut c_void, kind: c_uint) |books| {
        let device = books.device("cuMemImportFromShareableHandle")?;
        let fd = shareable as isize as c_int;
        if kind != POSIX_FILE_DESCRIPTOR || fd < 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: for this kind the manual makes the argument an open descriptor of the caller's.
        let backing = Backing::adopt(unsafe { BorrowedFd::borrow_raw(fd) })?;
        let made = add_physical(books, device, backing, kind, false);
        put(handle, made)
    }
}
