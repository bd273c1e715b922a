//! Checkpoints of a private pool's layout [spec 14.7, 14.8].

use gpucache::device::Stream;
use gpucache::observe::snapshot::{BlockState, PoolId, SegmentInfo};
use gpucache::stats::{Stat, StatArray};
use gpucache::{Allocator, Error, MemPool};
use proptest::prelude::*;

use super::{MIB, open};

const GIB: usize = 1 << 30;

fn alloc(pool: &MemPool, allocator: &Allocator, bytes: usize) -> u64 {
    pool.scope(|| allocator.alloc_raw(bytes, Stream::DEFAULT).unwrap()).unwrap()
}

fn segments(allocator: &Allocator, pool: &MemPool) -> Vec<SegmentInfo> {
    let mut segments = allocator.memory_segments();
    segments.retain(|s| s.segment_pool_id == pool.id());
    segments
}

/// (size, requested, live) of each block.
fn blocks(segments: &[SegmentInfo]) -> Vec<Vec<(u64, u64, bool)>> {
    let block = |b: &gpucache::observe::snapshot::BlockInfo| {
        (b.size, b.requested_size, b.state == BlockState::ActiveAllocated)
    };
    segments.iter().map(|s| s.blocks.iter().map(block).collect()).collect()
}

fn stat(array: &StatArray) -> (i64, i64, i64, i64) {
    let Stat { current, peak, allocated, freed, .. } = array.all;
    (current, peak, allocated, freed)
}

/// One sequence of requests, whose answers were taken from PyTorch 2.11.
struct Recorded {
    options: &'static str,
    blocks: &'static [&'static [(u64, u64, bool)]],
    allocation: (i64, i64, i64, i64),
    allocated_bytes: (i64, i64, i64, i64),
    requested_bytes: (i64, i64, i64, i64),
    inactive_split: (i64, i64, i64, i64),
    inactive_split_bytes: (i64, i64, i64, i64),
    reserved: i64,
}

const RECORDED: [Recorded; 2] = [
    Recorded {
        options: "",
        blocks: &[
            &[(3_145_728, 3_145_728, true), (17_825_792, 17_825_792, false)],
            &[(1024, 1024, false), (512, 512, true), (2_095_616, 2_095_616, false)],
            &[(31_457_280, 31_457_280, true)],
            &[(23_068_672, 22_020_096, false)],
        ],
        allocation: (3, 5, 6, 8),
        allocated_bytes: (34_603_520, 75_498_496, 54_525_952, 95_420_928),
        requested_bytes: (34_603_520, 74_449_296, 54_525_952, 94_371_728),
        inactive_split: (3, 3, 5, 4),
        inactive_split_bytes: (19_922_432, 19_922_432, 39_844_864, 22_018_560),
        reserved: 77_594_624,
    },
    Recorded {
        options: "expandable_segments:True",
        blocks: &[
            &[
                (3_145_728, 3_145_728, true),
                (5_243_904, 5_243_904, false),
                (31_457_280, 31_457_280, true),
                (44_039_168, 2_096_128, false),
            ],
            &[(1024, 1024, false), (512, 512, true), (2_095_616, 2_095_616, false)],
        ],
        allocation: (3, 5, 7, 9),
        allocated_bytes: (34_603_520, 74_449_920, 44_040_192, 83_886_592),
        requested_bytes: (34_603_520, 74_449_296, 44_040_192, 83_885_968),
        inactive_split: (0, 0, 0, 0),
        inactive_split_bytes: (0, 0, 0, 0),
        reserved: 85_983_232,
    },
];

#[test]
fn a_restore_moves_the_statistics_as_pytorch_does() {
    for recorded in RECORDED {
        let (_gpu, allocator) = open(4 * GIB, recorded.options);
        let pool = allocator.create_pool();
        let [first, gone, gone_small, large, small] =
            [3 * MIB, 5 * MIB + 1000, 700, 30 * MIB, 300].map(|bytes| alloc(&pool, &allocator, bytes));
        let mut live = [first, large, small];
        live.sort_unstable();
        allocator.free_raw(gone).unwrap();
        allocator.free_raw(gone_small).unwrap();
        let checkpoint = allocator.checkpoint_pool(pool.id()).unwrap();
        assert!(checkpoint.live_addresses().all(|address| live.contains(&address)));
        allocator.free_raw(first).unwrap();
        for bytes in [20 * MIB, 100, 21 * MIB] {
            alloc(&pool, &allocator, bytes);
        }
        allocator.reset_peak_memory_stats();
        allocator.reset_accumulated_memory_stats();

        let mut restored = allocator.restore_pool(&checkpoint).unwrap();
        assert_eq!(restored.freed.len(), 5);
        restored.live.sort_unstable();
        assert_eq!(restored.live, live);
        assert_eq!(blocks(&segments(&allocator, &pool)), recorded.blocks);
        let stats = allocator.memory_stats();
        assert_eq!(stat(&stats.allocation), recorded.allocation);
        assert_eq!(stat(&stats.active), recorded.allocation);
        assert_eq!(stat(&stats.allocated_bytes), recorded.allocated_bytes);
        assert_eq!(stat(&stats.active_bytes), recorded.allocated_bytes);
        assert_eq!(stat(&stats.requested_bytes), recorded.requested_bytes);
        assert_eq!(stat(&stats.inactive_split), recorded.inactive_split);
        assert_eq!(stat(&stats.inactive_split_bytes), recorded.inactive_split_bytes);
        assert_eq!(stat(&stats.reserved_bytes), (recorded.reserved, recorded.reserved, 0, 0));

        assert!(allocator.check_pool_live_allocations(pool.id(), &[small, first, large]).unwrap());
        assert!(!allocator.check_pool_live_allocations(pool.id(), &[first, large]).unwrap());
        assert!(!allocator.check_pool_live_allocations(pool.id(), &[first, large, small, gone]).unwrap());
        allocator.verify().unwrap();
        for address in live {
            allocator.free_raw(address).unwrap();
        }
        drop(pool);
        assert_eq!(allocator.memory_reserved(), 0);
    }
}

fn pool_error<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.unwrap_err() {
        Error::Pool(text) => text,
        other => panic!("{other}"),
    }
}

#[test]
fn what_cannot_be_saved_or_restored_says_why_and_changes_nothing() {
    let (gpu, allocator) = open(GIB, "");
    let side = gpu.create_stream();
    let unknown = "Could not find pool of id (0, 999999)";
    assert_eq!(pool_error(allocator.checkpoint_pool(PoolId(0, 999_999))), unknown);
    assert_eq!(pool_error(allocator.check_pool_live_allocations(PoolId(0, 999_999), &[])), unknown);

    let pool = allocator.create_pool();
    let block = alloc(&pool, &allocator, 3 * MIB);
    let checkpoint = allocator.checkpoint_pool(pool.id()).unwrap();

    // A block that another stream still uses.
    gpu.hold(side);
    allocator.record_stream_raw(block, side).unwrap();
    allocator.free_raw(block).unwrap();
    for error in
        [pool_error(allocator.checkpoint_pool(pool.id())), pool_error(allocator.restore_pool(&checkpoint))]
    {
        assert!(error.contains("outstanding events"), "{error}");
    }
    gpu.release(side);
    assert_eq!(allocator.restore_pool(&checkpoint).unwrap().live, [block]);

    // A block that somebody else would free.
    let owned = pool.scope(|| allocator.alloc(MIB).unwrap()).unwrap();
    let before = segments(&allocator, &pool);
    let error = pool_error(allocator.restore_pool(&checkpoint));
    assert!(error.contains("into_raw"), "{error}");
    assert_eq!(segments(&allocator, &pool), before);
    let address = owned.into_raw();
    let restored = allocator.restore_pool(&checkpoint).unwrap();
    assert!(restored.freed.contains(&address));
    allocator.free_raw(address).unwrap_err();

    // A pool that nobody uses any more.
    let id = pool.id();
    drop(pool);
    assert_eq!(pool_error(allocator.checkpoint_pool(id)), "Not expected to checkpoint freeable graph");
    allocator.free_raw(block).unwrap();
    allocator.empty_cache().unwrap();
    assert!(pool_error(allocator.restore_pool(&checkpoint)).contains("Could not find pool"));
}

#[test]
fn recorded_streams_survive_a_restore() {
    let (gpu, allocator) = open(GIB, "");
    let side = gpu.create_stream();
    let pool = allocator.create_pool();
    let block = alloc(&pool, &allocator, 3 * MIB);
    allocator.record_stream_raw(block, side).unwrap();
    let checkpoint = allocator.checkpoint_pool(pool.id()).unwrap();
    assert_eq!(
        allocator.restore_pool(&checkpoint).unwrap().freed,
        [block],
        "the restore waits for the stream"
    );
    gpu.hold(side);
    allocator.free_raw(block).unwrap();
    assert_ne!(alloc(&pool, &allocator, 3 * MIB), block, "the other stream still uses it");
    gpu.release(side);
}

#[test]
fn a_restored_block_can_be_owned_again() {
    let (_gpu, allocator) = open(GIB, "");
    let pool = allocator.create_pool();
    let address = pool.scope(|| allocator.alloc(3 * MIB).unwrap().into_raw()).unwrap();
    let checkpoint = allocator.checkpoint_pool(pool.id()).unwrap();
    allocator.free_raw(address).unwrap();
    allocator.restore_pool(&checkpoint).unwrap();
    let block = allocator.adopt_raw(address).unwrap();
    assert_eq!((block.address(), block.len()), (address, 3 * MIB));
    assert!(matches!(allocator.free_raw(address), Err(Error::InvalidPointer { .. })));
    assert!(matches!(allocator.adopt_raw(address), Err(Error::InvalidPointer { .. })));
    drop(block);
    assert_eq!(allocator.memory_allocated(), 0);
}

#[test]
fn idle_segments_of_a_checkpoint_stay() {
    let (_gpu, allocator) = open(100 * MIB, "");
    let pool = allocator.create_pool();
    let block = alloc(&pool, &allocator, 60 * MIB);
    let checkpoint = allocator.checkpoint_pool(pool.id()).unwrap();
    allocator.free_raw(block).unwrap();
    assert!(pool.scope(|| allocator.alloc(90 * MIB)).unwrap().is_err());
    assert_eq!(allocator.restore_pool(&checkpoint).unwrap().live, [block]);
}

#[derive(Debug, Clone)]
enum Op {
    Alloc { bytes: usize, stream: u64 },
    Free { index: usize },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bytes = prop_oneof![1..4000_usize, 1..MIB, 1..12 * MIB, 10 * MIB..40 * MIB];
    let op = prop_oneof![
        (bytes, 0..2_u64).prop_map(|(bytes, stream)| Op::Alloc { bytes, stream }),
        any::<usize>().prop_map(|index| Op::Free { index }),
    ];
    prop::collection::vec(op, 0..60)
}

fn play(allocator: &Allocator, pool: &MemPool, ops: &[Op], live: &mut Vec<u64>) {
    for op in ops {
        match *op {
            Op::Alloc { bytes, stream } => {
                let stream = Stream::from_raw(stream * 0x100);
                live.push(pool.scope(|| allocator.alloc_raw(bytes, stream).unwrap()).unwrap());
            }
            Op::Free { index } if !live.is_empty() => {
                allocator.free_raw(live.swap_remove(index % live.len())).unwrap();
            }
            Op::Free { .. } => {}
        }
    }
}

/// (address, size, live) of every block, neighbours that are idle taken together.
fn layout(segments: &[SegmentInfo]) -> Vec<(u64, u64, bool)> {
    let blocks = segments.iter().flat_map(|s| &s.blocks);
    blocks.map(|b| (b.address, b.size, b.state == BlockState::ActiveAllocated)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restore_brings_the_exact_layout_back(before in ops(), after in ops(), again in ops(), expandable: bool) {
        let (gpu, allocator) = open(64 * GIB, if expandable { "expandable_segments:True" } else { "" });
        let pool = allocator.create_pool();
        let mut live = Vec::new();
        play(&allocator, &pool, &before, &mut live);
        let checkpoint = allocator.checkpoint_pool(pool.id()).unwrap();
        let saved = segments(&allocator, &pool);
        for ops in [&after, &again] {
            play(&allocator, &pool, ops, &mut live);
            live = allocator.restore_pool(&checkpoint).unwrap().live;
            allocator.verify().unwrap();
            let mut now = segments(&allocator, &pool);
            now.retain(|s| s.allocated_size > 0 || saved.iter().any(|old| old.address == s.address));
            if expandable {
                // What was mapped since lies idle behind the last block.
                for (old, new) in saved.iter().zip(&mut now) {
                    prop_assert!(new.total_size >= old.total_size);
                    let end = old.address + old.total_size;
                    new.blocks.retain(|b| b.address < end);
                    if let Some(last) = new.blocks.last_mut().filter(|b| b.address + b.size > end) {
                        prop_assert_eq!(last.state, BlockState::Inactive);
                        last.size = end - last.address;
                    }
                }
            }
            prop_assert_eq!(layout(&now), layout(&saved));
            prop_assert_eq!(allocator.checkpoint_pool(pool.id()).unwrap().live_addresses().count(), live.len());
            let all = live.clone();
            prop_assert!(allocator.check_pool_live_allocations(pool.id(), &all).unwrap());
        }
        for address in live {
            allocator.free_raw(address).unwrap();
        }
        drop(pool);
        allocator.empty_cache().unwrap();
        prop_assert_eq!(allocator.memory_reserved(), 0);
        gpu.assert_clean();
    }
}
