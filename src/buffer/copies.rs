//! Copies, in stream order. Those between device memory, and those named after pinned memory, return when they are
//! queued.

use std::sync::Arc;

use cudarc::driver::result::{memcpy_dtoh_async, memcpy_htod_async};
use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, HostSlice, ValidAsZeroBits,
};

use super::create::checked;
use super::{DeviceBuffer, DeviceView, DeviceViewMut};
use crate::error::{Error, Result};
use crate::pinned::PinnedBuffer;

/// cudarc asserts the lengths; here they are an error.
fn same_length(to: usize, from: usize) -> Result<()> {
    if to == from {
        return Ok(());
    }
    Err(Error::Buffer(format!("cannot copy {from} elements to {to}; take a slice of the longer one")))
}

fn copy_device<T, From: DevicePtr<T>, To: DevicePtrMut<T>>(
    stream: &Arc<CudaStream>,
    from: &From,
    to: &mut To,
) -> Result<()> {
    same_length(to.len(), from.len())?;
    if from.is_empty() {
        return Ok(());
    }
    checked("cuMemcpyDtoDAsync", stream.memcpy_dtod(from, to))
}

fn copy_to_device<T: DeviceRepr, From: HostSlice<T> + ?Sized, To: DevicePtrMut<T>>(
    stream: &Arc<CudaStream>,
    from: &From,
    to: &mut To,
) -> Result<()> {
    same_length(to.len(), from.len())?;
    if from.is_empty() {
        return Ok(());
    }
    checked("cuMemcpyHtoDAsync", stream.memcpy_htod(from, to))
}

fn copy_to_host<T: DeviceRepr, From: DevicePtr<T>, To: HostSlice<T> + ?Sized>(
    stream: &Arc<CudaStream>,
    from: &From,
    to: &mut To,
) -> Result<()> {
    same_length(to.len(), from.len())?;
    if from.is_empty() {
        return Ok(());
    }
    checked("cuMemcpyDtoHAsync", stream.memcpy_dtoh(from, to))
}

/// Queues a copy without waiting for it.
unsafe fn copy_from_pinned<T: DeviceRepr>(
    from: &PinnedBuffer<T>,
    to: &mut impl DevicePtrMut<T>,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    same_length(to.len(), from.len())?;
    if from.is_empty() {
        return Ok(());
    }
    checked("cuCtxSetCurrent", stream.context().bind_to_thread())?;
    from.used_by(stream)?;
    let (address, _used) = to.device_ptr_mut(stream);
    // SAFETY: both have the same number of elements; the caller leaves the host's alone, and neither block is reused
    // before the stream has done the copy.
    checked("cuMemcpyHtoDAsync", unsafe { memcpy_htod_async(address, from, stream.cu_stream()) })
}

/// As [`copy_from_pinned`].
unsafe fn copy_to_pinned<T: DeviceRepr>(
    from: &impl DevicePtr<T>,
    to: &mut PinnedBuffer<T>,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    same_length(to.len(), from.len())?;
    if from.is_empty() {
        return Ok(());
    }
    checked("cuCtxSetCurrent", stream.context().bind_to_thread())?;
    to.used_by(stream)?;
    let (address, _used) = from.device_ptr(stream);
    // SAFETY: as above.
    checked("cuMemcpyDtoHAsync", unsafe { memcpy_dtoh_async(to, address, stream.cu_stream()) })
}

macro_rules! reading_copies {
    ($($target:tt)*) => {
        impl<T: DeviceRepr> $($target)* {
            /// Copies to host memory on the home stream. It returns when the data is there; see
            /// [`copy_to_pinned`](Self::copy_to_pinned) for copies that do not wait.
            ///
            /// # Errors
            /// [`Error::Buffer`] if the lengths differ, [`Error::Device`] if the driver fails.
            pub fn copy_to_host<To: HostSlice<T> + ?Sized>(&self, to: &mut To) -> Result<()> {
                self.copy_to_host_on(to, &Arc::clone(DeviceSlice::stream(self)))
            }

            /// [`copy_to_host`](Self::copy_to_host) on another stream, which is noted and waits for home.
            ///
            /// # Errors
            /// As [`copy_to_host`](Self::copy_to_host).
            pub fn copy_to_host_on<To: HostSlice<T> + ?Sized>(&self, to: &mut To, stream: &Arc<CudaStream>) -> Result<()> {
                copy_to_host(stream, self, to)
            }

            /// Queues a copy to page-locked memory on any stream, and returns at once. The stream is noted with both
            /// sides, so that either may be dropped.
            ///
            /// # Errors
            /// As [`copy_to_host`](Self::copy_to_host).
            ///
            /// # Safety
            /// The host's elements are neither read nor written before `stream` has done the copy.
            pub unsafe fn copy_to_pinned(&self, to: &mut PinnedBuffer<T>, stream: &Arc<CudaStream>) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe { copy_to_pinned(self, to, stream) }
            }

            /// A copy in a `Vec`, once all work queued for it is done.
            ///
            /// # Errors
            /// [`Error::Device`] if the driver fails.
            pub fn to_vec(&self) -> Result<Vec<T>> {
                if DeviceSlice::is_empty(self) {
                    return Ok(Vec::new());
                }
                checked("cuMemcpyDtoHAsync", DeviceSlice::stream(self).clone_dtoh(self))
            }
        }
    };
}

macro_rules! writing_copies {
    ($($target:tt)*) => {
        impl<T: DeviceRepr> $($target)* {
            /// Copies device elements here (a buffer, a view, a cudarc slice), on the home stream.
            ///
            /// # Errors
            /// [`Error::Buffer`] if the lengths differ, [`Error::Device`] if the driver fails.
            pub fn copy_from<From: DevicePtr<T>>(&mut self, from: &From) -> Result<()> {
                self.copy_from_on(from, &Arc::clone(DeviceSlice::stream(self)))
            }

            /// [`copy_from`](Self::copy_from) on another stream, which is noted and waits for home.
            ///
            /// # Errors
            /// As [`copy_from`](Self::copy_from).
            pub fn copy_from_on<From: DevicePtr<T>>(&mut self, from: &From, stream: &Arc<CudaStream>) -> Result<()> {
                copy_device(stream, from, self)
            }

            /// Copies host elements here on the home stream. It returns when they are read; see
            /// [`copy_from_pinned`](Self::copy_from_pinned) for copies that do not wait.
            ///
            /// # Errors
            /// [`Error::Buffer`] if the lengths differ, [`Error::Device`] if the driver fails.
            pub fn copy_from_host<From: HostSlice<T> + ?Sized>(&mut self, from: &From) -> Result<()> {
                self.copy_from_host_on(from, &Arc::clone(DeviceSlice::stream(self)))
            }

            /// [`copy_from_host`](Self::copy_from_host) on another stream, which is noted and waits for home.
            ///
            /// # Errors
            /// As [`copy_from_host`](Self::copy_from_host).
            pub fn copy_from_host_on<From: HostSlice<T> + ?Sized>(
                &mut self,
                from: &From,
                stream: &Arc<CudaStream>,
            ) -> Result<()> {
                copy_to_device(stream, from, self)
            }

            /// Queues a copy from page-locked memory on any stream, and returns at once. The stream is noted with both
            /// sides, so that either may be dropped.
            ///
            /// # Errors
            /// As [`copy_from_host`](Self::copy_from_host).
            ///
            /// # Safety
            /// The host's elements are not written before `stream` has done the copy.
            pub unsafe fn copy_from_pinned(&mut self, from: &PinnedBuffer<T>, stream: &Arc<CudaStream>) -> Result<()> {
                // SAFETY: the caller's promise.
                unsafe { copy_from_pinned(from, self, stream) }
            }

            /// Sets all bytes to 0 on the home stream.
            ///
            /// # Errors
            /// [`Error::Device`] if the driver fails.
            pub fn fill_zeros(&mut self) -> Result<()>
            where
                T: ValidAsZeroBits,
            {
                if DeviceSlice::is_empty(self) {
                    return Ok(());
                }
                let stream = Arc::clone(DeviceSlice::stream(self));
                checked("cuMemsetD8Async", stream.memset_zeros(self))
            }
        }
    };
}

reading_copies!(DeviceBuffer<T>);
reading_copies!(DeviceView<'_, T>);
reading_copies!(DeviceViewMut<'_, T>);
writing_copies!(DeviceBuffer<T>);
writing_copies!(DeviceViewMut<'_, T>);
