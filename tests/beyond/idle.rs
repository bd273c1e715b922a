//! `release_idle_after`: the decay of an idle cache.

use std::time::Duration;

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, SimDevice};
use gpucache::{Allocator, MemPool};

use super::{MIB, allocator};

const SECOND: Duration = Duration::from_secs(1);
/// One minute.
const OPTIONS: &str = "release_idle_after_ms:60000";

fn fresh(options: &str) -> (SimDevice, Allocator) {
    let device = SimDevice::new(4 << 30);
    let allocator = allocator(&device, options);
    (device, allocator)
}

fn reserved(allocator: &Allocator) -> u64 {
    allocator.memory_reserved() >> 20
}

#[test]
fn off_by_default() {
    let (device, allocator) = fresh("");
    drop(allocator.alloc(100 * MIB).unwrap());
    for _ in 0..3 {
        device.advance(1000 * SECOND);
        assert_eq!(allocator.release_idle().unwrap(), 0);
    }
    assert_eq!(reserved(&allocator), 100);
}

#[test]
fn what_was_idle_for_the_whole_time_goes() {
    let (device, allocator) = fresh(OPTIONS);
    drop(allocator.alloc(100 * MIB).unwrap());
    let used = allocator.alloc(40 * MIB).unwrap();
    drop(allocator.alloc_on(512, Stream::from_raw(8)).unwrap());
    assert_eq!(reserved(&allocator), 102, "the 40 MiB are a part of the 100");
    drop(used);
    assert_eq!(allocator.release_idle().unwrap(), 0, "seen idle for the first time");
    device.advance(59 * SECOND);
    assert_eq!(allocator.release_idle().unwrap(), 0);
    device.advance(2 * SECOND);
    assert_eq!(allocator.release_idle().unwrap(), 102 << 20);
    assert_eq!(reserved(&allocator), 0);
    allocator.verify().unwrap();
    device.assert_clean();
}

#[test]
fn what_was_used_in_between_stays() {
    let (device, allocator) = fresh(OPTIONS);
    let [a, b] = [(); 2].map(|()| allocator.alloc(100 * MIB).unwrap());
    drop((a, b));
    for _ in 0..20 {
        allocator.release_idle().unwrap();
        device.advance(30 * SECOND);
        // One of the two is enough, whole or in part.
        drop(allocator.alloc(100 * MIB).unwrap());
        drop(allocator.alloc(10 * MIB).unwrap());
        assert!(reserved(&allocator) >= 100);
    }
    assert_eq!(reserved(&allocator), 100, "the other one went");
    assert_eq!(device.calls(CallKind::Malloc), 2, "and was not missed");
}

/// What stays is at least the most that was in use at any moment of the last minute.
#[test]
fn the_high_water_mark_of_recent_use_stays() {
    let (device, allocator) = fresh(OPTIONS);
    let peak = || (0..5).map(|_| allocator.alloc(100 * MIB).unwrap()).collect::<Vec<_>>();
    drop((0..9).map(|_| allocator.alloc(100 * MIB).unwrap()).collect::<Vec<_>>());
    for step in 0..60 {
        // A short peak every 50 seconds, one segment in use most of the time.
        if step % 10 == 0 {
            drop(peak());
        }
        drop(allocator.alloc(100 * MIB).unwrap());
        allocator.release_idle().unwrap();
        device.advance(5 * SECOND);
        assert!(reserved(&allocator) >= 500, "step {step}");
    }
    assert_eq!(reserved(&allocator), 500);
    assert_eq!(device.calls(CallKind::Malloc), 9);
}

#[test]
fn a_segment_in_use_or_split_never_goes() {
    let (device, allocator) = fresh(OPTIONS);
    let whole = allocator.alloc(100 * MIB).unwrap();
    let part = allocator.alloc(3 * MIB).unwrap();
    let side = Stream::from_raw(8);
    let pending = allocator.alloc(50 * MIB).unwrap();
    device.hold(side);
    pending.record_stream(side);
    drop(pending);
    for _ in 0..5 {
        device.advance(100 * SECOND);
        assert_eq!(allocator.release_idle().unwrap(), 0);
    }
    device.release(side);
    allocator.release_idle().unwrap();
    device.advance(100 * SECOND);
    assert_eq!(allocator.release_idle().unwrap(), 50 << 20, "free since the event was seen");
    drop((whole, part));
}

#[test]
fn requests_that_miss_look_by_themselves() {
    let (device, allocator) = fresh(OPTIONS);
    drop(allocator.alloc(100 * MIB).unwrap());
    drop(allocator.alloc(200 * MIB).unwrap());
    device.advance(61 * SECOND);
    let hit = allocator.alloc(100 * MIB).unwrap();
    assert_eq!(reserved(&allocator), 300, "a hit looks at no clock");
    drop(allocator.alloc(300 * MIB).unwrap());
    assert_eq!(reserved(&allocator), 600, "its look was the first that found the 200 idle");
    device.advance(61 * SECOND);
    drop(allocator.alloc(400 * MIB).unwrap());
    assert_eq!(reserved(&allocator), 100 + 300 + 400, "the 200 went before the 400 came");
    drop(hit);
}

/// A peak that comes a little less often than the configured time must not cost a release and a growth each time.
#[test]
fn patience_grows_where_a_release_was_too_early() {
    let (device, allocator) = fresh(OPTIONS);
    for _ in 0..40 {
        drop(allocator.alloc(100 * MIB).unwrap());
        for _ in 0..9 {
            allocator.release_idle().unwrap();
            device.advance(10 * SECOND);
        }
    }
    assert_eq!(device.calls(CallKind::Malloc), 2, "given up once too early");
    // Without such a peak it goes in the end.
    for _ in 0..100 {
        allocator.release_idle().unwrap();
        device.advance(10 * SECOND);
    }
    assert_eq!(reserved(&allocator), 0);
}

#[test]
fn idle_pages_of_expandable_segments_go() {
    let (device, allocator) = fresh("release_idle_after_ms:60000,expandable_segments:True");
    let low = allocator.alloc(20 * MIB).unwrap();
    drop(allocator.alloc(100 * MIB).unwrap());
    assert_eq!(reserved(&allocator), 120);
    allocator.release_idle().unwrap();
    device.advance(61 * SECOND);
    assert_eq!(allocator.release_idle().unwrap(), 100 << 20);
    drop(low);
    allocator.verify().unwrap();
    drop(allocator);
    device.assert_clean();
}

#[test]
fn private_pools_do_not_decay() {
    let (device, allocator) = fresh(OPTIONS);
    let pool: MemPool = allocator.create_pool();
    drop(allocator.alloc(100 * MIB).unwrap());
    pool.scope(|| {
        drop(allocator.alloc(40 * MIB).unwrap());
        for _ in 0..3 {
            device.advance(100 * SECOND);
            assert_eq!(allocator.release_idle().unwrap(), 0, "a pool is active");
        }
    })
    .unwrap();
    allocator.release_idle().unwrap();
    device.advance(100 * SECOND);
    assert_eq!(allocator.release_idle().unwrap(), 100 << 20);
    assert_eq!(reserved(&allocator), 40);
}
