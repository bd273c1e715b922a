//! `borrow_across_streams`: an idle block of another stream before growth.

use std::thread;

use gpucache::Allocator;
use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, Fault, SimDevice, code};

use super::{MIB, allocator};

const ON: &str = "borrow_across_streams:True";
const A: Stream = Stream::from_raw(0x10);
const B: Stream = Stream::from_raw(0x20);
const C: Stream = Stream::from_raw(0x30);

fn fresh(options: &str) -> (SimDevice, Allocator) {
    let device = SimDevice::new(1 << 30);
    let allocator = allocator(&device, options);
    (device, allocator)
}

#[test]
fn off_by_default() {
    let (device, allocator) = fresh("");
    drop(allocator.alloc_on(100 * MIB, A).unwrap());
    drop(allocator.alloc_on(100 * MIB, B).unwrap());
    assert_eq!(device.calls(CallKind::Malloc), 2);
}

#[test]
fn an_idle_segment_moves_instead_of_a_new_one() {
    let (device, allocator) = fresh(ON);
    let lent = allocator.alloc_on(100 * MIB, A).unwrap();
    let address = lent.address();
    drop(lent);
    let before = allocator.memory_stats();
    let block = allocator.alloc_on(60 * MIB, B).unwrap();
    assert_eq!(block.address(), address);
    assert_eq!(block.stream(), B);
    let after = allocator.memory_stats();
    assert_eq!(after.reserved_bytes, before.reserved_bytes, "nothing was obtained, nothing given back");
    assert_eq!(after.segment, before.segment);
    assert_eq!(after.num_device_alloc, 1);
    assert_eq!((after.allocation.all.current, after.allocated_bytes.all.current), (1, 60 << 20));
    assert_eq!(after.inactive_split_bytes.all.current, 40 << 20, "its rest is B's now");
    allocator.verify().unwrap();
    assert_eq!(allocator.memory_segments()[0].stream, B.raw());
    // A has nothing left to borrow from: the segment is in use.
    drop(allocator.alloc_on(100 * MIB, A).unwrap());
    assert_eq!(device.calls(CallKind::Malloc), 2);
    drop(block);
    drop(allocator);
    device.assert_clean();
}

#[test]
fn the_smallest_that_fits_is_lent_and_split_segments_are_not() {
    let (device, allocator) = fresh(ON);
    let [large, small] = [(200, A), (120, C)].map(|(mib, s)| allocator.alloc_on(mib * MIB, s).unwrap());
    let small_address = small.address();
    drop((large, small));
    let first = allocator.alloc_on(100 * MIB, B).unwrap();
    assert_eq!(first.address(), small_address);
    // A's segment is in use in part from here on.
    let part = allocator.alloc_on(30 * MIB, A).unwrap();
    drop(allocator.alloc_on(100 * MIB, B).unwrap());
    assert_eq!(device.calls(CallKind::Malloc), 3);
    drop((first, part));
}

/// The lender's kernel still runs when the borrower writes: the event keeps the borrower back.
#[test]
fn the_borrower_waits_for_the_lender() {
    let (device, allocator) = fresh(ON);
    device.hold(A);
    let lent = allocator.alloc_on(100 * MIB, A).unwrap();
    let (address, bytes) = (lent.address(), 100 << 20);
    device.write(A, address, bytes, 1);
    device.expect(A, address, bytes, 1);
    drop(lent);
    let block = allocator.alloc_on(100 * MIB, B).unwrap();
    assert_eq!(block.address(), address);
    device.write(B, address, bytes, 2);
    assert_eq!(device.read_now(address), None, "neither has run");
    // Lent on while B waits: C comes after both.
    drop(block);
    let block = allocator.alloc_on(100 * MIB, C).unwrap();
    device.expect(C, address, bytes, 2);
    device.write(C, address, bytes, 3);
    device.release(A);
    assert_eq!(device.read_now(address), Some(3));
    assert_eq!(device.mismatches(), Vec::<String>::new());
    drop(block);
    drop(allocator);
    device.assert_clean();
}

#[test]
fn a_block_that_waits_for_a_third_stream_is_not_lent() {
    let (device, allocator) = fresh(ON);
    let block = allocator.alloc_on(100 * MIB, A).unwrap();
    device.hold(C);
    block.record_stream(C);
    drop(block);
    let other = allocator.alloc_on(100 * MIB, B).unwrap();
    assert_eq!(device.calls(CallKind::Malloc), 2);
    device.release(C);
    drop(allocator.alloc_on(100 * MIB, B).unwrap());
    assert_eq!(device.calls(CallKind::Malloc), 2, "the event is done: A lends");
    drop(other);
}

#[test]
fn a_failing_event_costs_nothing() {
    for kind in [CallKind::EventCreate, CallKind::EventRecord, CallKind::StreamWaitEvent] {
        let (device, allocator) = fresh(ON);
        drop(allocator.alloc_on(100 * MIB, A).unwrap());
        device.fail_next(kind, Fault::ShuttingDown);
        allocator.alloc_on(100 * MIB, B).unwrap_err();
        allocator.verify().unwrap();
        // The lender has it back, and where nothing can be ordered the cache grows.
        device.fail_next(kind, Fault::OutOfMemory);
        let block = allocator.alloc_on(100 * MIB, B).unwrap();
        assert_eq!(device.calls(CallKind::Malloc), 2);
        device.fail_next(kind, Fault::Driver(code::INVALID_HANDLE));
        let other = allocator.alloc_on(100 * MIB, C).unwrap();
        assert_eq!(device.calls(CallKind::Malloc), 3);
        let again = allocator.alloc_on(100 * MIB, A).unwrap();
        assert_eq!(device.calls(CallKind::Malloc), 3);
        drop((block, other, again, allocator));
        device.assert_clean();
    }
}

/// A segment of a stream that is gone stands in nobody's way.
#[test]
fn a_lender_that_is_gone() {
    let device = SimDevice::builder().total_memory(1 << 30).strict_streams(true).build();
    let allocator = allocator(&device, ON);
    let (lender, borrower) = (device.create_stream(), device.create_stream());
    drop(allocator.alloc_on(100 * MIB, lender).unwrap());
    device.destroy_stream(lender).unwrap();
    for _ in 0..3 {
        drop(allocator.alloc_on(60 * MIB, borrower).unwrap());
    }
    allocator.verify().unwrap();
}

#[test]
fn nobody_borrows_while_a_pool_is_active_or_for_expandable_segments() {
    let (device, allocator) = fresh(ON);
    drop(allocator.alloc_on(100 * MIB, A).unwrap());
    let pool = allocator.create_pool();
    pool.scope(|| drop(allocator.alloc_on(100 * MIB, B).unwrap())).unwrap();
    assert_eq!(device.calls(CallKind::EventRecord), 0);
    allocator.set_allocator_settings("expandable_segments:True").unwrap();
    drop(allocator.alloc_on(100 * MIB, C).unwrap());
    assert_eq!(device.calls(CallKind::EventRecord), 0);
    allocator.verify().unwrap();
}

#[test]
fn threads_lend_and_borrow_at_once() {
    let (device, allocator) = fresh(ON);
    thread::scope(|s| {
        for n in 0..4u64 {
            let allocator = &allocator;
            s.spawn(move || {
                for i in 0..100 {
                    let stream = Stream::from_raw(16 * (1 + (n + i) % 4));
                    drop(allocator.alloc_on((20 + 10 * (i as usize % 5)) * MIB, stream).unwrap());
                }
            });
        }
    });
    allocator.verify().unwrap();
    let stats = allocator.memory_stats();
    assert_eq!((stats.allocation.all.current, stats.allocation.all.allocated), (0, 400));
    assert!(device.calls(CallKind::StreamWaitEvent) > 0, "somebody has borrowed");
    drop(allocator);
    device.assert_clean();
}
