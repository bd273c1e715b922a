//! Graph capture: private pools, and memory that graphs keep [spec 17.2 to 17.4].

use std::panic::{AssertUnwindSafe, catch_unwind};

use gpucache::Error;
use gpucache::device::Stream;
use gpucache::device::sim::CallKind;
use gpucache::observe::snapshot::PoolId;

use super::Bed;

const POOL: PoolId = PoolId(1, 0);

#[test]
fn a_private_pool_serves_its_requests_only() {
    let bed = Bed::new("");
    let s = bed.device.create_stream();
    let common = bed.host_alloc_raw(4096).unwrap();
    bed.host_free_raw(common).unwrap();
    bed.begin_allocate_to_pool(POOL, move |stream| stream == s).unwrap();
    let private = bed.host_alloc_raw_on(4096, s).unwrap();
    assert_ne!(private, common);
    assert_eq!(bed.host_alloc_raw(4096).unwrap(), common, "the filter does not take the default stream");
    bed.host_free_raw(private).unwrap();
    assert_eq!(bed.host_alloc_raw_on(4096, s).unwrap(), private);
    bed.host_free_raw(private).unwrap();
    bed.end_allocate_to_pool(POOL).unwrap();
    let other = bed.host_alloc_raw_on(4096, s).unwrap();
    assert!(other != private && other != common);
    for address in [common, other] {
        bed.host_free_raw(address).unwrap();
    }
    assert_eq!(bed.host_empty_cache().unwrap(), 8192, "a pool with users keeps its memory");
    bed.release_pool(POOL).unwrap();
    assert_eq!(bed.host_empty_cache().unwrap(), 4096);
    assert!(matches!(bed.release_pool(POOL), Err(Error::Pool(_))), "the empty pool is forgotten");
}

#[test]
fn wrong_use_of_pools() {
    let bed = Bed::new("");
    let text = |result: gpucache::Result<()>| result.unwrap_err().to_string();
    assert!(text(bed.end_allocate_to_pool(POOL)).contains("is not being allocated to"));
    assert!(text(bed.release_pool(POOL)).contains("has no user"));
    bed.begin_allocate_to_pool(POOL, |_| true).unwrap();
    assert!(text(bed.begin_allocate_to_pool(POOL, |_| true)).contains("already"));
    bed.end_allocate_to_pool(POOL).unwrap();
    bed.release_pool(POOL).unwrap();
    assert!(text(bed.release_pool(POOL)).contains("has no user"));
}

#[test]
fn a_filter_may_use_the_allocator_and_may_panic() {
    let bed = Bed::new("");
    let inner = (*bed).clone();
    bed.begin_allocate_to_pool(POOL, move |stream| {
        assert_ne!(stream, Stream::from_raw(99));
        inner.host_memory_stats().allocations.current > 1_000
    })
    .unwrap();
    let address = bed.host_alloc_raw(64).unwrap();
    let call = AssertUnwindSafe(|| bed.host_alloc_raw_on(64, Stream::from_raw(99)).is_ok());
    assert!(catch_unwind(call).is_err());
    bed.host_free_raw(address).unwrap();
    // The filter holds a handle, so the pool must go before the allocator can.
    bed.end_allocate_to_pool(POOL).unwrap();
}

#[test]
fn what_a_capture_allocated_and_used_is_never_handed_out_again() {
    let bed = Bed::new("");
    let s = bed.device.create_stream();
    bed.begin_allocate_to_pool(POOL, |_| true).unwrap();
    let used = bed.use_and_free(4096, s);
    let fresh = bed.host_alloc_raw(4096).unwrap();
    assert_ne!(fresh, used);
    bed.host_free_raw(fresh).unwrap();
    bed.end_allocate_to_pool(POOL).unwrap();
    bed.release_pool(POOL).unwrap();
    assert_eq!(bed.host_empty_cache().unwrap(), 4096, "only the unused block goes");
    assert_eq!((bed.stat("active_requests.current"), bed.stat("allocations.current")), (1, 1));
}

#[test]
fn what_a_captured_stream_uses_is_never_handed_out_again() {
    let bed = Bed::new("");
    let s = bed.device.create_stream();
    let address = bed.host_alloc_raw(4096).unwrap();
    bed.device.begin_capture(s).unwrap();
    bed.record_event(address, s).unwrap();
    bed.device.end_capture(s).unwrap();
    bed.host_free_raw(address).unwrap();
    assert_eq!(bed.calls(CallKind::EventRecord), 0);
    let other = bed.host_alloc_raw(4096).unwrap();
    assert_ne!(other, address, "the graph reads it at every launch");
    bed.host_free_raw(other).unwrap();
}

#[test]
fn a_free_during_the_capture_of_a_using_stream_waits_for_its_end() {
    let bed = Bed::new("");
    let s = bed.device.create_stream();
    let address = bed.host_alloc_raw(4096).unwrap();
    bed.record_event(address, s).unwrap();
    bed.device.begin_capture(s).unwrap();
    bed.host_free_raw(address).unwrap();
    let other = bed.host_alloc_raw(4096).unwrap();
    assert_ne!(other, address);
    let graph = bed.device.end_capture(s).unwrap();
    assert!(graph.nodes.is_empty() && bed.calls(CallKind::EventRecord) == 0, "no event went into the graph");
    assert_eq!(bed.host_alloc_raw(4096).unwrap(), address);
    for address in [address, other] {
        bed.host_free_raw(address).unwrap();
    }
}

#[test]
fn events_are_not_asked_for_inside_a_capture() {
    let bed = Bed::new("");
    let s = bed.device.create_stream();
    bed.use_and_free(4096, s);
    bed.begin_allocate_to_pool(POOL, |_| true).unwrap();
    let address = bed.host_alloc_raw(4096).unwrap();
    assert_eq!(bed.calls(CallKind::EventQuery), 0);
    bed.host_free_raw(address).unwrap();
    bed.end_allocate_to_pool(POOL).unwrap();
}
