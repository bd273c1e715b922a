//! Blocks shared between two processes, on a real driver or the fake one (`.ci/fake-cuda.sh`).
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod fake;

use std::fmt::Write as _;
use std::process::Command;
use std::sync::Arc;

use fake::driver::{copy_in, copy_out, driver};
use gpucache::device::Device;
use gpucache::device::cuda::CudaDevice;
use gpucache::device::sim::SimDevice;
use gpucache::{Allocation, Allocator, Config, Error};

const MIB: usize = 1 << 20;
const HANDLE: &str = "GPUCACHE_TEST_SHARED";

fn allocator(device: &Arc<CudaDevice>, options: &str) -> Allocator {
    let device: Arc<dyn Device> = Arc::<CudaDevice>::clone(device);
    Allocator::builder().device(device).config(Config::parse(options).unwrap()).build().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Runs in the second process: reads what the first wrote, and writes something else.
#[test]
fn in_the_other_process() {
    let Ok(shared) = std::env::var(HANDLE) else { return };
    let Some((_driver, device)) = driver() else { panic!("no driver in the second process") };
    let device = Arc::new(device);
    let allocator = allocator(&device, "");
    for block in shared.split(',') {
        let parts: Vec<&str> = block.split(':').collect();
        let (handle, offset, len) = (unhex(parts[0]), parts[1].parse().unwrap(), parts[2].parse().unwrap());
        let opened = allocator.open_shared(&handle, offset, len).unwrap();
        let again = allocator.open_shared(&handle, offset, len).unwrap();
        assert_eq!(copy_out(&device, opened.address(), len), vec![7; len]);
        copy_in(&device, again.address(), &vec![9; len]);
        let beyond = allocator.open_shared(&handle, offset, 1 << 40).unwrap_err();
        assert!(matches!(beyond, Error::Buffer(_)), "{beyond}");
    }
}

/// Shares blocks with a second process, which changes them.
fn share(options: &str, sizes: &[usize]) {
    let Some((_driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let allocator = allocator(&device, options);
    let blocks: Vec<Allocation> = sizes.iter().map(|&size| allocator.alloc(size).unwrap()).collect();
    let shared: Vec<_> = blocks.iter().map(|block| allocator.share(block).unwrap()).collect();
    for block in &blocks {
        copy_in(&device, block.address(), &vec![7; block.len()]);
    }
    let words: Vec<_> =
        shared.iter().map(|s| format!("{}:{}:{}", hex(s.handle()), s.offset(), s.len())).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "in_the_other_process", "--nocapture"])
        .env(HANDLE, words.join(","))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for block in &blocks {
        assert_eq!(copy_out(&device, block.address(), block.len()), vec![9; block.len()]);
    }
    drop((shared, blocks));
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 0);
    allocator.verify().unwrap();
}

#[test]
fn blocks_of_ordinary_segments() {
    share("", &[1000, 5000, 3 * MIB, 30 * MIB]);
}

#[test]
fn blocks_of_expandable_segments() {
    share("expandable_segments:True", &[1000, 5000, 3 * MIB, 30 * MIB]);
}

#[test]
fn the_layout_of_handles() {
    let Some((_driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let ordinary = allocator(&device, "");
    let (first, second) = (ordinary.alloc(1000).unwrap(), ordinary.alloc(1000).unwrap());
    let shared = ordinary.share(&second).unwrap();
    assert_eq!((shared.handle().len(), shared.offset(), shared.len()), (66, 1024, 1000));
    assert_eq!(ordinary.share(&first).unwrap().handle(), shared.handle(), "one segment, one handle");

    let expandable = allocator(&device, "expandable_segments:True");
    let block = expandable.alloc(30 * MIB).unwrap();
    let shared = expandable.share(&block).unwrap();
    // Two pages of 20 MiB, by descriptor or by fabric handle.
    assert!([26 + 2 * 4, 26 + 2 * 64].contains(&shared.handle().len()));
    assert_eq!(shared.offset(), 0);
    drop((first, second));
}

#[test]
fn what_cannot_be_shared_says_so() {
    let allocator = Allocator::simulated(SimDevice::new(1 << 30));
    assert!(matches!(allocator.share(&allocator.alloc(0).unwrap()), Err(Error::Buffer(_))));
    let error = allocator.share(&allocator.alloc(100).unwrap()).unwrap_err();
    assert!(error.to_string().contains("not supported"), "{error}");
    assert!(matches!(allocator.open_shared(&[1, 2, 3], 0, 1), Err(Error::Buffer(_))));
    assert!(allocator.open_shared(&[0; 64], 0, 1).is_err());
}

#[test]
fn peers_reach_mapped_memory_old_and_new() {
    let Some((_driver, device)) = driver() else { return };
    let Ok(second) = CudaDevice::new(1) else {
        println!("skipped: needs two devices");
        return;
    };
    let owner = allocator(&Arc::new(device), "expandable_segments:True");
    let user = allocator(&Arc::new(second), "");
    let before = owner.alloc(3 * MIB).unwrap();
    user.enable_peer_access(&owner).unwrap();
    user.enable_peer_access(&owner).unwrap();
    let after = owner.alloc(50 * MIB).unwrap();
    let context = gpucache::cudarc::driver::CudaContext::new(1).unwrap();
    let stream = context.default_stream();
    for block in [&before, &after] {
        context.bind_to_thread().unwrap();
        // SAFETY: the memory is that large, and this device may reach it: that is what is tested.
        unsafe {
            gpucache::cudarc::driver::result::memset_d8_async(block.address(), 5, 64, stream.cu_stream())
        }
        .unwrap();
        stream.synchronize().unwrap();
    }
    owner.enable_peer_access(&owner).unwrap();
    owner.verify().unwrap();
}
