//! A buffer as cudarc's own slice, for the few calls that take nothing else.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use cudarc::driver::{CudaSlice, DevicePtrMut};

use super::DeviceBuffer;
use super::visits::Access;

/// A [`DeviceBuffer`] seen as a `&CudaSlice`. When it is dropped, the buffer's home stream waits for the uses that went
/// through it. It must not be forgotten ([`std::mem::forget`]): those uses would not be waited for.
pub struct CudaSliceRef<'a, T> {
    // Never `&mut`: `mem::replace` would let safe code walk off with a slice that frees our block on its drop.
    slice: ManuallyDrop<CudaSlice<T>>,
    buffer: PhantomData<&'a DeviceBuffer<T>>,
}

impl<T> DeviceBuffer<T> {
    /// The buffer as a `&CudaSlice`, to read. Costs two events where cudarc tracks them. Most calls of cudarc take the
    /// buffer itself; this is for those that want cudarc's type, such as NCCL groups and `cufile`.
    ///
    /// # Panics
    /// cudarc does, if the driver has no event for it.
    pub fn as_cuda_slice(&self) -> CudaSliceRef<'_, T> {
        self.visits.wait_all(&self.stream, Access::Read);
        // SAFETY: the address and length are this buffer's, which the answer borrows; the slice is never dropped, only
        // leaked, so that cudarc does not free it.
        let mut slice = unsafe { self.stream.upgrade_device_ptr::<T>(self.address(), self.len()) };
        // What home has queued so far counts as a write: other streams wait for it before they read.
        drop(slice.device_ptr_mut(&self.stream));
        CudaSliceRef { slice: ManuallyDrop::new(slice), buffer: PhantomData }
    }
}

impl<T> Deref for CudaSliceRef<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> Drop for CudaSliceRef<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the slice is taken once, here. `leak` makes the home stream wait and frees nothing.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        let _address = slice.leak();
    }
}

impl<T> fmt::Debug for CudaSliceRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaSliceRef").field("len", &self.slice.len()).finish_non_exhaustive()
    }
}
