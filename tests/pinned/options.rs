//! The `pinned_*` options.

use std::time::{Duration, Instant};

use gpucache::device::DeviceError;
use gpucache::device::sim::{CallKind, Fault, SimCall, SimDevice};
use gpucache::{Allocator, Error};

use super::Bed;

#[test]
fn reserve_segment_is_cut_in_steps_of_a_page() {
    for (options, after_empty) in [("", 0), (",mirror_defects:True", 28672)] {
        let bed = Bed::new(&format!("pinned_reserve_segment_size_mb:1{options}"));
        let first = bed.host_alloc_raw(5000).unwrap();
        assert_eq!(bed.calls(CallKind::HostMalloc), 1);
        assert_eq!((bed.stat("allocations.current"), bed.stat("allocated_bytes.current")), (1, 8192));
        let small = bed.host_alloc_raw(1).unwrap();
        let next = bed.host_alloc_raw(9000).unwrap();
        assert_eq!([small - first, next - first], [8192, 12288]);
        assert_eq!(bed.calls(CallKind::HostMalloc), 1);
        let large = [2 << 20, 1 << 20].map(|bytes| bed.host_alloc_raw(bytes).unwrap());
        assert_eq!(bed.calls(CallKind::HostMalloc), 3, "no room there");
        for address in [small, next, first].into_iter().chain(large) {
            bed.host_free_raw(address).unwrap();
        }
        assert_eq!(bed.host_empty_cache().unwrap(), 8192 + 1 + 16384 + (3 << 20));
        assert_eq!(bed.calls(CallKind::HostFree), 2, "the segment stays");
        let stats = bed.host_memory_stats();
        assert_eq!((stats.host_alloc_time.count, stats.host_free_time.count), (3, 2));
        assert_eq!(stats.allocations.current, 0);
        let again = bed.host_alloc_raw(5000).unwrap();
        assert_eq!(again - first, after_empty);
        bed.host_free_raw(again).unwrap();
    }
}

#[test]
fn a_reserve_segment_that_cannot_be_had_is_done_without() {
    let bed = Bed::on(SimDevice::builder().host_memory(1 << 20).build(), "pinned_reserve_segment_size_mb:2");
    for _ in 0..2 {
        let address = bed.host_alloc_raw(4096).unwrap();
        bed.host_free_raw(address).unwrap();
    }
    assert_eq!(bed.calls(CallKind::HostMalloc), 2, "the segment is tried once");
}

#[test]
fn registered_memory_is_ordinary_memory_touched_before() {
    for threads in [1, 4] {
        let options = format!("pinned_use_cuda_host_register:True,pinned_num_register_threads:{threads}");
        let bed = Bed::new(&options);
        bed.device.start_log();
        for bytes in [1, 4096, 16384, 20000, 1 << 20] {
            let mut buffer = bed.alloc_zeroed::<u8>(bytes).unwrap();
            buffer.fill(9);
        }
        assert_eq!(bed.host_empty_cache().unwrap(), 1 + 4096 + 16384 + 32768 + (1 << 20));
        let log = bed.device.take_log();
        let registered: Vec<u64> = log
            .iter()
            .filter_map(|call| match call.call {
                SimCall::HostRegister { bytes, .. } => Some(bytes),
                _ => None,
            })
            .collect();
        assert_eq!(registered, [1, 4096, 16384, 32768, 1 << 20]);
        assert_eq!((bed.calls(CallKind::HostUnregister), bed.calls(CallKind::HostMalloc)), (5, 0));
    }
}

#[test]
fn the_way_of_allocation_may_change_while_blocks_are_out() {
    let allocator = Allocator::simulated(SimDevice::new(1 << 30));
    let pinned = allocator.pinned();
    let driver = pinned.host_alloc_raw(4096).unwrap();
    allocator.set_allocator_settings("pinned_use_cuda_host_register:True").unwrap();
    let registered = pinned.host_alloc_raw(4096).unwrap();
    allocator.set_allocator_settings("pinned_use_cuda_host_register:False").unwrap();
    for address in [driver, registered] {
        pinned.host_free_raw(address).unwrap();
    }
    assert_eq!(pinned.host_empty_cache().unwrap(), 8192);
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_background_thread_takes_up_finished_blocks() {
    let bed = Bed::new("pinned_use_background_threads:True");
    let s = bed.device.create_stream();
    for round in 0..3 {
        bed.device.hold(s);
        let address = bed.use_and_free(4096, s);
        assert_eq!(bed.stat("active_requests.current"), 1, "{round}");
        bed.device.release(s);
        wait_until("nobody saw the event", || bed.stat("active_requests.current") == 0);
        let queries = bed.calls(CallKind::EventQuery);
        assert_eq!(bed.host_alloc_raw(4096).unwrap(), address);
        assert_eq!(bed.calls(CallKind::EventQuery), queries, "allocation asks for no event");
        bed.host_free_raw(address).unwrap();
    }
    // The drop of `bed` finds no event left: the thread is gone before its device.
}

#[test]
fn the_background_thread_can_be_turned_off() {
    let device = SimDevice::new(1 << 30);
    let allocator = Allocator::simulated(device.clone());
    let pinned = allocator.pinned();
    allocator.set_allocator_settings("pinned_use_background_threads:True").unwrap();
    let first = pinned.host_alloc_raw(4096).unwrap();
    allocator.set_allocator_settings("pinned_use_background_threads:False").unwrap();
    let s = device.create_stream();
    pinned.record_event(first, s).unwrap();
    pinned.host_free_raw(first).unwrap();
    wait_until("nobody processes events", || {
        let address = pinned.host_alloc_raw(4096).unwrap();
        pinned.host_free_raw(address).unwrap();
        pinned.host_memory_stats().active_requests.current == 0
    });
}

#[test]
fn requests_above_the_round_threshold_are_not_rounded() {
    let bed = Bed::new("pinned_max_round_threshold_mb:4");
    for (bytes, size) in [(3 << 20, 4 << 20), (4 << 20, 4 << 20), (5 << 20, 5 << 20)] {
        let address = bed.host_alloc_raw(bytes).unwrap();
        assert_eq!(bed.stat("active_bytes.current"), size);
        bed.host_free_raw(address).unwrap();
    }
    // Both would be in the class of 8 MiB: the cached block of 5 MiB must not serve 6 MiB, but the other way is fine.
    let six = bed.host_alloc_raw(6 << 20).unwrap();
    assert_eq!(bed.calls(CallKind::HostMalloc), 3);
    bed.host_free_raw(six).unwrap();
    let five = [5 << 20, 5 << 20].map(|bytes| bed.host_alloc_raw(bytes).unwrap());
    assert_eq!((bed.calls(CallKind::HostMalloc), five[1]), (3, six));
    for address in five {
        bed.host_free_raw(address).unwrap();
    }
}

#[test]
fn blocks_above_the_cached_size_are_released() {
    let bed = Bed::new("pinned_max_cached_size_mb:4");
    let s = bed.device.create_stream();
    bed.device.hold(s);
    for (bytes, freed) in [(3 << 20, 0), (5 << 20, 1)] {
        let address = bed.host_alloc_raw(bytes).unwrap();
        bed.host_free_raw(address).unwrap();
        assert_eq!(bed.calls(CallKind::HostFree), freed);
    }
    bed.use_and_free(6 << 20, s);
    assert_eq!(bed.stat("allocated_bytes.current"), 10 << 20);
    bed.device.release(s);
    let small = bed.host_alloc_raw(1).unwrap();
    assert_eq!((bed.calls(CallKind::HostFree), bed.stat("allocated_bytes.current")), (2, (4 << 20) + 1));
    bed.host_free_raw(small).unwrap();
}

#[test]
fn free_catch_all_swallows_failures() {
    let fault = Fault::Driver(gpucache::device::sim::code::LAUNCH_FAILED);
    for (options, caught) in [("", false), ("pinned_free_catch_all:True", true)] {
        let bed = Bed::new(options);
        let s = bed.device.create_stream();
        let address = bed.host_alloc_raw(64).unwrap();
        bed.record_event(address, s).unwrap();
        bed.device.fail_next(CallKind::EventRecord, fault);
        let freed = bed.host_free_raw(address);
        let idle = bed.host_alloc_raw(64).unwrap();
        bed.host_free_raw(idle).unwrap();
        bed.device.fail_next(CallKind::HostFree, fault);
        let emptied = bed.host_empty_cache();
        assert_eq!((freed.is_ok(), emptied.is_ok()), (caught, caught));
        for error in freed.err().into_iter().chain(emptied.err()) {
            assert!(matches!(error, Error::Device(DeviceError::Driver { .. })), "{error}");
        }
        assert_eq!(bed.host_empty_cache().unwrap(), 64, "it was kept");
    }
}
