//! Reuse of blocks within a capture [spec 14.6].

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, Fault, SimDevice};
use gpucache::{Allocator, CaptureScope};

use super::{MIB, open, open_with, order};

const OPTION: &str = "graph_capture_record_stream_reuse:True";

/// A capture of the first stream, which the second one has joined.
fn capture(gpu: &SimDevice, allocator: &Allocator) -> (CaptureScope, Stream, Stream) {
    let [s, t] = [0; 2].map(|_| gpu.create_stream());
    let scope = allocator.begin_capture_pool(s, None).unwrap();
    gpu.begin_capture(s).unwrap();
    order(gpu, s, t);
    (scope, s, t)
}

/// Allocates on the stream, and tells whether it got that address.
fn gets(allocator: &Allocator, stream: Stream, address: u64) -> bool {
    allocator.alloc_on(3 * MIB, stream).unwrap().address() == address
}

#[test]
fn a_block_comes_back_when_the_graph_has_joined_its_uses() {
    for (options, reused) in [(OPTION, true), ("", false)] {
        let (gpu, allocator) = open(1 << 30, options);
        let (scope, s, t) = capture(&gpu, &allocator);
        let block = allocator.alloc_on(3 * MIB, s).unwrap();
        let address = block.address();
        gpu.launch(t);
        block.record_stream(t);
        drop(block);
        assert!(!gets(&allocator, s, address), "the other stream's kernel may run at the same time");
        gpu.launch(s);
        assert!(!gets(&allocator, s, address), "more work on its own stream orders nothing");
        order(&gpu, t, s);
        gpu.launch(s);
        assert_eq!(gets(&allocator, s, address), reused, "{options}");
        gpu.end_capture(s).unwrap();
        drop(scope.end().unwrap());
        // Afterwards the events decide, as ever.
        allocator.alloc_on(MIB, s).unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!((allocator.memory_allocated(), allocator.memory_reserved()), (0, 0));
        allocator.verify().unwrap();
    }
}

#[test]
fn the_own_streams_last_work_must_be_joined_too() {
    let (gpu, allocator) = open(1 << 30, OPTION);
    let (scope, s, t) = capture(&gpu, &allocator);
    let block = allocator.alloc_on(3 * MIB, t).unwrap();
    let address = block.address();
    gpu.launch(t);
    gpu.launch(s);
    block.record_stream(s);
    drop(block);
    assert!(!gets(&allocator, t, address));
    order(&gpu, s, t);
    assert!(gets(&allocator, t, address), "what is captured next on its stream depends on both");
    order(&gpu, t, s);
    gpu.end_capture(s).unwrap();
    drop(scope);
}

#[test]
fn a_stream_outside_the_capture_makes_it_wait_for_the_end() {
    let (gpu, allocator) = open(1 << 30, OPTION);
    let (scope, s, t) = capture(&gpu, &allocator);
    let outside = gpu.create_stream();
    let block = allocator.alloc_on(3 * MIB, s).unwrap();
    let address = block.address();
    block.record_stream(t);
    block.record_stream(outside);
    drop(block);
    order(&gpu, t, s);
    gpu.launch(s);
    assert!(!gets(&allocator, s, address));
    gpu.end_capture(s).unwrap();
    drop(scope);
}

/// Work that was queued before the capture is in no graph: its end must be waited for.
#[test]
fn uses_from_before_the_capture_are_not_taken_for_captured_ones() {
    for (mirror, reused) in [(true, true), (false, false)] {
        let (gpu, allocator) = open_with(1 << 30, OPTION, mirror);
        let [s, t] = [0; 2].map(|_| gpu.create_stream());
        let pool = allocator.create_pool();
        let block = {
            let id = pool.id();
            allocator.begin_allocate_to_pool(id, |_| true).unwrap();
            let block = allocator.alloc_on(3 * MIB, s).unwrap();
            allocator.end_allocate_to_pool(id).unwrap();
            allocator.release_pool(id).unwrap();
            block
        };
        let address = block.address();
        gpu.hold(t);
        block.record_stream(t);
        let scope = allocator.begin_capture_pool(s, Some(pool.id())).unwrap();
        gpu.begin_capture(s).unwrap();
        order(&gpu, s, t);
        drop(block);
        order(&gpu, t, s);
        gpu.launch(s);
        assert_eq!(gets(&allocator, s, address), reused, "with mirror_defects {mirror}");
        gpu.end_capture(s).unwrap();
        drop(scope);
    }
}

#[test]
fn a_block_of_one_capture_never_comes_back_in_another() {
    let (gpu, allocator) = open(1 << 30, OPTION);
    let pool = allocator.create_pool();
    let [s, t] = [0; 2].map(|_| gpu.create_stream());
    let mut left = None;
    for round in 0..2 {
        let scope = allocator.begin_capture_pool(s, Some(pool.id())).unwrap();
        gpu.begin_capture(s).unwrap();
        order(&gpu, s, t);
        if let Some(address) = left {
            order(&gpu, t, s);
            gpu.launch(s);
            assert!(!gets(&allocator, s, address));
        } else {
            let block = allocator.alloc_on(3 * MIB, s).unwrap();
            gpu.launch(t);
            block.record_stream(t);
            left = Some(block.address());
            drop(block);
        }
        order(&gpu, t, s);
        gpu.end_capture(s).unwrap_or_else(|e| panic!("round {round}: {e}"));
        drop(scope);
    }
}

/// Whatever the driver refuses to say, nobody gets a block early, and nothing is lost.
#[test]
fn a_driver_that_does_not_answer_makes_blocks_wait() {
    for kind in [CallKind::CaptureStatus, CallKind::CaptureTerminals, CallKind::GraphNodeDependencies] {
        for n in 1..40 {
            let (gpu, allocator) = open(1 << 30, OPTION);
            let (scope, s, t) = capture(&gpu, &allocator);
            gpu.fail_nth(kind, n, Fault::Driver(999));
            let block = allocator.alloc_on(3 * MIB, s).unwrap();
            let address = block.address();
            gpu.launch(t);
            block.record_stream(t);
            drop(block);
            for _ in 0..2 {
                gpu.launch(s);
                assert!(!gets(&allocator, s, address), "{kind:?} {n}");
            }
            order(&gpu, t, s);
            for _ in 0..2 {
                gpu.launch(s);
                allocator.alloc_on(3 * MIB, s).unwrap();
            }
            gpu.clear_faults();
            gpu.end_capture(s).unwrap();
            drop(scope);
            allocator.empty_cache().unwrap();
            assert_eq!(allocator.memory_reserved(), 0, "{kind:?} {n}");
            allocator.verify().unwrap();
        }
    }
}
