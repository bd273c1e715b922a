//! Wrong addresses and sizes, and a system without memory.

use gpucache::device::sim::{CallKind, SimDevice};
use gpucache::observe::snapshot::PoolId;
use gpucache::{Allocator, Error};

use super::Bed;

#[test]
fn wrong_addresses_change_nothing_and_say_why() {
    let bed = Bed::new("");
    let raw = bed.host_alloc_raw(8192).unwrap();
    let buffer = bed.alloc_zeroed::<u8>(8192).unwrap();
    let freed = bed.host_alloc_raw(64).unwrap();
    bed.host_free_raw(freed).unwrap();
    let before = bed.host_memory_stats();
    for (address, reason) in [
        (raw + 1, "inside a block"),
        (buffer.address() + 512, "inside a block"),
        (buffer.address(), "PinnedBuffer"),
        (freed, "freed already"),
        (0x1234, "not from here"),
        (u64::MAX, "not from here"),
    ] {
        let error = bed.host_free_raw(address).unwrap_err();
        assert!(matches!(error, Error::InvalidHostPointer { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{address:#x}: {error}");
        assert!(error.to_string().contains(&format!("{address:#x}")), "{error}");
    }
    for address in [freed, raw + 8, 0x1234] {
        let error = bed.record_event(address, gpucache::device::Stream::DEFAULT).unwrap_err();
        assert!(matches!(error, Error::InvalidHostPointer { .. }), "{error}");
    }
    bed.record_event(buffer.address(), gpucache::device::Stream::DEFAULT).unwrap();
    bed.record_event(0, gpucache::device::Stream::DEFAULT).unwrap();
    assert_eq!(bed.host_memory_stats(), before);
    bed.host_free_raw(raw).unwrap();
}

#[test]
fn sizes_that_overflow_are_refused() {
    let bed = Bed::new("");
    let errors = [
        bed.host_alloc_raw(usize::MAX).unwrap_err(),
        bed.host_alloc_raw((1 << 60) + 1).unwrap_err(),
        bed.alloc_zeroed::<u64>(usize::MAX / 8 + 1).unwrap_err(),
        bed.alloc_zeroed::<u8>(usize::MAX).unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_out_of_memory() && error.to_string().contains("pinned"), "{error}");
    }
    assert_eq!(bed.device.total_calls(), 0);
}

#[test]
fn without_memory_cached_blocks_go_first_then_the_error_says_what_to_do() {
    let bed = Bed::on(SimDevice::builder().host_memory(3 << 20).build(), "");
    let kept = bed.host_alloc_raw(1 << 20).unwrap();
    let idle = bed.host_alloc_raw(1 << 20).unwrap();
    bed.host_free_raw(idle).unwrap();
    let two = bed.host_alloc_raw(2 << 20).unwrap();
    assert_eq!(bed.calls(CallKind::HostFree), 1);
    let error = bed.host_alloc_raw(3000).unwrap_err();
    assert!(error.is_out_of_memory());
    let text = error.to_string();
    for part in ["3000 bytes", "rounded to 4096", "3145728 bytes are in use", "0 cached", "ulimit -l"] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    for address in [kept, two] {
        bed.host_free_raw(address).unwrap();
    }
    let again = bed.host_alloc_raw(2 << 20).unwrap();
    assert_eq!(again, two, "what was there before the error still is");
    bed.host_free_raw(again).unwrap();
}

#[test]
fn without_memory_streams_are_waited_for_but_not_in_a_capture() {
    let bed = Bed::on(SimDevice::builder().host_memory(3 << 20).build(), "");
    let s = bed.device.create_stream();
    bed.device.hold(s);
    bed.use_and_free(2 << 20, s);
    bed.begin_allocate_to_pool(PoolId(1, 0), |_| true).unwrap();
    assert!(bed.host_alloc_raw(2 << 20).is_err());
    assert_eq!(bed.device.blocked_waits(), 0);
    bed.end_allocate_to_pool(PoolId(1, 0)).unwrap();
    let address = bed.host_alloc_raw(2 << 20).unwrap();
    assert_eq!(bed.device.blocked_waits(), 1);
    bed.host_free_raw(address).unwrap();
}

#[test]
fn pytorch_fails_without_releasing() {
    let bed = Bed::on(SimDevice::builder().host_memory(3 << 20).build(), "mirror_defects:True");
    let idle = bed.host_alloc_raw(2 << 20).unwrap();
    bed.host_free_raw(idle).unwrap();
    assert!(bed.host_alloc_raw(3 << 20).is_err());
    assert_eq!(bed.calls(CallKind::HostFree), 0);
}

#[test]
fn no_buffers_over_addresses_without_memory() {
    let device = SimDevice::builder().real_host_memory(false).build();
    let pinned = Allocator::simulated(device).pinned();
    let error = pinned.alloc_zeroed::<u8>(64).unwrap_err();
    assert!(matches!(error, Error::NotSupported(_)), "{error}");
    let address = pinned.host_alloc_raw(64).unwrap();
    pinned.host_free_raw(address).unwrap();
}
