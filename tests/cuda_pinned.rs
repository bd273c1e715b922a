//! Pinned host memory over a real driver or the fake one (`.ci/fake-cuda.sh`).
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Arc;

use fake::driver::{driver, raw};
use gpucache::device::Device;
use gpucache::device::cuda::CudaDevice;
use gpucache::{Allocator, Config, PinnedAllocator, cudarc};

const OPTIONS: [&str; 4] = [
    "",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:4",
    "pinned_reserve_segment_size_mb:1",
    "pinned_use_background_threads:True",
];

fn pinned(device: &Arc<CudaDevice>, options: &str) -> PinnedAllocator {
    let device: Arc<dyn Device> = Arc::<CudaDevice>::clone(device);
    let config = Config::parse(options).unwrap();
    Allocator::builder().device(device).config(config).build().unwrap().pinned()
}

#[test]
fn cudarc_copies_to_and_from_buffers() {
    let Some((_driver, device)) = driver() else { return };
    let device = Arc::new(device);
    for options in OPTIONS {
        let pinned = pinned(&device, options);
        let stream = device.context().new_stream().unwrap();
        let numbers: Vec<u32> = (0..100_000).collect();
        let source = pinned.alloc_from_slice(&numbers).unwrap();
        let mut target = pinned.alloc_zeroed::<u32>(numbers.len()).unwrap();
        let on_device = stream.clone_htod(&source).unwrap();
        stream.memcpy_dtoh(&on_device, &mut target).unwrap();
        assert_eq!(*target, *numbers, "{options}");
        drop(on_device);
        drop((source, target));
        assert_eq!(pinned.host_memory_stats().active_bytes.current, 0);
        assert_eq!(pinned.host_empty_cache().unwrap(), 2 << 19, "{options}");
        stream.synchronize().unwrap();
    }
}

#[test]
fn memory_under_an_asynchronous_copy_is_not_reused() {
    let Some((_driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let allocator = Allocator::builder().device(device.clone()).config(Config::default()).build().unwrap();
    let pinned = allocator.pinned();
    let stream = device.context().new_stream().unwrap();
    let on_device = allocator.alloc_on(1 << 20, raw(&stream)).unwrap();
    for round in 0..20_u8 {
        let buffer = pinned.alloc_from_slice(&vec![round; 1 << 20]).unwrap();
        device.context().bind_to_thread().unwrap();
        // SAFETY: both sides have 1 MiB; the buffer is not written before the event that its drop waits for.
        unsafe {
            cudarc::driver::result::memcpy_htod_async(on_device.address(), &buffer, stream.cu_stream())
                .unwrap();
        }
        buffer.record_event(raw(&stream)).unwrap();
        drop(buffer);
        let mut seen = pinned.alloc_zeroed::<u8>(1 << 20).unwrap();
        // SAFETY: both sides have 1 MiB; the buffer is read after the stream was waited for.
        unsafe {
            cudarc::driver::result::memcpy_dtoh_async(&mut seen, on_device.address(), stream.cu_stream())
                .unwrap();
        }
        stream.synchronize().unwrap();
        assert!(seen.iter().all(|&byte| byte == round), "round {round}");
    }
}
