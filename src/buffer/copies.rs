//! Copies, in stream order: they return when the work is queued (with pageable host memory, when it is done).

use std::sync::Arc;

use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, HostSlice, ValidAsZeroBits,
};

use super::create::checked;
use super::{DeviceBuffer, DeviceView, DeviceViewMut};
use crate::error::{Error, Result};

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

macro_rules! reading_copies {
    ($($target:tt)*) => {
        impl<T: DeviceRepr> $($target)* {
            /// Copies to host memory on the home stream. With pageable memory (`Vec`, slices) it returns when the data
            /// is there; with page-locked memory when the copy is queued.
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

            /// Copies host elements here on the home stream. Asynchronous with page-locked memory.
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
