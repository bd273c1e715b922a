//! The simulated GPU: planned failures, counters, log, clock.

use std::time::Duration;

use gpucache::device::sim::{CallKind, Fault, LoggedCall, SimCall, SimDevice};
use gpucache::device::{Device, DeviceError, DeviceResult, HandleType, Stream};

const PAGE: u64 = 2 << 20;

/// One call of every kind, in an order in which each works; every result by its kind.
fn every_call(gpu: &SimDevice) -> Vec<(CallKind, DeviceResult<()>)> {
    let s = Stream::from_raw(900);
    let a = gpu.malloc(512);
    let e = gpu.event_create();
    let event = e.clone().unwrap_or(gpucache::device::Event(0));
    let at = gpu.address_reserve(PAGE);
    let address = at.clone().unwrap_or(0);
    let h = gpu.mem_create(PAGE, HandleType::None);
    let handle = h.clone().unwrap_or(gpucache::device::PhysicalHandle(0));
    let host = gpu.host_malloc(10);
    let mut results = vec![
        (CallKind::MemGetInfo, gpu.mem_get_info().map(drop)),
        (CallKind::PendingError, gpu.pending_error()),
        (CallKind::EventRecord, gpu.event_record(event, s)),
        (CallKind::EventQuery, gpu.event_query(event).map(drop)),
        (CallKind::EventSynchronize, gpu.event_synchronize(event)),
        (CallKind::StreamWaitEvent, gpu.stream_wait_event(s, event)),
        (CallKind::StreamSynchronize, gpu.stream_synchronize(s)),
        (CallKind::DeviceSynchronize, gpu.device_synchronize()),
        (CallKind::EventDestroy, gpu.event_destroy(event)),
        (CallKind::MemMap, gpu.mem_map(address, PAGE, handle)),
        (CallKind::MemSetAccess, gpu.mem_set_access(address, PAGE, 0)),
        (CallKind::MemUnmap, gpu.mem_unmap(address, PAGE)),
        (CallKind::MemRelease, gpu.mem_release(handle)),
        (CallKind::AddressFree, gpu.address_free(address, PAGE)),
        (CallKind::Free, gpu.free(a.clone().unwrap_or(0))),
        (CallKind::HostFree, gpu.host_free(host.clone().unwrap_or(0))),
        (CallKind::HostRegister, gpu.host_register(4096, 10)),
        (CallKind::HostUnregister, gpu.host_unregister(4096)),
        (CallKind::Malloc, a.map(drop)),
        (CallKind::EventCreate, e.map(drop)),
        (CallKind::AddressReserve, at.map(drop)),
        (CallKind::MemCreate, h.map(drop)),
        (CallKind::HostMalloc, host.map(drop)),
    ];
    gpu.begin_capture(s).unwrap();
    results.push((CallKind::CaptureStatus, gpu.capture_status(s).map(drop)));
    results.push((CallKind::CaptureTerminals, gpu.capture_terminals(s).map(drop)));
    let node = gpu.launch(s).unwrap();
    results.push((CallKind::GraphNodeDependencies, gpu.graph_node_dependencies(node).map(drop)));
    gpu.end_capture(s).unwrap();
    results
}

#[test]
fn every_kind_of_call_is_counted_and_can_fail() {
    let gpu = SimDevice::new(1 << 30);
    for (kind, result) in every_call(&gpu) {
        assert!(result.is_ok(), "{kind:?}: {result:?}");
        assert_eq!(gpu.calls(kind), 1, "{kind:?}");
    }
    gpu.assert_clean();
    assert_eq!(gpu.total_calls(), CallKind::ALL.len() as u64);
    gpu.reset_calls();
    assert_eq!(gpu.total_calls(), 0);

    for &kind in CallKind::ALL {
        let gpu = SimDevice::new(1 << 30);
        gpu.fail_next(kind, Fault::Driver(999));
        let results = every_call(&gpu);
        let (_, result) = results.iter().find(|(k, _)| *k == kind).unwrap();
        let expected =
            DeviceError::Driver { call: kind.name(), code: 999, name: "CUDA_ERROR_UNKNOWN".to_owned() };
        assert_eq!(result.clone().unwrap_err(), expected, "{kind:?}");
        assert_eq!(gpu.calls(kind), 1, "failed calls count");
    }
}

#[test]
fn the_nth_call_of_any_kind_fails() {
    for n in 1..=4 {
        let gpu = SimDevice::new(1 << 30);
        gpu.fail_nth(None, n, Fault::OutOfMemory);
        let results = [
            gpu.mem_get_info().is_ok(),
            gpu.pending_error().is_ok(),
            gpu.device_synchronize().is_ok(),
            gpu.mem_get_info().is_ok(),
        ];
        for (at, ok) in results.into_iter().enumerate() {
            assert_eq!(ok, at + 1 != n as usize, "call {at}, plan {n}");
        }
    }
}

#[test]
fn a_failed_free_frees_nothing_until_faults_are_cleared() {
    let gpu = SimDevice::new(1 << 30);
    let a = gpu.malloc(512).unwrap();
    gpu.fail_from(CallKind::Free, 1, Fault::Driver(1));
    assert!(gpu.free(a).is_err());
    assert!(gpu.free(a).is_err());
    assert_eq!((gpu.used(), gpu.misuses().len()), (512, 0));
    gpu.clear_faults();
    gpu.free(a).unwrap();
    gpu.assert_clean();
}

#[test]
fn plans_count_apart() {
    let gpu = SimDevice::new(1 << 30);
    gpu.fail_nth(CallKind::Malloc, 2, Fault::OutOfMemory);
    gpu.fail_nth(CallKind::Malloc, 3, Fault::NotSupported);
    gpu.malloc(1).unwrap();
    gpu.mem_get_info().unwrap();
    assert!(gpu.malloc(1).unwrap_err().is_out_of_memory());
    assert!(matches!(gpu.malloc(1).unwrap_err(), DeviceError::NotSupported { call: "cuMemAlloc" }));
    gpu.malloc(1).unwrap();
}

#[test]
fn a_broken_device_and_one_that_shuts_down() {
    let gpu = SimDevice::new(1 << 30);
    gpu.set_broken(true);
    assert!(matches!(gpu.malloc(1).unwrap_err(), DeviceError::Driver { code: 719, .. }));
    gpu.set_broken(false);
    gpu.set_shutting_down(true);
    assert!(matches!(gpu.free(1).unwrap_err(), DeviceError::ShuttingDown { .. }));
    gpu.set_shutting_down(false);
    gpu.malloc(1).unwrap();
    gpu.set_pending_error(Fault::Driver(700));
    assert!(gpu.pending_error().is_err());
    gpu.pending_error().unwrap();
    let other = gpu.another_process();
    gpu.set_broken(true);
    other.malloc(1).unwrap();
}

#[test]
fn the_log_has_arguments_and_results() {
    let gpu = SimDevice::new(1000);
    gpu.malloc(1).unwrap();
    assert_eq!(gpu.take_log(), [], "not recording yet");
    gpu.start_log();
    let a = gpu.malloc(500).unwrap();
    let refused = gpu.malloc(500).unwrap_err();
    gpu.mem_get_info().unwrap();
    gpu.free(a).unwrap();
    let entry = |call, result| LoggedCall { call, result };
    let expected = [
        entry(SimCall::Malloc { bytes: 500 }, Ok(a)),
        entry(SimCall::Malloc { bytes: 500 }, Err(refused)),
        entry(SimCall::MemGetInfo, Ok(499)),
        entry(SimCall::Free { address: a }, Ok(0)),
    ];
    assert_eq!(gpu.take_log(), expected);
    assert_eq!(gpu.take_log(), []);
    gpu.pending_error().unwrap();
    assert_eq!(gpu.take_log().len(), 1);
    gpu.stop_log();
    gpu.pending_error().unwrap();
    assert_eq!(gpu.take_log(), []);
}

#[test]
fn the_clock_counts_what_an_h200_would_take() {
    let gpu = SimDevice::new(8 << 30);
    assert_eq!(gpu.elapsed(), Duration::ZERO);
    let a = gpu.malloc(1 << 30).unwrap();
    assert_eq!(gpu.elapsed(), Duration::from_micros(206));
    gpu.free(a).unwrap();
    assert_eq!(gpu.elapsed(), Duration::from_micros(816), "by the size of what is freed");
    let h = gpu.mem_create(PAGE, HandleType::None).unwrap();
    gpu.mem_release(h).unwrap();
    assert_eq!(gpu.elapsed(), Duration::from_micros(842));
    gpu.advance(Duration::from_secs(1));
    assert_eq!(gpu.elapsed(), Duration::from_micros(1_000_842));
}

#[test]
fn threads_may_share_a_handle() {
    let gpu = SimDevice::new(1 << 30);
    std::thread::scope(|scope| {
        for n in 0..4u64 {
            let gpu = gpu.clone();
            scope.spawn(move || {
                let stream = Stream::from_raw(n);
                for _ in 0..200 {
                    let a = gpu.malloc(512).unwrap();
                    gpu.write(stream, a, 512, n);
                    gpu.expect(stream, a, 512, n);
                    gpu.free(a).unwrap();
                }
            });
        }
    });
    assert_eq!(gpu.calls(CallKind::Malloc), 800);
    gpu.assert_clean();
}
