//! Blocks that outlive the allocator's last handle.

use std::sync::{Arc, Barrier};
use std::thread;

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, SimDevice};
use gpucache::{Allocation, Allocator, Config};

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

/// The freeing threads need what the last handle takes with it until their events are queued.
#[test]
fn used_blocks_come_back_while_the_last_handle_goes() {
    for round in 0..200 {
        let (device, allocator) = fresh();
        let blocks: Vec<_> = (0..3).map(|_| blocks(&allocator)).collect();
        blocks.iter().flatten().for_each(|block| block.record_stream(Stream::from_raw(24)));
        let start = Arc::new(Barrier::new(blocks.len() + 1));
        let threads: Vec<_> = blocks
            .into_iter()
            .map(|blocks| {
                let start = start.clone();
                thread::spawn(move || {
                    start.wait();
                    drop(blocks);
                })
            })
            .collect();
        start.wait();
        (0..round % 20 * 50).for_each(|_| std::hint::spin_loop());
        drop(allocator);
        for thread in threads {
            thread.join().unwrap();
        }
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

/// The driver does not bear the handle of a stream that is gone, not even in a query: nothing may ask for it.
#[test]
fn streams_destroyed_before_their_memory_goes_back() {
    for settings in ["", "expandable_segments:True"] {
        let device = SimDevice::builder().total_memory(1 << 30).strict_streams(true).build();
        let config = Config::parse(settings).unwrap();
        let allocator = Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap();
        let (own, other) = (device.create_stream(), device.create_stream());
        let blocks: Vec<_> = (1..5).map(|i| allocator.alloc_on(i << 20, own).unwrap()).collect();
        let pending = allocator.alloc_on(30 << 20, own).unwrap();
        pending.record_stream(other);
        device.hold(other);
        drop(pending);
        device.release(other);
        device.destroy_stream(other).unwrap();
        device.destroy_stream(own).unwrap();
        drop(blocks);
        let report = allocator.empty_cache().unwrap();
        assert_eq!(report.kept_bytes, 0, "{settings}: {report:?}");
        allocator.verify().unwrap();
        drop(allocator);
        device.assert_clean();
    }
}
