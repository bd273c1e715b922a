//! Typed pinned memory.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use cudarc::driver::{CudaStream, DeviceRepr, HostSlice, SyncOnDrop, ValidAsZeroBits};

use super::{Host, Owner};
use crate::device::Stream;
use crate::error::{Error, Result};

/// A slice of `T` in pinned host memory, for fast and asynchronous copies. It returns to the cache when dropped,
/// which may be on any thread and after the last allocator handle.
///
/// An asynchronous copy goes on after the call that queued it. So after queueing one, call
/// [`record_event`](PinnedBuffer::record_event) with its stream: the memory is then not handed out again before
/// the copy is done. What the copy reads may not be written, and what it writes not be read, before the stream was
/// waited for. cudarc's safe copies, which take a [`HostSlice`], wait themselves.
pub struct PinnedBuffer<T> {
    host: Arc<Host>,
    /// Dangling without elements.
    data: NonNull<T>,
    len: usize,
    /// Streams that use it, alive until their events are recorded, which happens when it is given back: the driver
    /// must not be asked to record on a stream that is gone.
    streams: Mutex<Vec<Arc<CudaStream>>>,
}

// SAFETY: it owns its elements, as a `Vec<T>` does; the allocator behind it is `Send + Sync`.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}
// SAFETY: `&self` gives only `&[T]` and calls of the allocator, which is `Sync`.
unsafe impl<T: Sync> Sync for PinnedBuffer<T> {}

impl<T: DeviceRepr> PinnedBuffer<T> {
    /// Memory whose elements are what the memory's last user left.
    pub(crate) fn uninit(host: &Arc<Host>, len: usize) -> Result<Self> {
        if !host.device().host_memory_is_real() {
            return Err(Error::NotSupported(
                "pinned buffers on a device without real host memory".to_owned(),
            ));
        }
        let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
        let bytes = bytes.ok_or(Error::HostTooLarge { requested: u64::MAX })?;
        let address = host.alloc(bytes, Stream::DEFAULT, Owner::Buffer)?;
        let pointer = std::ptr::with_exposed_provenance_mut::<T>(address as usize);
        let data = NonNull::new(pointer).unwrap_or(NonNull::dangling());
        // Pages are aligned enough for all but exotic types.
        if !data.is_aligned() {
            host.free(address, Owner::Buffer)?;
            let what = format!("elements aligned to {} bytes in pinned memory", align_of::<T>());
            return Err(Error::NotSupported(what));
        }
        Ok(PinnedBuffer { host: host.clone(), data, len, streams: Mutex::default() })
    }

    pub(crate) fn zeroed(host: &Arc<Host>, len: usize) -> Result<Self>
    where
        T: ValidAsZeroBits,
    {
        let buffer = Self::uninit(host, len)?;
        // SAFETY: the block holds `len` elements, is aligned for them, and nobody else knows it yet.
        unsafe { buffer.data.write_bytes(0, len) };
        Ok(buffer)
    }

    pub(crate) fn copied(host: &Arc<Host>, source: &[T]) -> Result<Self>
    where
        T: Copy,
    {
        let buffer = Self::uninit(host, source.len())?;
        // SAFETY: the block holds as many elements, is aligned, and is not part of `source`: it was just allocated.
        unsafe { buffer.data.copy_from_nonoverlapping(NonNull::from(source).cast(), source.len()) };
        Ok(buffer)
    }
}

impl<T> PinnedBuffer<T> {
    /// The first element's address; 0 without bytes.
    pub fn address(&self) -> u64 {
        if self.byte_len() == 0 { 0 } else { self.data.as_ptr().expose_provenance() as u64 }
    }

    /// Size of the elements in bytes. The block behind them may be larger.
    pub fn byte_len(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Says that work on `stream` uses the memory: after the drop it waits for that work [spec 17.2]. During a
    /// capture of the stream, the graph is taken to use the memory at every launch: it is never handed out again.
    /// The stream must outlive the buffer: the driver is told of it only when the buffer is given back.
    ///
    /// # Errors
    /// [`Error::Device`] if the driver cannot tell whether the stream is being captured; the use is noted all the
    /// same.
    pub fn record_event(&self, stream: Stream) -> Result<()> {
        self.host.record_event(self.address(), stream)
    }

    /// [`record_event`](PinnedBuffer::record_event) for a stream that this keeps alive as long as it must be.
    pub(crate) fn used_by(&self, stream: &Arc<CudaStream>) -> Result<()> {
        let mut streams = self.streams.lock();
        if !streams.iter().any(|s| Arc::ptr_eq(s, stream)) {
            streams.push(stream.clone());
        }
        drop(streams);
        self.record_event(Stream::from_raw(stream.cu_stream() as u64))
    }

    /// Gives it back now, and tells if the driver failed (a drop cannot).
    ///
    /// # Errors
    /// [`Error::Device`] if an event could not be recorded, or memory not be returned; it is kept then.
    pub fn free(self) -> Result<()> {
        let outcome = self.host.free(self.address(), Owner::Buffer);
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so each field is taken out once.
        drop(unsafe { (std::ptr::read(&raw const this.host), std::ptr::read(&raw const this.streams)) });
        outcome
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // A failure keeps the block for another try; `free` is there for those who want to know.
        let _ = self.host.free(self.address(), Owner::Buffer);
    }
}

impl<T> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block is ours until the drop, holds `len` valid elements (see the constructors), and is
        // aligned; without elements the pointer dangles, as it may.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is the only way to the elements.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl<T: fmt::Debug> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// For cudarc's copies (`CudaStream::memcpy_htod` and the like). They wait for the stream: safe code could touch the
/// elements meanwhile otherwise.
impl<T> HostSlice<T> for PinnedBuffer<T> {
    fn len(&self) -> usize {
        self.len
    }

    unsafe fn stream_synced_slice<'a>(&'a self, stream: &'a CudaStream) -> (&'a [T], SyncOnDrop<'a>) {
        (self, SyncOnDrop::sync_stream(stream))
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        (self, SyncOnDrop::sync_stream(stream))
    }
}
