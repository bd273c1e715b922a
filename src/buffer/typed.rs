//! Typed memory without a cudarc stream.

use std::fmt;
use std::marker::PhantomData;

use crate::allocator::{Allocation, Allocator};
use crate::device::Stream;
use crate::error::{Error, Result};

/// `T`s on a device, simulated or real, for work on the stream it was allocated for. Frees itself on drop.
///
/// ```
/// use gpucache::Allocator;
/// use gpucache::device::{Stream, sim::SimDevice};
///
/// let allocator = Allocator::simulated(SimDevice::new(1 << 30));
/// let weights = allocator.typed::<f32>(1000, Stream::DEFAULT)?;
/// assert_eq!((weights.len(), weights.num_bytes()), (1000, 4000));
/// # Ok::<(), gpucache::Error>(())
/// ```
pub struct TypedAllocation<T> {
    memory: Allocation,
    len: usize,
    marker: PhantomData<T>,
}

impl Allocator {
    /// Allocates `len` elements for work on `stream`. They are not initialised, which only device code can see.
    ///
    /// # Errors
    /// As [`alloc_on`](Allocator::alloc_on).
    #[track_caller]
    pub fn typed<T>(&self, len: usize, stream: Stream) -> Result<TypedAllocation<T>> {
        const { assert!(align_of::<T>() <= 512, "device addresses are multiples of 512") };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::TooLarge { requested: u64::MAX })?;
        Ok(TypedAllocation { memory: self.alloc_on(bytes, stream)?, len, marker: PhantomData })
    }
}

impl<T> TypedAllocation<T> {
    /// How many `T`s it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size in bytes.
    pub fn num_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Start address on the device, a multiple of 512; 0 for zero bytes.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The stream that it was allocated for.
    pub fn stream(&self) -> Stream {
        self.memory.stream()
    }

    /// As [`Allocation::record_stream`].
    pub fn record_stream(&self, stream: Stream) {
        self.memory.record_stream(stream);
    }

    /// The block behind it.
    pub fn as_allocation(&self) -> &Allocation {
        &self.memory
    }

    /// Forgets the type.
    pub fn into_allocation(self) -> Allocation {
        self.memory
    }

    /// Types a block.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the block has fewer bytes than `len` elements; it is freed then.
    ///
    /// # Safety
    /// The memory holds valid `T`s by the time they are read.
    pub unsafe fn from_allocation(memory: Allocation, len: usize) -> Result<Self> {
        match len.checked_mul(size_of::<T>()) {
            Some(bytes) if bytes <= memory.len() => Ok(TypedAllocation { memory, len, marker: PhantomData }),
            _ => Err(Error::Buffer(format!(
                "{len} elements of {} bytes do not fit a block of {} bytes",
                size_of::<T>(),
                memory.len()
            ))),
        }
    }

    /// As [`Allocation::free`].
    ///
    /// # Errors
    /// As [`Allocation::free`].
    pub fn free(self) -> Result<()> {
        self.memory.free()
    }
}

impl<T> fmt::Debug for TypedAllocation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedAllocation")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("len", &self.len)
            .field("stream", &self.stream())
            .finish_non_exhaustive()
    }
}
