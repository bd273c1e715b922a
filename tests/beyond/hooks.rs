//! User code that the allocator calls back: under no lock, panics contained.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, SimDevice};
use gpucache::{Allocation, Allocator, Error};
use parking_lot::Mutex;

use super::{MIB, allocator};

fn fresh() -> (SimDevice, Allocator) {
    let device = SimDevice::new(100 << 20);
    let allocator = allocator(&device, "");
    (device, allocator)
}

/// Everything that takes a lock: it would hang if the caller held one.
fn use_everything(allocator: &Allocator) {
    let side = Stream::from_raw(8);
    let block = allocator.alloc(1000).unwrap();
    block.record_stream(side);
    drop(block);
    drop(allocator.alloc_on(512, side).unwrap());
    drop(allocator.scope("hook").alloc(512).unwrap());
    let _ = (allocator.memory_stats(), allocator.memory_snapshot(), allocator.memory_summary(true));
    allocator.set_per_process_memory_fraction(1.0).unwrap();
    allocator.set_allocator_settings("").unwrap();
    allocator.empty_cache().unwrap();
    allocator.verify().unwrap();
    // Another thread is not kept out either. (It gets a hit: a miss would call the hooks of that thread.)
    drop(allocator.alloc(512).unwrap());
    thread::scope(|s| s.spawn(|| drop(allocator.alloc(512).unwrap())).join().unwrap());
}

#[test]
fn an_observer_gets_the_report_and_may_use_the_allocator() {
    let (device, allocator) = fresh();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (inner, log) = (allocator.clone(), seen.clone());
    allocator.attach_out_of_memory_observer(move |report| {
        use_everything(&inner);
        log.lock().push((report.requested, report.device_total, report.to_string()));
    });
    let _held = allocator.alloc(30 * MIB).unwrap();
    let error = allocator.alloc(90 * MIB).unwrap_err();
    let Error::OutOfMemory(report) = &error else { panic!("{error}") };
    let seen = std::mem::take(&mut *seen.lock());
    assert_eq!(seen, [(90 << 20, 100 << 20, report.to_string())], "called once, with what the error holds");
    assert_eq!(device.misuses(), Vec::<String>::new());
}

#[test]
fn observers_are_called_in_order_and_a_panic_ends_there() {
    let (_, allocator) = fresh();
    let calls = Arc::new(AtomicU64::new(0));
    for (digit, panics) in [(1, true), (2, false)] {
        let calls = calls.clone();
        allocator.attach_out_of_memory_observer(move |_| {
            let before = calls.load(Ordering::Relaxed);
            calls.store(before * 10 + digit, Ordering::Relaxed);
            assert!(!panics, "an observer that panics on purpose");
        });
    }
    assert!(matches!(allocator.alloc(200 * MIB), Err(Error::OutOfMemory(_))));
    assert_eq!(calls.load(Ordering::Relaxed), 12);
    drop(allocator.alloc(MIB).unwrap());
    allocator.verify().unwrap();
}

#[test]
fn a_callback_that_frees_saves_the_request() {
    let (device, allocator) = fresh();
    let kept: Arc<Mutex<Option<Allocation>>> = Arc::new(Mutex::new(Some(allocator.alloc(90 * MIB).unwrap())));
    let (inner, cache) = (allocator.clone(), kept.clone());
    allocator.add_free_memory_callback(move || {
        use_everything(&inner);
        // Freed first: otherwise the emptied cache would have lost it.
        cache.lock().take().is_some()
    });
    let address = kept.lock().as_ref().map(Allocation::address);
    let block = allocator.alloc(80 * MIB).unwrap();
    assert_eq!(Some(block.address()), address, "served from the freed block");
    drop(block);
    let hits = device.calls(CallKind::Malloc);
    drop(allocator.alloc(80 * MIB).unwrap());
    assert_eq!(device.calls(CallKind::Malloc), hits, "a hit calls nobody");
}

#[test]
fn a_callback_that_panics_or_lies_does_no_harm() {
    let (device, allocator) = fresh();
    allocator.add_free_memory_callback(|| panic!("a callback that panics on purpose"));
    allocator.add_free_memory_callback(|| true);
    let block = allocator.alloc(50 * MIB).unwrap();
    assert!(matches!(allocator.alloc(60 * MIB), Err(Error::OutOfMemory(_))));
    drop(block);
    allocator.verify().unwrap();
    drop(allocator);
    device.assert_clean();
}

/// What misses or fails inside user code calls no user code again: that would go on for ever.
#[test]
fn hooks_do_not_call_themselves() {
    let (_, first) = fresh();
    let (_, second) = fresh();
    let calls: Arc<[AtomicU64; 3]> = Arc::default();
    let count = |n: usize| {
        let calls = calls.clone();
        move || calls[n].fetch_add(1, Ordering::Relaxed)
    };
    let (callback, observer, other) = (count(0), count(1), count(2));
    let (inner, outer) = (first.clone(), second.clone());
    first.add_free_memory_callback(move || {
        callback();
        drop(inner.alloc(11 * MIB).unwrap());
        // Another allocator's hooks are called.
        drop(outer.alloc(11 * MIB).unwrap());
        false
    });
    second.add_free_memory_callback(move || other() > 100);
    let inner = first.clone();
    first.attach_out_of_memory_observer(move |_| {
        observer();
        inner.alloc(300 * MIB).unwrap_err();
    });
    first.alloc(200 * MIB).unwrap_err();
    // The request's own, and not those of the two requests inside.
    assert_eq!(calls.each_ref().map(|c| c.load(Ordering::Relaxed)), [1, 1, 1]);
    first.verify().unwrap();
}
