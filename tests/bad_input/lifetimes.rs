//! Blocks that outlive the allocator's last handle.

use std::thread;

use gpucache::device::Stream;
use gpucache::device::sim::CallKind;
use gpucache::{Allocation, Allocator};

use super::{MIB, fresh, with_options};

const SIDE: Stream = Stream::from_raw(8);

fn blocks(allocator: &Allocator) -> Vec<Allocation> {
    let streams = [Stream::DEFAULT, SIDE, Stream::from_raw(16)];
    streams.iter().flat_map(|&s| [1000, 3 * MIB].map(|bytes| allocator.alloc_on(bytes, s).unwrap())).collect()
}

#[test]
fn blocks_may_outlive_the_last_handle() {
    for options in ["", "expandable_segments:True"] {
        let (device, allocator) = with_options(options);
        let clone = allocator.clone();
        let blocks = blocks(&allocator);
        drop(allocator);
        drop(clone);
        let frees = device.calls(CallKind::Free) + device.calls(CallKind::MemUnmap);
        assert_eq!(frees, 0, "{options}: what is in use stays");
        for block in &blocks {
            assert_ne!(block.address(), 0);
            block.record_stream(Stream::DEFAULT);
        }
        drop(blocks);
        device.assert_clean();
    }
}

#[test]
fn the_last_block_may_go_on_any_thread() {
    for _ in 0..20 {
        let (device, allocator) = fresh();
        let blocks = blocks(&allocator);
        let threads: Vec<_> = blocks.into_iter().map(|block| thread::spawn(move || drop(block))).collect();
        drop(allocator);
        for thread in threads {
            thread.join().unwrap();
        }
        device.assert_clean();
    }
}

#[test]
fn the_last_block_may_wait_for_a_stream() {
    for keeps_handle in [true, false] {
        let (device, allocator) = fresh();
        let block = allocator.alloc(3 * MIB).unwrap();
        let early = allocator.alloc(3 * MIB).unwrap();
        device.hold(SIDE);
        device.expect(SIDE, block.address(), 0, 0);
        early.record_stream(SIDE);
        block.record_stream(SIDE);
        drop(early);
        let kept = keeps_handle.then(|| allocator.clone());
        drop(allocator);
        thread::spawn(move || drop(block)).join().unwrap();
        drop(kept);
        // The end waits for the stream instead of taking memory from under it.
        assert!(device.blocked_waits() > 0);
        device.assert_clean();
    }
}

#[test]
fn a_last_block_without_the_cache() {
    let (device, allocator) = fresh();
    allocator.caching_allocator_enable(false).unwrap();
    let block = allocator.alloc(1000).unwrap();
    drop(allocator);
    drop(block);
    device.assert_clean();
}

#[test]
fn pools_and_scopes_may_outlive_other_handles() {
    let (device, allocator) = fresh();
    let (pool, scope) = (allocator.create_pool(), allocator.scope("x"));
    let block = pool.scope(|| scope.alloc(3 * MIB).unwrap()).unwrap();
    let guard = scope.enter();
    drop(allocator);
    drop(pool);
    drop(scope);
    drop(guard);
    drop(block);
    device.assert_clean();
}

#[test]
fn a_raw_address_that_is_never_freed_keeps_its_segment() {
    let (device, allocator) = fresh();
    allocator.alloc_raw(1000, Stream::DEFAULT).unwrap();
    drop(allocator);
    assert_eq!(device.leaks().len(), 1, "as documented");
    assert_eq!(device.misuses(), Vec::<String>::new());
}
