//! Figures, the cap, `empty_cache`.

use std::thread;
use std::time::Duration;

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, SimDevice};
use gpucache::observe::history::TraceAction;
use gpucache::{Forecast, HistoryOptions, KeptReason};

use super::{MIB, SIDE, fresh, is_oom, on, reserved};

#[test]
fn a_fraction_of_the_process__pytorch_107667() {
    for (options, fits) in [
        ("per_process_memory_fraction:0.5", true),
        ("per_process_memory_fraction:0.5,fraction_of_process:True", false),
    ] {
        let device = SimDevice::builder().total_memory(1000 << 20).context_overhead(300 << 20).build();
        let allocator = on(&device, options);
        assert_eq!(allocator.alloc(300 * MIB).is_ok(), fits, "{options}");
        assert!(allocator.alloc(200 * MIB).is_ok(), "{options}");
    }
}

#[test]
fn empty_cache_says_what_stays_and_why__pytorch_86449_15482() {
    let (device, allocator) = fresh(4000, "");
    let _live = allocator.alloc(30 * MIB).unwrap();
    let pool = allocator.create_pool();
    pool.scope(|| drop(allocator.alloc(40 * MIB).unwrap())).unwrap();
    drop(allocator.alloc_on(60 * MIB, SIDE).unwrap());
    let report = allocator.empty_cache().unwrap();
    assert_eq!(report.freed_bytes, 60 << 20);
    let mut reasons: Vec<_> = report.kept.iter().map(|k| (k.bytes >> 20, k.reason)).collect();
    reasons.sort_by_key(|(mib, _)| *mib);
    assert_eq!(reasons, [(30, KeptReason::LiveBlock), (40, KeptReason::PrivatePool)]);
    assert_eq!(report.kept_bytes, device.used());
}

/// Memory stays high after one large input.
#[test]
fn a_peak_decays__onnxruntime_14474() {
    let (device, allocator) = fresh(40_000, "release_idle_after_ms:5000");
    let model = allocator.alloc(500 * MIB).unwrap();
    let request = |mib: usize| {
        drop(allocator.alloc(mib * MIB).unwrap());
        allocator.release_idle().unwrap();
        device.advance(Duration::from_secs(1));
    };
    request(100);
    request(20_000);
    for _ in 0..10 {
        request(100);
    }
    assert_eq!(reserved(&allocator), 600);
    drop(model);
}

#[test]
fn one_cap_for_all_threads__cupy_4866() {
    let (_, allocator) = fresh(1000, "");
    allocator.set_per_process_memory_fraction(0.25).unwrap();
    let block = allocator.alloc(200 * MIB).unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            assert!((allocator.get_per_process_memory_fraction() - 0.25).abs() < 1e-9);
            assert!(is_oom(&allocator.alloc_on(100 * MIB, SIDE)));
            assert!(allocator.alloc_on(50 * MIB, SIDE).is_ok());
        });
    });
    drop(block);
}

#[test]
fn asking_costs_no_driver_call_and_tells_beforehand__gpu_allocator_266_295() {
    let (device, allocator) = fresh(100, "");
    let block = allocator.alloc(60 * MIB).unwrap();
    drop(allocator.alloc_on(30 * MIB, SIDE).unwrap());
    let calls = device.total_calls();
    assert_eq!((reserved(&allocator), allocator.memory_allocated() >> 20), (90, 60));
    assert_eq!(device.total_calls(), calls);
    let ask = |mib: usize, stream| allocator.would_allocate(mib * MIB, stream).unwrap();
    assert!(matches!(ask(30, SIDE), Forecast::Hit { .. }));
    assert!(matches!(ask(10, Stream::DEFAULT), Forecast::Grow { .. }));
    assert!(matches!(ask(40, Stream::DEFAULT), Forecast::Release { .. }));
    assert!(matches!(ask(50, Stream::DEFAULT), Forecast::OutOfMemory { .. }));
    assert_eq!(device.calls(CallKind::Malloc), 2, "nothing was done");
    drop(block);
}

#[test]
fn a_warm_start__burn_2772() {
    let (device, allocator) = fresh(4000, "");
    allocator.reserve(2000 * MIB, Stream::DEFAULT).unwrap();
    let calls = device.total_calls();
    let blocks: Vec<_> = (0..10).map(|_| allocator.alloc(150 * MIB).unwrap()).collect();
    assert_eq!(device.total_calls(), calls, "the first iteration asks the driver for nothing");
    drop(blocks);
}

/// A long history slows nobody down who asks for the segments alone: it is neither read nor copied.
#[test]
fn a_snapshot_without_the_history__pytorch_172672() {
    let (_, allocator) = fresh(1000, "");
    allocator.record_memory_history(Some(HistoryOptions::with_max_entries(1000)));
    let _live = allocator.alloc(30 * MIB).unwrap();
    let segments = allocator.memory_segments();
    let whole = allocator.memory_snapshot();
    assert_eq!(segments, whole.segments);
    assert!(whole.trace.iter().all(|e| e.action != TraceAction::Snapshot), "asking left no entry behind");
    assert!(allocator.take_history().iter().any(|e| e.action == TraceAction::Snapshot), "the whole one did");
}
