//! Pinned (page-locked) host memory [spec 17].

use std::sync::Arc;

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

use super::Allocator;
use crate::device::Stream;
use crate::error::Result;
use crate::observe::snapshot::PoolId;
use crate::pinned::{Host, Owner, PinnedBuffer};
use crate::stats::HostMemoryStats;

/// The allocator of pinned host memory beside a device's: a cheap handle for any thread, which may outlive the
/// [`Allocator`] that it came from. Options: the `pinned_*` keys of [`Config`](crate::Config).
///
/// ```
/// use gpucache::Allocator;
/// use gpucache::device::sim::SimDevice;
///
/// let pinned = Allocator::simulated(SimDevice::new(1 << 30)).pinned();
/// let buffer = pinned.alloc_from_slice(&[1.0_f32, 2.0])?;
/// assert_eq!(buffer[1], 2.0);
/// drop(buffer);
/// assert_eq!(pinned.host_memory_stats().allocated_bytes.current, 8);
/// assert_eq!(pinned.host_empty_cache()?, 8);
/// # Ok::<(), gpucache::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PinnedAllocator {
    host: Arc<Host>,
}

impl Allocator {
    /// The allocator of pinned host memory.
    pub fn pinned(&self) -> PinnedAllocator {
        PinnedAllocator { host: self.core().host.clone() }
    }
}

impl PinnedAllocator {
    /// A buffer of zeros.
    ///
    /// # Errors
    /// [`Error::HostOutOfMemory`](crate::Error::HostOutOfMemory) when the system has no more memory to lock even
    /// after everything freed was given back, [`Error::HostTooLarge`](crate::Error::HostTooLarge) above 2^60 bytes,
    /// [`Error::Device`](crate::Error::Device) when the driver fails otherwise. Nothing is lost in any case.
    pub fn alloc_zeroed<T: DeviceRepr + ValidAsZeroBits>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        PinnedBuffer::zeroed(&self.host, len)
    }

    /// A buffer with these elements.
    ///
    /// # Errors
    /// As [`alloc_zeroed`](PinnedAllocator::alloc_zeroed).
    pub fn alloc_from_slice<T: DeviceRepr + Copy>(&self, elements: &[T]) -> Result<PinnedBuffer<T>> {
        PinnedBuffer::copied(&self.host, elements)
    }

    /// A buffer that holds what the memory's last user left: the fastest way, for memory that a copy will fill.
    ///
    /// # Errors
    /// As [`alloc_zeroed`](PinnedAllocator::alloc_zeroed).
    ///
    /// # Safety
    /// Any bytes make valid elements of type `T` (true for numbers, not for `bool`), or each element is written
    /// before it is read.
    pub unsafe fn alloc_uninit<T: DeviceRepr>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        PinnedBuffer::uninit(&self.host, len)
    }

    /// Allocates and returns the address; [`host_free_raw`](PinnedAllocator::host_free_raw) takes it back. 0 for
    /// zero bytes. The size is rounded up to a power of two [spec 17.1]. What is never freed stays allocated when
    /// the last handle is gone.
    ///
    /// # Errors
    /// As [`alloc_zeroed`](PinnedAllocator::alloc_zeroed).
    pub fn host_alloc_raw(&self, bytes: usize) -> Result<u64> {
        self.host_alloc_raw_on(bytes, Stream::DEFAULT)
    }

    /// [`host_alloc_raw`](PinnedAllocator::host_alloc_raw) with the stream that the memory is meant for: it goes
    /// to the pool of a capture that accepts this stream. Nothing else depends on it.
    ///
    /// # Errors
    /// As [`alloc_zeroed`](PinnedAllocator::alloc_zeroed).
    pub fn host_alloc_raw_on(&self, bytes: usize, stream: Stream) -> Result<u64> {
        self.host.alloc(bytes as u64, stream, Owner::Raw)
    }

    /// Frees what `host_alloc_raw` gave. Null is a no-op. The memory is handed out again at once, or when the
    /// streams recorded on it are done.
    ///
    /// # Errors
    /// [`Error::InvalidHostPointer`](crate::Error::InvalidHostPointer) for an address that is not the start of a
    /// live block from `host_alloc_raw`; nothing is changed then. [`Error::Device`](crate::Error::Device) if an
    /// event could not be recorded (the block is kept until that works) or a block that is too large to be cached
    /// not be returned (it is cached); not with `pinned_free_catch_all`.
    pub fn host_free_raw(&self, address: u64) -> Result<()> {
        self.host.free(address, Owner::Raw)
    }

    /// Says that work on `stream` uses the block that begins at `address`, be it raw or a buffer's; see
    /// [`PinnedBuffer::record_event`]. Null is ignored.
    ///
    /// # Errors
    /// [`Error::InvalidHostPointer`](crate::Error::InvalidHostPointer) if no live block begins there, and the errors
    /// of [`PinnedBuffer::record_event`].
    pub fn record_event(&self, address: u64, stream: Stream) -> Result<()> {
        self.host.record_event(address, stream)
    }

    /// Returns the cached blocks to the system, those of private pools only without users [spec 17.4]. Answers how
    /// many bytes. Blocks of the reserve segment count, but stay locked; the segment is used anew when all of its
    /// blocks are free (PyTorch loses them).
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when the driver fails; what could not be freed stays cached. Not
    /// with `pinned_free_catch_all`.
    pub fn host_empty_cache(&self) -> Result<u64> {
        self.host.empty_cache()
    }

    /// The 28 statistics [spec 17.5]. Correct ones; PyTorch 2.11's under `mirror_defects`.
    pub fn host_memory_stats(&self) -> HostMemoryStats {
        self.host.stats()
    }

    /// Sets every peak to the value now, and the shortest and longest times to 0.
    pub fn reset_peak_host_memory_stats(&self) {
        self.host.reset_peak();
    }

    /// Clears the accumulated sums, and the totals and counts of times.
    pub fn reset_accumulated_host_memory_stats(&self) {
        self.host.reset_accumulated();
    }

    /// Routes requests whose stream `accepts` takes into the private pool, which is made if it is new: to be called
    /// beside [`Allocator::begin_allocate_to_pool`] when a capture begins. What is allocated there and then used
    /// by a stream ([`record_event`](PinnedAllocator::record_event)) belongs to the graph and is never handed out
    /// again. `accepts` is called for each request, without a lock.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) if the pool is being allocated to already.
    pub fn begin_allocate_to_pool(
        &self,
        id: PoolId,
        accepts: impl Fn(Stream) -> bool + Send + Sync + 'static,
    ) -> Result<()> {
        self.host.begin_allocate(id, Arc::new(accepts))
    }

    /// Ends that. The use that it counted stays until [`release_pool`](PinnedAllocator::release_pool).
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) if the pool is not being allocated to.
    pub fn end_allocate_to_pool(&self, id: PoolId) -> Result<()> {
        self.host.end_allocate(id)
    }

    /// One user of the pool less; when none is left, [`host_empty_cache`](PinnedAllocator::host_empty_cache)
    /// returns its memory.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) for an unknown pool or one without users.
    pub fn release_pool(&self, id: PoolId) -> Result<()> {
        self.host.release_pool(id)
    }
}
