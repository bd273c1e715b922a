//! Pages that stand for device memory.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::Answer;
use crate::errors::{INVALID_VALUE, OUT_OF_MEMORY};

/// Step of physical memory, and alignment of all addresses: the H200's.
pub const GRANULARITY: usize = 2 << 20;

/// Memory that can be mapped more than once, also by other processes: a memory file.
pub struct Backing {
    file: OwnedFd,
    pub bytes: usize,
}

impl Backing {
    pub fn new(bytes: usize) -> Answer<Self> {
        // SAFETY: the name is a C string; the call takes no other pointer.
        let fd = unsafe { libc::memfd_create(c"fake-cuda".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: the descriptor was just made and belongs to no one else.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the call takes no pointer. The file is sparse: pages cost memory when they are written.
        if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } != 0 {
            return Err(OUT_OF_MEMORY);
        }
        Ok(Backing { file, bytes })
    }

    /// Another process's memory, by a descriptor of its file.
    pub fn adopt(fd: BorrowedFd<'_>) -> Answer<Self> {
        let file = fd.try_clone_to_owned().map_err(|_| INVALID_VALUE)?;
        let bytes = std::fs::File::from(file.try_clone().map_err(|_| INVALID_VALUE)?)
            .metadata()
            .map_err(|_| INVALID_VALUE)?
            .len() as usize;
        Ok(Backing { file, bytes })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.file)
    }

    /// Maps the whole memory somewhere, readable and writable.
    pub fn map(&self) -> Answer<u64> {
        let address = reserve(self.bytes)?;
        self.map_at(address, self.bytes, true)?;
        Ok(address)
    }

    /// Maps over addresses of [`reserve`].
    pub fn map_at(&self, address: u64, bytes: usize, accessible: bool) -> Answer {
        let protection = if accessible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        // SAFETY: the addresses are a reservation of this driver's, in which nothing else is kept.
        let at = unsafe {
            libc::mmap(
                address as *mut c_void,
                bytes,
                protection,
                libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
                self.file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(()) }
    }
}

/// Addresses that nothing can be read from or written to.
pub fn reserve(bytes: usize) -> Answer<u64> {
    let padded = bytes.checked_add(GRANULARITY).ok_or(OUT_OF_MEMORY)?;
    // SAFETY: a fresh mapping disturbs nothing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), padded, libc::PROT_NONE, ANONYMOUS, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    let start = (at as usize).next_multiple_of(GRANULARITY);
    let before = start - at as usize;
    let after = padded - before - bytes.next_multiple_of(PAGE);
    release(at as u64, before);
    release((start + bytes.next_multiple_of(PAGE)) as u64, after);
    Ok(start as u64)
}

/// Turns mapped addresses back into reserved ones.
pub fn unmap_within(address: u64, bytes: usize) {
    // SAFETY: the addresses are a mapping of this driver's inside one of its reservations.
    unsafe { libc::mmap(address as *mut c_void, bytes, libc::PROT_NONE, ANONYMOUS | libc::MAP_FIXED, -1, 0) };
}

/// Makes mapped addresses readable and writable.
pub fn give_access(address: u64, bytes: usize) -> Answer {
    // SAFETY: as in `unmap_within`.
    let failed = unsafe { libc::mprotect(address as *mut c_void, bytes, libc::PROT_READ | libc::PROT_WRITE) };
    if failed == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Gives addresses back to the system.
pub fn release(address: u64, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the addresses come from `reserve` and are in use no more.
        unsafe { libc::munmap(address as *mut c_void, bytes) };
    }
}

const PAGE: usize = 4096;
const ANONYMOUS: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
