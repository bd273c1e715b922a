//! Every driver call of a session with pinned memory fails once, in every way that calls fail.

use std::sync::Arc;

use gpucache::device::sim::{CallKind, Fault, SimDevice, code};
use gpucache::{Allocator, Config, Error, PinnedAllocator};

/// Uses everything once, on the way of `options`. Frees what it got, whatever happens.
fn session(device: &SimDevice, pinned: &PinnedAllocator) -> Vec<Error> {
    let mut errors = Vec::new();
    let s = device.create_stream();
    for round in 0..3 {
        device.hold(s);
        let mut live = Vec::new();
        for bytes in [1, 5000, 300_000, 2 << 20] {
            match pinned.host_alloc_raw(bytes) {
                Ok(address) => live.push(address),
                Err(error) => errors.push(error),
            }
        }
        for (index, address) in live.into_iter().enumerate() {
            if index % 2 == round % 2 {
                errors.extend(pinned.record_event(address, s).err());
            }
            errors.extend(pinned.host_free_raw(address).err());
        }
        device.release(s);
        errors.extend(pinned.host_empty_cache().err());
    }
    errors
}

fn allocator(device: &SimDevice, options: &str) -> PinnedAllocator {
    let config = Config::parse(options).unwrap();
    Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap().pinned()
}

fn sweep(options: &str, fault: Fault) {
    let calls = {
        let device = SimDevice::new(1 << 30);
        let pinned = allocator(&device, options);
        assert!(session(&device, &pinned).is_empty());
        device.total_calls()
    };
    for n in 1..=calls {
        let device = SimDevice::new(1 << 30);
        let pinned = allocator(&device, options);
        device.fail_nth(None, n, fault);
        let errors = session(&device, &pinned);
        assert!(errors.len() <= 1, "call {n} of {options}: {errors:?}");
        device.clear_faults();
        // Nothing is lost: the next session is as good as the first.
        let more = session(&device, &pinned);
        assert!(more.is_empty(), "call {n} of {options}: {more:?}");
        let stats = pinned.host_memory_stats();
        let currents = stats.stats().map(|(_, stat)| stat.current);
        assert_eq!(currents, [0; 4], "call {n} of {options}");
        drop(pinned);
        device.assert_clean();
    }
}

const WAYS: [&str; 4] = [
    "",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:2",
    "pinned_reserve_segment_size_mb:1",
    "pinned_max_cached_size_mb:1",
];

#[test]
fn every_call_may_fail() {
    for options in WAYS {
        sweep(options, Fault::Driver(code::LAUNCH_FAILED));
    }
}

#[test]
fn every_call_may_lack_memory() {
    for options in WAYS {
        sweep(options, Fault::OutOfMemory);
    }
}

#[test]
fn a_driver_that_shuts_down_is_survived() {
    for options in WAYS {
        let device = SimDevice::new(1 << 30);
        let pinned = allocator(&device, options);
        let address = pinned.host_alloc_raw(5000).unwrap();
        pinned.record_event(address, device.create_stream()).unwrap();
        let buffer = pinned.alloc_zeroed::<u8>(64).unwrap();
        device.set_shutting_down(true);
        assert!(pinned.host_free_raw(address).is_err());
        drop((buffer, pinned));
    }
}

#[test]
fn an_event_that_never_completes_keeps_its_block() {
    let device = SimDevice::new(1 << 30);
    let pinned = allocator(&device, "");
    let address = pinned.host_alloc_raw(5000).unwrap();
    pinned.record_event(address, device.create_stream()).unwrap();
    device.stick_next_event();
    pinned.host_free_raw(address).unwrap();
    let other = pinned.host_alloc_raw(5000).unwrap();
    assert_ne!(other, address);
    pinned.host_free_raw(other).unwrap();
    drop(pinned);
    let frees = device.calls(CallKind::HostFree);
    assert_eq!((frees, device.leaks().len()), (1, 1), "memory that may be in use is better lost");
}
