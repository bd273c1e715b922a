//! Managed memory as an upstream, and several devices, over a real driver or the fake one (`.ci/fake-cuda.sh`).
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Arc;

use fake::driver::{copy_in, copy_out, driver, raw};
use gpucache::device::Device;
use gpucache::device::cuda::CudaDevice;
use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, Config, Error, ManagedUpstream};

const MIB: usize = 1 << 20;

fn allocator(device: &Arc<CudaDevice>) -> Allocator {
    let device: Arc<dyn Device> = Arc::<CudaDevice>::clone(device);
    Allocator::builder().device(device).config(Config::default()).build().unwrap()
}

#[test]
fn a_pool_of_managed_memory_serves_host_and_device() {
    let Some((_driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let allocator = allocator(&device);
    let managed = Arc::new(ManagedUpstream::new(Arc::clone(allocator.device()), 64 << 20));
    let pool = allocator.create_pool_with(managed.clone());
    let block = pool.scope(|| allocator.alloc(3 * MIB)).unwrap().unwrap();
    assert_eq!(managed.held(), 20 << 20, "cached and split like any other segment");
    copy_in(&device, block.address(), b"managed");
    assert_eq!(copy_out(&device, block.address(), 7), b"managed");
    // SAFETY: managed memory is the host's as well, and the copies are done.
    assert_eq!(unsafe { std::slice::from_raw_parts(block.address() as *const u8, 7) }, b"managed");
    allocator.verify().unwrap();

    drop((block, pool));
    allocator.empty_cache().unwrap();
    assert_eq!((managed.held(), allocator.memory_reserved()), (0, 0));
    allocator.verify().unwrap();
}

#[test]
fn managed_memory_ends_at_its_limit() {
    let Some((_driver, device)) = driver() else { return };
    let allocator = allocator(&Arc::new(device));
    let managed = Arc::new(ManagedUpstream::new(Arc::clone(allocator.device()), 32 << 20));
    let pool = allocator.create_pool_with(managed.clone());
    let first = pool.scope(|| allocator.alloc(20 * MIB)).unwrap().unwrap();
    let refused = pool.scope(|| allocator.alloc(20 * MIB)).unwrap().unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory(_)), "{refused:?}");
    assert_eq!(managed.held(), 20 << 20, "a refusal takes nothing");
    drop(first);
    drop(pool.scope(|| allocator.alloc(20 * MIB)).unwrap().unwrap());
}

#[test]
fn a_device_without_managed_memory_refuses() {
    let device: Arc<dyn Device> = Arc::new(SimDevice::new(1 << 30));
    let allocator =
        Allocator::builder().device(Arc::clone(&device)).config(Config::default()).build().unwrap();
    let managed = Arc::new(ManagedUpstream::new(device, 32 << 20));
    let pool = allocator.create_pool_with(managed.clone());
    let outcome = pool.scope(|| allocator.alloc(MIB)).unwrap();
    // A device may have it; what must not happen is that a refusal counts.
    assert_eq!(managed.held() > 0, outcome.is_ok());
}

#[test]
fn each_device_has_its_own_memory() {
    let Some((_driver, first)) = driver() else { return };
    let Ok(second) = CudaDevice::new(1) else {
        println!("skipped: needs two devices");
        return;
    };
    let (first, second) = (Arc::new(first), Arc::new(second));
    let (here, there) = (allocator(&first), allocator(&second));
    let address = here.alloc_raw(MIB, gpucache::device::Stream::DEFAULT).unwrap();
    let wrong = there.free_raw(address).unwrap_err();
    assert!(matches!(wrong, Error::InvalidPointer { .. }), "{wrong:?}");
    here.free_raw(address).unwrap();

    let stream = second.context().new_stream().unwrap();
    let wrong = here.alloc_zeros::<u8>(16, &stream).unwrap_err();
    assert!(wrong.to_string().contains("one allocator per device"), "{wrong}");
    assert!(wrong.to_string().contains("(device 1)"), "{wrong}");
    drop(there.alloc_zeros::<u8>(16, &stream).unwrap());
    here.verify().unwrap();
    there.verify().unwrap();
}

#[test]
fn pages_of_a_destroyed_stream_go_back() {
    let Some((driver, device)) = driver() else { return };
    if driver.fake().is_none() {
        println!("skipped: what a real driver does with a destroyed stream's handle is undefined");
        return;
    }
    let device = Arc::new(device);
    let shared: Arc<dyn Device> = Arc::<CudaDevice>::clone(&device);
    let config = Config::parse("expandable_segments:True").unwrap();
    let allocator = Allocator::builder().device(shared).config(config).build().unwrap();
    let stream = device.context().new_stream().unwrap();
    drop(allocator.alloc_on(3 * MIB, raw(&stream)).unwrap());
    drop(stream);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 0);
    driver.forgive();
}

#[test]
fn buffers_are_copied_between_devices() {
    let Some((_driver, first)) = driver() else { return };
    let Ok(second) = CudaDevice::new(1) else {
        println!("skipped: needs two devices");
        return;
    };
    let (first, second) = (Arc::new(first), Arc::new(second));
    let (here, there) = (allocator(&first), allocator(&second));
    let streams = (first.context().new_stream().unwrap(), second.context().new_stream().unwrap());
    let theirs = there.clone_htod(&[7_u32; 1000], &streams.1).unwrap();
    let mut ours = here.clone_htod(&[0_u32; 1000], &streams.0).unwrap();
    ours.copy_from(&theirs).unwrap();
    assert_eq!(ours.to_vec().unwrap(), [7; 1000]);
    drop((ours, theirs));
    here.verify().unwrap();
    there.verify().unwrap();
}
