//! For tests that run on any driver: a real one where there is a GPU, or the fake one.

use std::sync::{MutexGuard, PoisonError};

use cudarc::driver::CudaStream;
use gpucache::cudarc;
use gpucache::device::cuda::CudaDevice;
use gpucache::device::{Device, Stream};

use super::{ALONE, Fake, Report, fake};

/// A driver, for one test at a time. On the fake one, misuse and leaks fail the test at its end.
pub struct Driver {
    /// The fake driver, and what was alive when the test began.
    fake: Option<(Fake, Report)>,
    _alone: Option<MutexGuard<'static, ()>>,
}

/// The driver and its first device, if there is one; otherwise says why the test is skipped.
pub fn driver() -> Option<(Driver, CudaDevice)> {
    let driver = if std::env::var_os("GPUCACHE_FAKE_CUDA_DIR").is_some() {
        Driver {
            fake: fake().map(|fake| (fake.alive(), fake)).map(|(alive, fake)| (fake, alive)),
            _alone: None,
        }
    } else {
        Driver { fake: None, _alone: Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner)) }
    };
    match CudaDevice::new(0) {
        Ok(device) => {
            warm_up(&device);
            Some((driver, device))
        }
        Err(error) => {
            println!("skipped: {error}; .ci/fake-cuda.sh runs this on the fake driver");
            None
        }
    }
}

/// The driver's own memory for the first copy is taken here, so that tests can compare free bytes.
fn warm_up(device: &CudaDevice) {
    let address = device.malloc(1).unwrap();
    copy_in(device, address, &[0]);
    copy_out(device, address, 1);
    device.free(address).unwrap();
}

impl Driver {
    /// The fake driver, if it is that.
    pub fn fake(&self) -> Option<&Fake> {
        self.fake.as_ref().map(|(fake, _)| fake)
    }

    /// Checks that all memory is free again. A real driver may keep page tables of mapped memory.
    pub fn assert_all_back(&self, device: &CudaDevice, before: u64) {
        let slack = if self.fake.is_some() { 0 } else { 32 << 20 };
        let now = free_bytes(device);
        assert!(now.abs_diff(before) <= slack, "{before} bytes were free before, {now} are after");
    }

    /// For tests that misuse the driver on purpose.
    pub fn forgive(&self) {
        if let Some((fake, _)) = &self.fake {
            fake.clear();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some((fake, before)) = self.fake.as_ref().filter(|_| !std::thread::panicking()) {
            fake.assert_clean();
            assert_eq!(fake.alive(), *before, "something has leaked");
        }
    }
}

pub fn raw(stream: &CudaStream) -> Stream {
    Stream::from_raw(stream.cu_stream() as u64)
}

pub fn free_bytes(device: &CudaDevice) -> u64 {
    device.mem_get_info().unwrap().free
}

pub fn copy_in(device: &CudaDevice, address: u64, bytes: &[u8]) {
    device.context().bind_to_thread().unwrap();
    // SAFETY: the tests give device memory of at least that length.
    unsafe { cudarc::driver::result::memcpy_htod_sync(address, bytes) }.unwrap();
}

pub fn copy_out(device: &CudaDevice, address: u64, length: usize) -> Vec<u8> {
    device.context().bind_to_thread().unwrap();
    let mut bytes = vec![0; length];
    // SAFETY: as above.
    unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut bytes, address) }.unwrap();
    bytes
}
