//! Blocks of one process in another, and devices that reach each other's memory [spec 13.7, 19].

use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::{Allocation, Allocator};
use crate::device::{FabricHandle, IpcHandle};
use crate::engine::share::{Exported, ForeignPages, ForeignSegment, PageHandle};
use crate::error::{Error, Result};

/// Version of the handle's bytes, PyTorch's [spec 13.7].
const VERSION: u8 = 2;
const SEGMENT: u8 = b'c';
const PAGES: u8 = b'e';
/// Version, kind, process id, four zeros, page size, page count.
const PAGES_HEADER: usize = 26;
const DESCRIPTOR: usize = 4;
const FABRIC: usize = 64;

/// A block's name for other processes. It keeps file descriptors open that they fetch, so keep it until they have
/// opened the block; and keep the block until they have closed it: freeing memory that another process has open is
/// undefined behaviour, says the CUDA manual.
#[derive(Debug)]
pub struct SharedBlock {
    handle: Vec<u8>,
    offset: u64,
    len: usize,
    _pages: Vec<PageHandle>,
}

impl SharedBlock {
    /// Bytes for the other process, by any channel, in PyTorch's layout [spec 13.7].
    pub fn handle(&self) -> &[u8] {
        &self.handle
    }

    /// Where the block is in what the handle names, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Requested bytes of the block.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the block has no bytes; it could not be shared then.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A block of another process, open in this one until it is dropped. `Send + Sync`. Drop it before the exporter frees
/// the block, and after the work of this process on it is done.
pub struct OpenedBlock {
    address: u64,
    len: usize,
    _memory: Memory,
}

/// Kept for its drop.
#[derive(Debug)]
enum Memory {
    Segment { _open: Arc<ForeignSegment> },
    Pages { _mapped: ForeignPages },
}

impl OpenedBlock {
    /// Start address in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes, as the opener gave it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for OpenedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedBlock")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Allocator {
    /// Names a block of this allocator to other processes on this host. Pages of expandable segments go by file
    /// descriptors, which the other process fetches from this one.
    ///
    /// # Errors
    /// [`Error::Buffer`] for zero bytes; [`Error::Device`] where the device cannot share
    /// (simulated ones cannot), or the pages were not made to be shared (`GPUCACHE_EXPANDABLE_SEGMENTS_IPC=0`).
    pub fn share(&self, block: &Allocation) -> Result<SharedBlock> {
        if block.is_empty() {
            return Err(Error::Buffer("zero bytes cannot be shared".to_owned()));
        }
        let (address, len) = (block.address(), block.len());
        Ok(match self.core().export(address, len as u64)? {
            Exported::Segment { handle, offset } => {
                let handle = [&[VERSION, SEGMENT], &handle.0[..]].concat();
                SharedBlock { handle, offset, len, _pages: Vec::new() }
            }
            Exported::Pages { page, pages, offset } => {
                SharedBlock { handle: write_pages(page, &pages), offset, len, _pages: pages }
            }
        })
    }

    /// Opens a block that another process has shared: its [`handle`](SharedBlock::handle),
    /// [`offset`](SharedBlock::offset) and size.
    ///
    /// # Errors
    /// [`Error::Buffer`] for bytes that are no handle, or an offset and size outside of what it names (as far as that
    /// is known); [`Error::Device`] if the driver refuses, as it does for a handle of this very process;
    /// [`Error::NotSupported`] if the other process's file descriptors cannot be fetched.
    pub fn open_shared(&self, handle: &[u8], offset: u64, len: usize) -> Result<OpenedBlock> {
        let (base, memory) = match read(handle)? {
            Parsed::Segment(handle) => {
                let open = self.core().open_segment(&handle)?;
                let known = self.device().address_range(open.base()).map(|(_, bytes)| bytes);
                if known.is_ok_and(|bytes| offset.checked_add(len as u64).is_none_or(|end| end > bytes)) {
                    return Err(bad_handle("names less memory than the block needs"));
                }
                (open.base(), Memory::Segment { _open: open })
            }
            Parsed::Pages { process, page, pages } => {
                let bytes = page.checked_mul(pages.count() as u64);
                let end = offset.checked_add(len as u64);
                if bytes.is_none() || end.is_none() || end > bytes {
                    return Err(bad_handle("names less memory than the block needs"));
                }
                let mapped = self.core().map_foreign(page, &pages.fetch(process)?)?;
                (mapped.base(), Memory::Pages { _mapped: mapped })
            }
        };
        Ok(OpenedBlock { address: base + offset, len, _memory: memory })
    }

    /// Lets kernels and copies of this allocator's device reach the memory of `owner`'s, what it has now and what it
    /// will have [spec 19]. One direction; enabling it twice is no error.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if the two devices have no direct way; [`Error::Device`] if the driver fails.
    pub fn enable_peer_access(&self, owner: &Allocator) -> Result<()> {
        let (accessor, peer) = (self.device().properties().ordinal, owner.device().properties().ordinal);
        self.own_core()?;
        if accessor == peer {
            return Ok(());
        }
        if !self.device().can_access_peer(peer)? {
            return Err(Error::NotSupported(format!(
                "device {accessor} cannot reach device {peer} directly"
            )));
        }
        self.device().enable_peer_access(peer)?;
        Ok(owner.own_core()?.allow_access(accessor)?)
    }
}

fn write_pages(page: u64, pages: &[PageHandle]) -> Vec<u8> {
    let mut handle = vec![VERSION, PAGES];
    handle.extend(std::process::id().to_le_bytes());
    handle.extend([0; 4]);
    handle.extend(page.to_le_bytes());
    handle.extend((pages.len() as u64).to_le_bytes());
    for page in pages {
        match page {
            PageHandle::Descriptor(fd) => handle.extend(fd.as_raw_fd().to_le_bytes()),
            PageHandle::Fabric(fabric) => handle.extend(fabric.0),
        }
    }
    handle
}

enum Parsed<'a> {
    Segment(IpcHandle),
    Pages { process: u32, page: u64, pages: PageNames<'a> },
}

/// The pages' names in a handle.
enum PageNames<'a> {
    Descriptors(&'a [[u8; DESCRIPTOR]]),
    Fabric(&'a [[u8; FABRIC]]),
}

fn bad_handle(why: &str) -> Error {
    Error::Buffer(format!("the shared block's handle {why}"))
}

fn read(handle: &[u8]) -> Result<Parsed<'_>> {
    // The oldest format is the driver's bytes alone.
    if let Ok(bytes) = <[u8; 64]>::try_from(handle) {
        return Ok(Parsed::Segment(IpcHandle(bytes)));
    }
    match handle {
        [version, ..] if *version > VERSION => Err(bad_handle("is of a newer version")),
        [_, SEGMENT, rest @ ..] => {
            let bytes = rest.try_into().map_err(|_| bad_handle("of a segment does not have 66 bytes"))?;
            Ok(Parsed::Segment(IpcHandle(bytes)))
        }
        [_, PAGES, ..] => read_pages(handle),
        _ => Err(bad_handle("is neither a segment's nor of pages")),
    }
}

fn read_pages(handle: &[u8]) -> Result<Parsed<'_>> {
    let short = || bad_handle("of pages is cut short or too long");
    let (header, names) = handle.split_at_checked(PAGES_HEADER).ok_or_else(short)?;
    let word =
        |at: usize| header[at..at + 8].iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
    let (process, page, count) = (word(2) as u32, word(10), word(18));
    let of_size = |size: usize| (names.len() as u64) == count.saturating_mul(size as u64);
    let pages = if count == 0 || page == 0 {
        return Err(bad_handle("names no pages"));
    } else if of_size(DESCRIPTOR) {
        PageNames::Descriptors(names.as_chunks().0)
    } else if of_size(FABRIC) {
        PageNames::Fabric(names.as_chunks().0)
    } else {
        return Err(short());
    };
    Ok(Parsed::Pages { process, page, pages })
}

impl PageNames<'_> {
    fn count(&self) -> usize {
        match self {
            PageNames::Descriptors(names) => names.len(),
            PageNames::Fabric(names) => names.len(),
        }
    }

    /// The handles in this process.
    fn fetch(&self, process: u32) -> Result<Vec<PageHandle>> {
        match self {
            PageNames::Fabric(names) => {
                Ok(names.iter().map(|bytes| PageHandle::Fabric(FabricHandle(*bytes))).collect())
            }
            PageNames::Descriptors(names) => {
                let process = Process::open(process)?;
                let fetch = |name: &[u8; DESCRIPTOR]| process.descriptor(i32::from_le_bytes(*name));
                names.iter().map(|name| fetch(name).map(PageHandle::Descriptor)).collect()
            }
        }
    }
}

/// Another process, whose file descriptors are to be fetched.
struct Process {
    handle: OwnedFd,
}

#[cfg(target_os = "linux")]
impl Process {
    fn open(process: u32) -> Result<Self> {
        // SAFETY: the call takes two numbers and answers with a new descriptor or -1.
        let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
        Ok(Process { handle: owned("pidfd_open", handle)? })
    }

    fn descriptor(&self, number: i32) -> Result<OwnedFd> {
        // SAFETY: the call takes an open descriptor and two numbers, and answers with a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.handle.as_raw_fd(), number, 0) };
        owned("pidfd_getfd", fd)
    }
}

#[cfg(target_os = "linux")]
fn owned(call: &str, answer: libc::c_long) -> Result<OwnedFd> {
    if answer < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::NotSupported(format!(
            "{call}: {error}. The exporter must be alive and hold its SharedBlock; it may have to allow ptrace of \
             itself (prctl PR_SET_PTRACER)"
        )));
    }
    // SAFETY: the kernel has just made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(answer as i32) })
}

#[cfg(not(target_os = "linux"))]
impl Process {
    fn open(_process: u32) -> Result<Self> {
        Err(Error::NotSupported("shared expandable memory needs Linux".to_owned()))
    }

    fn descriptor(&self, _number: i32) -> Result<OwnedFd> {
        self.handle.try_clone().map_err(|error| Error::NotSupported(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_have_the_lengths_of_the_layout() {
        let pages = [PageHandle::Fabric(FabricHandle([7; 64])), PageHandle::Fabric(FabricHandle([8; 64]))];
        let handle = write_pages(20 << 20, &pages);
        assert_eq!(handle.len(), PAGES_HEADER + 2 * 64);
        assert_eq!(handle[..2], [2, b'e']);
        assert_eq!(handle[2..6], std::process::id().to_le_bytes());
        match read(&handle) {
            Ok(Parsed::Pages { process, page, pages: PageNames::Fabric(names) }) => {
                assert_eq!((process, page, names), (std::process::id(), 20 << 20, &[[7; 64], [8; 64]][..]));
            }
            _ => panic!("not read back"),
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(matches!(read(&[0; 64]), Ok(Parsed::Segment(_))));
        assert!(matches!(read(&[&[2, b'c'], &[1; 64][..]].concat()), Ok(Parsed::Segment(_))));
        let mut cut = write_pages(1 << 21, &[PageHandle::Fabric(FabricHandle([7; 64]))]);
        cut.pop();
        let pages_of_none = write_pages(1 << 21, &[]);
        for bad in
            [&[][..], &[2], &[3, b'c'], &[2, b'x', 0], &[2, b'c', 1], &[2, b'e', 1], &cut, &pages_of_none]
        {
            assert!(matches!(read(bad), Err(Error::Buffer(_))), "{bad:?}");
        }
    }
}
