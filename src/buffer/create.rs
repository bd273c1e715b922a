//! Making buffers for cudarc streams.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DeviceRepr, DriverError, HostSlice, ValidAsZeroBits};

use super::{DeviceBuffer, handle};
use crate::allocator::Allocator;
use crate::device::cuda::call_error;
use crate::error::{Error, Result};

impl Allocator {
    /// `len` elements for work on `stream`, not initialised.
    ///
    /// # Errors
    /// As [`alloc_on`](Allocator::alloc_on); [`Error::Buffer`] if the stream is of another device or context.
    ///
    /// # Safety
    /// The elements are written, on the device, before they are read.
    #[track_caller]
    pub unsafe fn alloc_uninit<T: DeviceRepr>(
        &self,
        len: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<DeviceBuffer<T>> {
        self.same_context(stream)?;
        Ok(DeviceBuffer::new(self.typed(len, handle(stream))?, Arc::clone(stream)))
    }

    /// `len` elements for work on `stream`, zeroed by work on it.
    ///
    /// # Errors
    /// As [`alloc_uninit`](Allocator::alloc_uninit); [`Error::Device`] if the memset fails.
    #[track_caller]
    pub fn alloc_zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<DeviceBuffer<T>> {
        // SAFETY: zeroed next.
        let mut buffer = unsafe { self.alloc_uninit(len, stream) }?;
        buffer.fill_zeros()?;
        Ok(buffer)
    }

    /// A copy of host elements, copied by work on `stream`: `[T]`, `[T; N]`, `Vec<T>` or page-locked memory.
    ///
    /// # Errors
    /// As [`alloc_uninit`](Allocator::alloc_uninit); [`Error::Device`] if the copy fails.
    #[track_caller]
    pub fn clone_htod<T: DeviceRepr, Source: HostSlice<T> + ?Sized>(
        &self,
        source: &Source,
        stream: &Arc<CudaStream>,
    ) -> Result<DeviceBuffer<T>> {
        // SAFETY: overwritten next.
        let mut buffer = unsafe { self.alloc_uninit(source.len(), stream) }?;
        buffer.copy_from_host(source)?;
        Ok(buffer)
    }

    /// A copy of device elements (a buffer, a view, a cudarc slice), copied by work on `stream`.
    ///
    /// # Errors
    /// As [`alloc_uninit`](Allocator::alloc_uninit); [`Error::Device`] if the copy fails.
    #[track_caller]
    pub fn clone_dtod<T: DeviceRepr, Source: DevicePtr<T>>(
        &self,
        source: &Source,
        stream: &Arc<CudaStream>,
    ) -> Result<DeviceBuffer<T>> {
        // SAFETY: overwritten next.
        let mut buffer = unsafe { self.alloc_uninit(source.len(), stream) }?;
        buffer.copy_from(source)?;
        Ok(buffer)
    }

    fn same_context(&self, stream: &CudaStream) -> Result<()> {
        let wanted = stream.context().cu_ctx() as u64;
        match self.device().context_handle() {
            Some(own) if own == wanted => Ok(()),
            Some(_) => Err(Error::Buffer(format!(
                "the stream is of another context (device {}) than the allocator (device {}): make one allocator per \
                 device, with `CudaDevice::from_context` of the stream's context",
                stream.context().ordinal(),
                self.device().properties().ordinal
            ))),
            None => Err(Error::Buffer(
                "this allocator's device has no CUDA streams; use `Allocator::typed`".to_owned(),
            )),
        }
    }
}

/// cudarc's error as ours, without formatting it.
pub(super) fn checked<R>(call: &'static str, outcome: std::result::Result<R, DriverError>) -> Result<R> {
    outcome.map_err(|error| call_error(call, error))
}
