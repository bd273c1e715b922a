//! Typed device memory, and buffers that the calls of cudarc take.
//!
//! | type | memory of | for |
//! | --- | --- | --- |
//! | [`Allocation`] | bytes on any device | foreign code, C |
//! | [`TypedAllocation`] | `T`s on any device, simulated ones too | code without cudarc |
//! | [`DeviceBuffer`] | `T`s for a cudarc stream | kernels, copies, cuBLAS and the like |
//!
//! # Across streams
//!
//! A buffer belongs to the stream that it was made for, its home. Other streams may use it:
//!
//! * Through everything of cudarc that takes a [`DevicePtr`](cudarc::driver::DevicePtr) (copies, memsets, cuBLAS,
//!   cuRAND, cuFFT, NCCL) nothing has to be done. The using stream waits for what home has queued so far, home waits
//!   for that use before its own next one, and dropping the buffer keeps the block back until the use is done.
//! * For kernel launches cudarc does not say which stream the launch is on. Write `.arg(&buffer.on(&stream))`
//!   ([`DeviceBuffer::on`], [`DeviceBuffer::on_mut`]), which does the same.
//! * **The sharp edge:** `.arg(&buffer)` is right for launches on the home stream only. For another stream it notes
//!   nothing: without [`DeviceBuffer::record_stream`] before the drop, the block may be handed out again while the
//!   kernel runs. [`check_streams`] finds such launches.
//!
//! With [`CudaContext::disable_event_tracking`](cudarc::driver::CudaContext::disable_event_tracking), as for graph
//! capture, the waiting between streams is the caller's business, and used streams must live as long as the buffer;
//! blocks are still kept back.

mod arguments;
mod check;
mod copies;
mod create;
mod typed;
mod view;
mod visits;
mod whole;

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaStream, SyncOnDrop};
use parking_lot::Mutex;

pub use self::arguments::OnStream;
pub use self::check::{StreamMisuse, check_streams, take_stream_misuses};
pub use self::typed::TypedAllocation;
pub use self::view::{DeviceView, DeviceViewMut};
pub use self::whole::CudaSliceRef;

use self::check::Launches;
use self::visits::{Access, Visits};
use crate::allocator::{Allocation, AllocationParts};
use crate::device::Stream;
use crate::error::Result;

/// `T`s on the device, for work on a cudarc stream. Frees itself on drop, from any thread.
///
/// Made by [`Allocator::alloc_zeros`](crate::Allocator::alloc_zeros),
/// [`alloc_uninit`](crate::Allocator::alloc_uninit), [`clone_htod`](crate::Allocator::clone_htod) and
/// [`clone_dtod`](crate::Allocator::clone_dtod). `Send` and `Sync` where `T` is. See the [module](self) for its use by
/// several streams.
///
/// ```no_run
/// use gpucache::Allocator;
/// use gpucache::cudarc::driver::CudaContext;
/// use gpucache::device::cuda::CudaDevice;
/// use std::sync::Arc;
///
/// let context = CudaContext::new(0)?;
/// let stream = context.default_stream();
/// let allocator = Allocator::builder().device(Arc::new(CudaDevice::from_context(context)?)).build()?;
/// let mut buffer = allocator.clone_htod(&[1.0_f32, 2.0, 3.0], &stream)?;
/// stream.memset_zeros(&mut buffer)?;
/// assert_eq!(stream.clone_dtoh(&buffer)?, [0.0; 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeviceBuffer<T> {
    // Freed first, while the streams below are alive.
    memory: TypedAllocation<T>,
    stream: Arc<CudaStream>,
    visits: Visits,
    /// Streams whose use was recorded by hand; they must live until the block is freed.
    recorded: Mutex<Vec<Arc<CudaStream>>>,
    launches: Launches,
}

impl<T> DeviceBuffer<T> {
    fn new(memory: TypedAllocation<T>, stream: Arc<CudaStream>) -> Self {
        DeviceBuffer {
            memory,
            stream,
            visits: Visits::default(),
            recorded: Mutex::default(),
            launches: Launches::default(),
        }
    }

    /// How many `T`s it holds.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Size in bytes.
    pub fn num_bytes(&self) -> usize {
        self.memory.num_bytes()
    }

    /// Start address on the device, a multiple of 512; 0 without elements. Using it on another stream than
    /// [`stream`](DeviceBuffer::stream) needs [`record_stream`](DeviceBuffer::record_stream).
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The home stream.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The block behind it.
    pub fn as_allocation(&self) -> &Allocation {
        self.memory.as_allocation()
    }

    /// Says that work on `stream` uses the memory too, as PyTorch's `record_stream` [spec 6.1]: after the drop the
    /// block is not handed out again before everything is done that was queued on `stream` by then. The stream is
    /// kept alive until the drop. It does not make either stream wait.
    pub fn record_stream(&self, stream: &Arc<CudaStream>) {
        if handle(stream) == handle(&self.stream) {
            return;
        }
        let mut recorded = self.recorded.lock();
        if recorded.iter().all(|known| handle(known) != handle(stream)) {
            recorded.push(Arc::clone(stream));
            if stream.context() == self.stream.context() {
                self.memory.record_stream(handle(stream));
            }
        }
    }

    /// Everything that a use by `stream` needs; the answer is to be dropped when the use is queued.
    fn used_by<'a>(&'a self, stream: &'a CudaStream, access: Access) -> SyncOnDrop<'a> {
        let own = handle(stream) == handle(&self.stream) && stream.context() == self.stream.context();
        if own {
            if self.stream.context().is_event_tracking() {
                self.visits.wait_all(stream, access);
            }
            return SyncOnDrop::Record(None);
        }
        if !stream.context().is_managing_stream_synchronization() {
            // cudarc would not record the event either. A handle is enough here: switching tracking off is unsafe,
            // and streams that are not counted do not end.
            self.memory.record_stream(handle(stream));
            return SyncOnDrop::Record(None);
        }
        self.visits.begin(&self.stream, stream, access).unwrap_or_else(|| {
            let context = self.stream.context();
            context.record_err(self.stream.synchronize());
            SyncOnDrop::Sync(Some(stream))
        })
    }

    /// Leaves the uses that cudarc told of with the block, which waits for them when it is freed.
    fn settle(&mut self) {
        let recorded = self.recorded.get_mut();
        let by_hand = |stream| recorded.iter().any(|known| handle(known) == stream);
        self.launches.report(&self.stream, |stream| by_hand(stream) || self.visits.knows(stream));
        self.visits.hand_over(self.memory.as_allocation(), &self.stream, by_hand);
    }

    /// Frees it now, and tells if the driver failed (a drop cannot).
    ///
    /// # Errors
    /// As [`Allocation::free`].
    pub fn free(self) -> Result<()> {
        let (memory, _stream) = self.into_typed();
        memory.free()
    }

    /// Takes the home stream off. What other streams do with the memory stays noted with the block, as far as it is
    /// queued by now, and the home stream has been made to wait for it.
    pub fn into_typed(mut self) -> (TypedAllocation<T>, Arc<CudaStream>) {
        self.visits.wait_all(&self.stream, Access::Write);
        self.settle();
        for stream in self.recorded.get_mut().drain(..) {
            visits::leave(&stream, self.memory.as_allocation(), &self.stream);
        }
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: each field is read once, and `this` is neither used nor dropped afterwards; the fields not read
        // are empty.
        unsafe {
            drop(std::ptr::read(&raw const this.recorded));
            (std::ptr::read(&raw const this.memory), std::ptr::read(&raw const this.stream))
        }
    }

    /// Takes it apart without freeing it: the block, the number of elements, the home stream.
    pub fn into_parts(self) -> (AllocationParts, usize, Arc<CudaStream>) {
        let len = self.len();
        let (memory, stream) = self.into_typed();
        (memory.into_allocation().into_parts(), len, stream)
    }

    /// Puts one together again.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`](crate::Error::InvalidPointer) if the block is not live any more,
    /// [`Error::Buffer`](crate::Error::Buffer) if it is smaller than `len` elements or of another stream.
    ///
    /// # Safety
    /// The parts come from [`into_parts`](DeviceBuffer::into_parts) of this process and are used once; the memory
    /// holds valid `T`s by the time they are read.
    pub unsafe fn from_parts(parts: AllocationParts, len: usize, stream: Arc<CudaStream>) -> Result<Self> {
        let same_stream = parts.address == 0 || parts.stream == handle(&stream).raw();
        // SAFETY: the caller's promise.
        let memory = unsafe { TypedAllocation::from_allocation(Allocation::from_parts(parts)?, len)? };
        if !same_stream {
            return Err(crate::Error::Buffer("the block was allocated for another stream".to_owned()));
        }
        Ok(DeviceBuffer::new(memory, stream))
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.memory.as_allocation().is_forked() {
            // Streams and events are the parent's.
            std::mem::forget(std::mem::take(&mut self.visits));
            std::mem::forget(std::mem::take(self.recorded.get_mut()));
            std::mem::forget(Arc::clone(&self.stream));
            return;
        }
        self.settle();
        // The block is freed next, while the streams that are recorded are alive. Events of this device cannot be
        // recorded on another's streams, so home waits for those.
        for stream in self.recorded.get_mut().iter().filter(|s| s.context() != self.stream.context()) {
            visits::leave(stream, self.memory.as_allocation(), &self.stream);
        }
    }
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("len", &self.len())
            .field("stream", &handle(&self.stream))
            .finish_non_exhaustive()
    }
}

/// A cudarc stream as the allocator names it.
pub(crate) fn handle(stream: &CudaStream) -> Stream {
    Stream::from_raw(stream.cu_stream() as u64)
}
