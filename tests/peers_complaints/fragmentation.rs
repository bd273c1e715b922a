//! Out of memory although memory is there.

use gpucache::device::Stream;
use gpucache::device::sim::CallKind;
use gpucache::{Config, Error, KeptReason};

use super::{GIB, MIB, MIRROR, SIDE, fresh, is_oom, on, reserved};

/// The blocks that the retry waited for would fit together; their segment cannot go, because another block is in it.
#[test]
fn oom_with_fitting_block_after_sync__pytorch_189504() {
    for options in ["", MIRROR] {
        let (device, allocator) = fresh(100, options);
        drop(allocator.alloc(90 * MIB).unwrap());
        let waiting = [(); 2].map(|()| allocator.alloc(40 * MIB).unwrap());
        let address = waiting[0].address();
        let _wall = allocator.alloc(5 * MIB).unwrap();
        device.hold(SIDE);
        for block in &waiting {
            block.record_stream(SIDE);
        }
        drop(waiting);
        let outcome = allocator.alloc(70 * MIB);
        if options == MIRROR {
            assert!(is_oom(&outcome));
        } else {
            assert_eq!(outcome.unwrap().address(), address);
        }
    }
}

#[test]
fn who_pins_a_segment__pytorch_35901_69526() {
    let (_, allocator) = fresh(20_000, "");
    drop(allocator.alloc(11 * GIB).unwrap());
    let pin = allocator.alloc(30 * MIB).unwrap();
    drop(allocator.alloc_on(100 * MIB, SIDE).unwrap());
    let report = allocator.empty_cache().unwrap();
    assert_eq!((report.freed_bytes, report.freed_segments), (100 << 20, 1));
    assert_eq!(report.kept_bytes, 11 * GIB as u64);
    let [kept] = report.kept.as_slice() else { panic!("{report:?}") };
    assert_eq!((kept.address, kept.bytes, kept.live_bytes), (pin.address(), 11 * GIB as u64, 30 << 20));
    assert_eq!(kept.reason, KeptReason::LiveBlock);
    // And the snapshot names the block and the line that asked for it.
    let segments = allocator.memory_segments();
    assert_eq!(segments[0].blocks[0].address, pin.address());
}

#[test]
fn every_byte_is_accounted_for__pytorch_88081() {
    let (device, allocator) = fresh(4000, "");
    let live = allocator.alloc(100 * MIB).unwrap();
    let pending = allocator.alloc(50 * MIB).unwrap();
    let pool = allocator.create_pool();
    pool.scope(|| drop(allocator.alloc(40 * MIB).unwrap())).unwrap();
    device.hold(SIDE);
    pending.record_stream(SIDE);
    drop(pending);
    drop(allocator.alloc(3 * MIB).unwrap());
    let stats = allocator.memory_stats();
    assert_eq!(stats.allocated_bytes.all.current, 100 << 20);
    assert_eq!(stats.active_bytes.all.current, 150 << 20);
    let Err(Error::OutOfMemory(report)) = allocator.alloc(5 * GIB) else { panic!("too much") };
    assert_eq!(report.private_free, 40 << 20);
    assert_eq!(device.used(), allocator.memory_reserved());
    drop(live);
}

#[test]
fn the_error_says_how_fragmented__pytorch_29554() {
    let (_, comb) = fresh(100, "");
    drop(comb.alloc(100 * MIB).unwrap());
    let teeth: Vec<_> = (0..9).map(|_| comb.alloc(11 * MIB).unwrap()).collect::<Vec<_>>();
    let _kept: Vec<_> = teeth.into_iter().step_by(2).collect();
    let Err(Error::OutOfMemory(report)) = comb.alloc(20 * MIB) else { panic!("a comb") };
    assert_eq!((report.reserved, report.largest_free), (100 << 20, 11 << 20));
}

/// One stream's idle memory is lent to another one instead of being pinned for ever.
#[test]
fn one_shot_stream_pins_its_cache__megatron_6885__rmm_2039() {
    for (options, segments) in [("", 2), ("borrow_across_streams:True", 1)] {
        let (device, allocator) = fresh(50_000, options);
        drop(allocator.alloc_on(20 * GIB, SIDE).unwrap());
        drop(allocator.alloc(20 * GIB).unwrap());
        assert_eq!(device.calls(CallKind::Malloc), segments, "{options}");
    }
    let both = Config::parse("borrow_across_streams:True,mirror_defects:True");
    assert!(both.is_err(), "PyTorch has no such option");
}

#[test]
fn waiting_and_trying_again_before_failing__rmm_1245__mlx_2869() {
    let (device, allocator) = fresh(100, "");
    let block = allocator.alloc(80 * MIB).unwrap();
    device.hold(SIDE);
    block.record_stream(SIDE);
    drop(block);
    drop(allocator.alloc(90 * MIB).unwrap());
    assert_eq!(device.blocked_waits(), 1);
    assert_eq!(allocator.memory_stats().num_alloc_retries, 1);
}

#[test]
fn the_cap_runs_the_same_ladder_as_the_driver__cupy_1256_7679() {
    let (device, allocator) = fresh(1000, "");
    allocator.set_per_process_memory_fraction(0.1).unwrap();
    drop(allocator.alloc(60 * MIB).unwrap());
    let pending = allocator.alloc_on(20 * MIB, SIDE).unwrap();
    device.hold(Stream::DEFAULT);
    pending.record_stream(Stream::DEFAULT);
    drop(pending);
    // 20 MiB are left below the cap: events are waited for and the cache goes back.
    drop(allocator.alloc(100 * MIB).unwrap());
    assert_eq!((reserved(&allocator), device.calls(CallKind::Free)), (100, 2));
}

/// The cache grows by what is asked for, not by steps that may not fit.
#[test]
fn growth_is_no_larger_than_the_request__rmm_496() {
    let (_, allocator) = fresh(100, "");
    let first = allocator.alloc(40 * MIB).unwrap();
    let rest = allocator.alloc(60 * MIB).unwrap();
    assert_eq!(reserved(&allocator), 100);
    drop((first, rest));
}

/// 8 GiB: 1 and 4 GiB, then 1 GiB that outlives the first, then 4 GiB again. The 1 GiB settles in the 4 GiB block.
#[test]
fn a_small_output_settles_in_a_large_chunk__httomo_667() {
    for (options, fits) in [("", false), ("max_split_size_mb:2048", true), ("expandable_segments:True", true)]
    {
        let (_, allocator) = fresh(8 << 10, options);
        let input = allocator.alloc(GIB).unwrap();
        drop(allocator.alloc(4 * GIB).unwrap());
        let output = allocator.alloc(GIB).unwrap();
        drop(input);
        let input = allocator.alloc(GIB).unwrap();
        let work = allocator.alloc(4 * GIB);
        assert_eq!(work.is_ok(), fits, "{options}");
        drop((input, output, work));
    }
}

#[test]
fn the_error_lists_who_holds_memory__jax_13428() {
    let device =
        gpucache::device::sim::SimDevice::builder().total_memory(1 << 30).context_overhead(64 << 20).build();
    device.set_other_process(4242, 800 << 20);
    let allocator = on(&device, "");
    let Err(Error::OutOfMemory(report)) = allocator.alloc(400 * MIB) else { panic!("too much") };
    let processes = report.processes.as_ref().unwrap();
    let held = |own: bool| processes.iter().find(|p| p.is_self == own).and_then(|p| p.used);
    assert_eq!((held(true), held(false)), (Some(64 << 20), Some(800 << 20)));
    let text = report.to_string();
    assert!(text.contains("Process 4242 has 800.00 MiB memory in use"), "{text}");
}

/// About 40 % of memory was unused with plain driver calls, which take 2 MiB each.
#[test]
fn small_blocks_share_segments__kokkos_3981__gpu_allocator_156() {
    let (device, allocator) = fresh(4000, "");
    let first = allocator.alloc(1000).unwrap();
    assert_eq!(reserved(&allocator), 2, "a small program reserves little");
    let blocks: Vec<_> = (0..1000).map(|i| allocator.alloc(300_000 + i).unwrap()).collect();
    let stats = allocator.memory_stats();
    let used = stats.requested_bytes.all.current as f64 / allocator.memory_reserved() as f64;
    assert!(used > 0.85, "{used}");
    assert!(device.calls(CallKind::Malloc) < 180);
    drop((first, blocks));
}

#[test]
fn an_exact_fit_is_taken__relion_1369() {
    for mib in [1, 2, 9, 10, 64, 100] {
        let (device, allocator) = fresh(100, "");
        let block = allocator.alloc(mib * MIB).unwrap();
        let address = block.address();
        drop(block);
        assert_eq!(allocator.alloc(mib * MIB).unwrap().address(), address);
        assert_eq!(device.calls(CallKind::Malloc), 1, "{mib} MiB");
    }
}

#[test]
fn varying_sizes_share_one_block__kaldi_2195() {
    let (device, allocator) = fresh(4000, "");
    drop(allocator.alloc(200 * MIB).unwrap());
    for step in 0..200 {
        let a = allocator.alloc((11 + step % 80) * MIB).unwrap();
        let b = allocator.alloc((90 - step % 80) * MIB).unwrap();
        drop((a, b));
    }
    assert_eq!((device.calls(CallKind::Malloc), reserved(&allocator)), (1, 200));
}

#[test]
fn options_are_never_ignored__autoresearch_588__onnxruntime_16303() {
    assert!(
        Config::parse("expandable_segment:True").unwrap_err().to_string().contains("expandable_segments")
    );
    assert!(Config::parse("gpu_mem_limit:1").is_err());
    let (_, allocator) = fresh(100, "expandable_segments:True");
    let Err(Error::OutOfMemory(report)) = allocator.alloc(200 * MIB) else { panic!("too much") };
    let text = format!("{report:#}");
    assert!(text.contains("expandable_segments:True"), "{text}");
}
