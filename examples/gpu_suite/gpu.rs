//! The GPU under test, and numbers that look random.

use std::error::Error;
use std::sync::Arc;

use gpucache::cudarc::driver::{CudaStream, sys};
use gpucache::device::cuda::CudaDevice;
use gpucache::device::{Device, Stream};
use gpucache::{Allocator, Config};

use crate::kernels::Kernels;

pub(crate) const MIB: usize = 1 << 20;

pub(crate) struct Gpu {
    pub(crate) device: Arc<CudaDevice>,
    pub(crate) kernels: Kernels,
}

impl Gpu {
    pub(crate) fn open(ordinal: u32) -> Result<Self, Box<dyn Error>> {
        let device = Arc::new(CudaDevice::new(ordinal)?);
        let kernels = Kernels::load(device.context())?;
        Ok(Gpu { device, kernels })
    }

    pub(crate) fn as_device(&self) -> Arc<dyn Device> {
        Arc::<CudaDevice>::clone(&self.device)
    }

    pub(crate) fn allocator(&self, options: &str) -> gpucache::Result<Allocator> {
        Allocator::builder().device(self.as_device()).config(Config::parse(options)?).build()
    }

    pub(crate) fn stream(&self) -> Result<Arc<CudaStream>, Box<dyn Error>> {
        Ok(self.device.context().new_stream()?)
    }

    pub(crate) fn total(&self) -> u64 {
        self.device.properties().total_memory
    }

    pub(crate) fn free_bytes(&self) -> Result<u64, Box<dyn Error>> {
        Ok(self.device.mem_get_info()?.free)
    }

    /// The word at an address, once everything queued is done.
    pub(crate) fn read_word(&self, address: u64) -> Result<u32, Box<dyn Error>> {
        self.device.device_synchronize()?;
        let mut word = [0_u8; 4];
        // SAFETY: the caller's block has this word, and nothing writes it meanwhile.
        unsafe {
            gpucache::cudarc::driver::result::memcpy_dtoh_sync(&mut word, address as sys::CUdeviceptr)
        }?;
        Ok(u32::from_le_bytes(word))
    }
}

/// Whether the driver keeps the books of a GPU only.
pub(crate) fn is_fake() -> bool {
    std::env::var_os("GPUCACHE_FAKE_CUDA_DIR").is_some()
}

pub(crate) fn raw(stream: &CudaStream) -> Stream {
    Stream::from_raw(stream.cu_stream() as u64)
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Small sizes as often as large ones: a multiple of 4 from 4 to about `largest`.
    pub(crate) fn size(&mut self, largest: usize) -> usize {
        let bits = largest.max(8).ilog2() as usize;
        let top = 1_usize << (2 + self.below(bits - 1));
        (top + self.below(top)).min(largest) / 4 * 4
    }
}
