//! The simulated GPU: virtual memory and page-locked host memory.

use crate::code;
use gpucache::device::sim::SimDevice;
use gpucache::device::{Device, DeviceError, HandleType, PhysicalHandle};

const PAGE: u64 = 2 << 20;

#[test]
fn the_whole_life_of_a_page() {
    let gpu = SimDevice::new(4 * PAGE);
    let at = gpu.address_reserve(1 << 40).unwrap();
    assert_eq!((at, gpu.used()), (0x6000_0000_0000, 0), "addresses cost nothing");
    let handle = gpu.mem_create(3 * PAGE, HandleType::PosixFileDescriptor).unwrap();
    assert!(gpu.mem_create(2 * PAGE, HandleType::None).unwrap_err().is_out_of_memory());
    gpu.mem_map(at + PAGE, 3 * PAGE, handle).unwrap();
    gpu.mem_set_access(at + PAGE, 3 * PAGE, 0).unwrap();
    gpu.mem_release(handle).unwrap();
    assert_eq!(gpu.used(), 3 * PAGE, "the mapping keeps it");
    gpu.mem_unmap(at + PAGE, 3 * PAGE).unwrap();
    assert_eq!(gpu.used(), 0);
    gpu.address_free(at, 1 << 40).unwrap();
    assert_eq!(gpu.address_reserve(PAGE).unwrap(), at, "lowest free range first");
    gpu.address_free(at, PAGE).unwrap();
    gpu.assert_clean();
}

#[test]
fn unmapped_and_then_released_memory_is_gone_too() {
    let gpu = SimDevice::new(4 * PAGE);
    let at = gpu.address_reserve(2 * PAGE).unwrap();
    let handle = gpu.mem_create(PAGE, HandleType::None).unwrap();
    gpu.mem_map(at, PAGE, handle).unwrap();
    gpu.mem_map(at + PAGE, PAGE, handle).unwrap();
    gpu.mem_unmap(at, PAGE).unwrap();
    gpu.mem_unmap(at + PAGE, PAGE).unwrap();
    assert_eq!(gpu.used(), PAGE);
    gpu.mem_release(handle).unwrap();
    assert_eq!(gpu.used(), 0);
}

#[test]
fn handle_types_that_the_machine_does_not_grant() {
    let gpu = SimDevice::new(PAGE);
    // Not out of memory, even where there is none: the allocator tells the two apart.
    assert_eq!(code(gpu.mem_create(8 * PAGE, HandleType::Fabric)), 800);
    gpu.mem_create(PAGE, HandleType::PosixFileDescriptor).unwrap();
    let other = SimDevice::builder().fabric_handles(true).posix_handles(false).build();
    other.mem_create(PAGE, HandleType::Fabric).unwrap();
    assert_eq!(code(other.mem_create(PAGE, HandleType::PosixFileDescriptor)), 800);
    assert_eq!((gpu.misuses(), other.misuses()), (vec![], vec![]));
}

#[test]
fn without_virtual_memory_nothing_of_it_works() {
    let gpu = SimDevice::builder().supports_virtual_memory(false).build();
    assert!(!gpu.properties().supports_virtual_memory);
    let errors = [
        gpu.address_reserve(PAGE).unwrap_err(),
        gpu.address_free(0, PAGE).unwrap_err(),
        gpu.mem_create(PAGE, HandleType::None).unwrap_err(),
        gpu.mem_release(PhysicalHandle(1)).unwrap_err(),
        gpu.mem_map(0, PAGE, PhysicalHandle(1)).unwrap_err(),
        gpu.mem_unmap(0, PAGE).unwrap_err(),
        gpu.mem_set_access(0, PAGE, 0).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, DeviceError::NotSupported { .. }), "{error}");
    }
    assert_eq!(gpu.misuses(), Vec::<String>::new());
}

#[test]
fn every_misuse_is_refused_and_changes_nothing() {
    let gpu = SimDevice::new(16 * PAGE);
    let at = gpu.address_reserve(4 * PAGE).unwrap();
    let h = gpu.mem_create(2 * PAGE, HandleType::None).unwrap();
    gpu.mem_map(at, 2 * PAGE, h).unwrap();
    let used = gpu.used();
    let gone = gpu.mem_create(PAGE, HandleType::None).unwrap();
    gpu.mem_release(gone).unwrap();

    let refused = [
        (gpu.address_reserve(PAGE + 1).map(drop), 1, "multiple of 2 MiB"),
        (gpu.address_free(at, PAGE), 1, "has 8388608 bytes"),
        (gpu.address_free(at + PAGE, PAGE), 1, "no reservation begins"),
        (gpu.address_free(at, 4 * PAGE), 1, "still mapped"),
        (gpu.mem_create(0, HandleType::None).map(drop), 1, "multiple of 2 MiB"),
        (gpu.mem_release(gone), 400, "released"),
        (gpu.mem_map(at + 2 * PAGE, PAGE, gone), 400, "released"),
        (gpu.mem_map(at + PAGE, PAGE, h), 1, "overlaps"),
        (gpu.mem_map(at + 3 * PAGE, 2 * PAGE, h), 1, "one reservation"),
        (gpu.mem_map(at + 2 * PAGE + 512, PAGE, h), 1, "aligned"),
        (gpu.mem_map(at + 2 * PAGE, 4 * PAGE, h), 1, "which has"),
        (gpu.mem_map(u64::MAX - PAGE + 1, PAGE, h), 1, "wraps"),
        (gpu.mem_unmap(at, PAGE), 1, "not 2097152"),
        (gpu.mem_unmap(at + PAGE, PAGE), 1, "no mapping begins"),
        (gpu.mem_set_access(at, PAGE, 0), 1, "whole mappings"),
        (gpu.mem_set_access(at, 3 * PAGE, 0), 1, "whole mappings"),
        (gpu.mem_set_access(at + 2 * PAGE, PAGE, 0), 1, "whole mappings"),
    ];
    let misuses = gpu.misuses();
    assert_eq!(misuses.len(), refused.len());
    for ((result, number, text), misuse) in refused.into_iter().zip(misuses) {
        assert_eq!(code(result), number, "{misuse}");
        assert!(misuse.contains(text), "{misuse} should contain {text}");
    }
    assert_eq!(gpu.used(), used);
    gpu.mem_unmap(at, 2 * PAGE).unwrap();
    gpu.mem_release(h).unwrap();
    gpu.address_free(at, 4 * PAGE).unwrap();
    assert_eq!(gpu.leaks(), Vec::<String>::new());
}

#[test]
fn only_known_devices_get_access() {
    let gpu = SimDevice::builder().peers([1]).build();
    let at = gpu.address_reserve(PAGE).unwrap();
    let h = gpu.mem_create(PAGE, HandleType::None).unwrap();
    gpu.mem_map(at, PAGE, h).unwrap();
    gpu.mem_set_access(at, PAGE, 1).unwrap();
    assert_eq!(code(gpu.mem_set_access(at, PAGE, 2)), 101);
}

#[test]
fn host_memory_can_be_read_and_written() {
    let gpu = SimDevice::builder().host_memory(10_000).build();
    let at = gpu.host_malloc(5000).unwrap();
    assert!(at.is_multiple_of(4096));
    // SAFETY: `host_malloc` gave 5000 readable and writable bytes at `at`, which live until `host_free`.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 5000) };
    assert!(bytes.iter().all(|&b| b == 0));
    bytes.fill(7);
    assert!(gpu.host_malloc(5001).unwrap_err().is_out_of_memory());
    assert!(gpu.host_malloc(u64::MAX).unwrap_err().is_out_of_memory());
    gpu.host_free(at).unwrap();
    assert_eq!(code(gpu.host_free(at)), 1);
    let all = gpu.host_malloc(10_000).unwrap();
    gpu.host_free(all).unwrap();
    assert_eq!(code(gpu.host_malloc(0)), 1);
    assert_eq!((gpu.misuses().len(), gpu.leaks().len()), (2, 0));
}

#[test]
fn fake_host_memory_costs_nothing() {
    let gpu = SimDevice::builder().real_host_memory(false).build();
    let [a, b] = [1 << 50, 1].map(|n| gpu.host_malloc(n).unwrap());
    assert!(b >= a + (1 << 50));
    gpu.host_free(a).unwrap();
    gpu.host_free(b).unwrap();
    gpu.assert_clean();
}

#[test]
fn registered_host_memory() {
    let gpu = SimDevice::new(PAGE);
    gpu.host_register(0x10_0000, 8192).unwrap();
    assert_eq!(code(gpu.host_register(0x10_1000, 1)), 712);
    gpu.host_register(0x10_2000, 1).unwrap();
    assert_eq!(code(gpu.host_unregister(0x10_1000)), 713);
    assert_eq!(code(gpu.host_register(0, 1)), 1);
    gpu.host_unregister(0x10_0000).unwrap();
    gpu.host_unregister(0x10_2000).unwrap();
    assert_eq!(gpu.leaks(), Vec::<String>::new());
}
