//! Three ways to get device memory, behind one trait.

use std::sync::Arc;

use gpucache::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, DriverError, SyncOnDrop, result, sys,
};
use gpucache::{Allocator, DeviceBuffer};

pub(crate) type Failure = Box<dyn std::error::Error>;

/// Memory of `f32`s, all for one stream.
pub(crate) trait Memory {
    type Buffer: DevicePtr<f32> + DevicePtrMut<f32>;

    /// Memory that is not initialised; the training writes each element before it reads it.
    fn alloc(&self, len: usize) -> Result<Self::Buffer, Failure>;
}

/// `cuMemAlloc` and `cuMemFree` each time.
pub(crate) struct Driver(pub(crate) Arc<CudaStream>);

pub(crate) struct DriverBuffer {
    address: u64,
    len: usize,
    stream: Arc<CudaStream>,
}

impl Memory for Driver {
    type Buffer = DriverBuffer;

    fn alloc(&self, len: usize) -> Result<DriverBuffer, Failure> {
        // SAFETY: freed by the buffer's drop.
        let address = unsafe { result::malloc_sync(len * size_of::<f32>()) }?;
        Ok(DriverBuffer { address, len, stream: Arc::clone(&self.0) })
    }
}

impl Drop for DriverBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated above; `cuMemFree` waits for kernels that use it.
        let freed: Result<(), DriverError> = unsafe { result::free_sync(self.address) };
        self.stream.context().record_err(freed);
    }
}

impl DeviceSlice<f32> for DriverBuffer {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl DevicePtr<f32> for DriverBuffer {
    fn device_ptr<'a>(&'a self, _stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, SyncOnDrop::Record(None))
    }
}

impl DevicePtrMut<f32> for DriverBuffer {
    fn device_ptr_mut<'a>(&'a mut self, _stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, SyncOnDrop::Record(None))
    }
}

/// cudarc's own: `cuMemAllocAsync` from the driver's pool.
pub(crate) struct Cudarc(pub(crate) Arc<CudaStream>);

impl Memory for Cudarc {
    type Buffer = CudaSlice<f32>;

    fn alloc(&self, len: usize) -> Result<CudaSlice<f32>, Failure> {
        // SAFETY: see the trait.
        Ok(unsafe { self.0.alloc(len) }?)
    }
}

pub(crate) struct Cached(pub(crate) Allocator, pub(crate) Arc<CudaStream>);

impl Memory for Cached {
    type Buffer = DeviceBuffer<f32>;

    fn alloc(&self, len: usize) -> Result<DeviceBuffer<f32>, Failure> {
        // SAFETY: see the trait.
        Ok(unsafe { self.0.alloc_uninit(len, &self.1) }?)
    }
}
