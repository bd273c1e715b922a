//! PyTorch's defects [spec 23]. Number 1 is pinned memory's and stands with its tests; all others are here, and the
//! conformance model has 2, 3, 5, 6, 7, 13 and 14 a second time.

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, Fault, SimDevice, code};
use gpucache::observe::snapshot::PoolId;
use gpucache::{Error, config::Config};

use super::{MIB, MIRROR, SIDE, fresh, is_oom, on, reserved};

/// A stream recorded inside a pool scope is waited for after the scope as well.
#[test]
fn streams_recorded_in_a_pool_scope__spec_23_2() {
    for options in ["", MIRROR] {
        let (device, allocator) = fresh(1000, options);
        let block = allocator.alloc(30 * MIB).unwrap();
        let address = block.address();
        device.hold(SIDE);
        let pool = allocator.create_pool();
        pool.scope(|| block.record_stream(SIDE)).unwrap();
        pool.scope(|| drop(block)).unwrap();
        let next = allocator.alloc(30 * MIB).unwrap();
        assert_eq!(next.address() == address, options == MIRROR, "the side stream still uses it");
        device.release(SIDE);
    }
}

/// A pool that mapped once and is unmapped in two ranges is forgotten when it is empty, not before, and nothing ends.
/// Where PyTorch ends the process, `mirror_defects` does not: nobody's replay can go on behind an abort.
#[test]
fn counter_of_expandable_private_pools__spec_23_3() {
    for mirror in ["", ",mirror_defects:True"] {
        let (device, allocator) = fresh(4000, &format!("expandable_segments:True{mirror}"));
        let pool = allocator.create_pool();
        let wall = pool.scope(|| {
            drop(allocator.alloc(200 * MIB).unwrap());
            let blocks = [80, 40, 80].map(|mib| allocator.alloc(mib * MIB).unwrap());
            blocks.into_iter().nth(1).unwrap()
        });
        let id = pool.id();
        drop(pool);
        assert_eq!(reserved(&allocator), 40, "both ranges went");
        drop(wall);
        allocator.empty_cache().unwrap();
        assert_eq!(reserved(&allocator), 0);
        assert!(allocator.release_pool(id).is_err(), "it is forgotten");
        drop(allocator);
        device.assert_clean();
    }
}

/// PyTorch ends the process here too; there is nothing of that to mirror.
#[test]
fn a_pool_may_go_while_another_one_is_active__spec_23_4() {
    for options in ["", MIRROR] {
        let (device, allocator) = fresh(1000, options);
        let (first, second) = (allocator.create_pool(), allocator.create_pool());
        first.scope(|| drop(allocator.alloc(30 * MIB).unwrap())).unwrap();
        second.scope(|| drop(first)).unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(reserved(&allocator), 0);
        drop((second, allocator));
        device.assert_clean();
    }
}

/// A size that its own segment is rounded up past the limit: PyTorch asks the driver anew each time.
#[test]
fn a_sticky_size_grows_without_end__spec_23_5() {
    for (options, segments) in [("", 1), (",mirror_defects:True", 8)] {
        for bytes in [99 * MIB, 98 * MIB + MIB / 2] {
            let (device, allocator) = fresh(4000, &format!("max_split_size_mb:100{options}"));
            for _ in 0..8 {
                drop(allocator.alloc(bytes).unwrap());
            }
            assert_eq!(device.calls(CallKind::Malloc), segments, "{bytes} {options}");
            allocator.verify().unwrap();
        }
    }
    // Larger blocks stay forbidden [spec 3.5].
    let (device, allocator) = fresh(4000, "max_split_size_mb:100");
    drop(allocator.alloc(102 * MIB).unwrap());
    drop(allocator.alloc(99 * MIB).unwrap());
    assert_eq!(device.calls(CallKind::Malloc), 2);
}

/// The cap holds for the pages that a request maps, not only for its own bytes.
#[test]
fn expandable_segments_overshoot_the_limit__spec_23_6() {
    for options in ["", ",mirror_defects:True"] {
        let (_, allocator) = fresh(1000, &format!("expandable_segments:True{options}"));
        allocator.set_per_process_memory_fraction(0.03).unwrap();
        let block = allocator.alloc(21 * MIB);
        assert_eq!(
            (block.is_ok(), reserved(&allocator)),
            if options.is_empty() { (false, 0) } else { (true, 40) }
        );
    }
}

/// A begin that fails leaves the pool's users as they were, so that its memory goes with the last of them.
#[test]
fn failed_begin_leaks_a_use__spec_23_7() {
    for (options, left) in [("", 0), (MIRROR, 40)] {
        let (_, allocator) = fresh(1000, options);
        let id = allocator.graph_pool_id();
        allocator.begin_allocate_to_pool(id, |_| true).unwrap();
        assert!(allocator.begin_allocate_to_pool(id, |_| true).is_err());
        drop(allocator.alloc(40 * MIB).unwrap());
        allocator.end_allocate_to_pool(id).unwrap();
        allocator.release_pool(id).unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(reserved(&allocator), left, "{options}");
    }
}

/// Whatever else goes wrong in the driver is told as what it is. PyTorch takes it for a lack of memory once fabric
/// handles have worked.
#[test]
fn page_errors_are_not_out_of_memory__spec_23_9() {
    for (fabric, mirror) in [(true, ""), (false, ""), (true, ",mirror_defects:True")] {
        let device = SimDevice::builder().total_memory(1 << 30).fabric_handles(fabric).build();
        let allocator = on(&device, &format!("expandable_segments:True{mirror}"));
        let _settles = allocator.alloc(30 * MIB).unwrap();
        device.fail_next(CallKind::MemCreate, Fault::Driver(code::LAUNCH_FAILED));
        let outcome = allocator.alloc(100 * MIB);
        if mirror.is_empty() {
            assert!(matches!(outcome, Err(Error::Device(_))), "{outcome:?}");
        } else {
            // The error is swallowed: the request is retried as one that lacked memory.
            assert!(outcome.is_ok(), "{outcome:?}");
            assert_eq!(allocator.memory_stats().num_alloc_retries, 1);
        }
        drop(outcome);
        drop(allocator.alloc(100 * MIB).unwrap());
    }
}

/// Pages behind fabric handles come and go. PyTorch closes each page's shared handle as a file descriptor when it
/// unmaps; here a descriptor belongs to the `SharedBlock` that was made from the page and a fabric handle is plain
/// bytes, so that unmapping has nothing to close, in either mode. (A simulated device exports no pages.)
#[test]
fn unmapping_pages_with_fabric_handles__spec_23_8() {
    for options in ["", ",mirror_defects:True"] {
        let device = SimDevice::builder().total_memory(1 << 30).fabric_handles(true).build();
        let allocator = on(&device, &format!("expandable_segments:True{options}"));
        let block = allocator.alloc(30 * MIB).unwrap();
        #[cfg(unix)]
        assert!(allocator.share(&block).is_err());
        drop(block);
        allocator.empty_cache().unwrap();
        assert_eq!(reserved(&allocator), 0);
        drop(allocator);
        device.assert_clean();
    }
}

#[test]
fn larger_than_the_reservation__spec_23_10() {
    let (device, allocator) = fresh(1000, "expandable_segments:True");
    assert!(is_oom(&allocator.alloc(2000 * MIB)));
    assert_eq!((device.calls(CallKind::MemCreate), reserved(&allocator)), (0, 0), "not a page was tried");
    allocator.verify().unwrap();
    drop(allocator);
    device.assert_clean();
}

/// A run behind a gap at the start of the reservation is the pool's as well. A view changes no placement, so that
/// `mirror_defects` keeps the right one.
#[test]
fn snapshot_of_one_pool_misses_runs__spec_23_12() {
    for mirror in ["", ",mirror_defects:True"] {
        let (_, allocator) = fresh(4000, &format!("expandable_segments:True{mirror}"));
        let pool = allocator.create_pool();
        let id = pool.id();
        let [front, back] = pool.scope(|| [40, 60].map(|mib| allocator.alloc(mib * MIB).unwrap())).unwrap();
        let _elsewhere = allocator.alloc(20 * MIB).unwrap();
        let base = front.address();
        drop((front, pool));
        allocator.empty_cache().unwrap();
        let [run] = &allocator.memory_snapshot_of(id)[..] else { panic!("one run is left") };
        assert_eq!((run.segment_pool_id, run.address, run.total_size), (id, back.address(), 60 << 20));
        assert!(run.address > base, "the start of the reservation is unmapped");
        assert_eq!(allocator.memory_snapshot_of(PoolId::DEFAULT).len(), 1);
        assert_eq!(allocator.memory_snapshot_of(PoolId(77, 0)), []);
    }
}

/// PyTorch's text counts idle bytes of private pools as allocated.
#[test]
fn idle_private_bytes_in_the_text__spec_23_11() {
    let (_, allocator) = fresh(1000, "");
    let pool = allocator.create_pool();
    pool.scope(|| drop(allocator.alloc(600 * MIB).unwrap())).unwrap();
    let Err(Error::OutOfMemory(report)) = allocator.alloc(500 * MIB) else { panic!("too much") };
    assert_ne!(report.to_string(), report.pytorch_message());
}

#[test]
fn settings_at_run_time_are_safe__spec_23_13_23_14() {
    for mirror in [false, true] {
        let (device, allocator) = fresh(400, if mirror { MIRROR } else { "" });
        drop(allocator.alloc(300 * MIB).unwrap());
        let inside = allocator.alloc(20 * MIB).unwrap();
        allocator.set_allocator_settings("max_split_size_mb:100").unwrap();
        // PyTorch hands the driver an address in the middle of a segment. Nobody's replay needs that.
        assert!(is_oom(&allocator.alloc(350 * MIB)));
        assert_eq!(device.misuses(), Vec::<String>::new());
        allocator.verify().unwrap();
        drop(inside);
        drop(allocator.alloc_on(350 * MIB, Stream::from_raw(8)).unwrap());
    }
    assert!(Config::parse("max_split_size_mb:100,mirror_defects:True").is_ok());
}
