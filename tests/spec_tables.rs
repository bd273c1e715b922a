//! The specification's tables and worked examples, each for the model and for the allocator, both with PyTorch's
//! defects, because the tables show what PyTorch does.

mod model;

use model::Model;
use model::device::{Call, MIB};
use model::real::Real;
use model::rules::Conf;
use model::subject::Subject;

const GIB: u64 = 1024 * MIB;

/// Makes a fresh subject from device memory and options.
type Make<'a> = &'a dyn Fn(u64, &str) -> Box<dyn Subject>;

fn of_model(total: u64, conf: &str) -> Box<dyn Subject> {
    Box::new(Model::new(total, Conf::parse(conf), true))
}

fn of_allocator(total: u64, conf: &str) -> Box<dyn Subject> {
    Box::new(Real::new(total, &Conf::parse(conf), true))
}

macro_rules! tables {
    ($($table:ident)+) => {
        mod model_follows {
            $(#[test] fn $table() { super::$table(&super::of_model) })+
        }
        mod allocator_follows {
            $(
                #[test]
                #[ignore = "the engine is not there yet"]
                fn $table() { super::$table(&super::of_allocator) }
            )+
        }
    };
}

tables! {
    spec_2_2_request_to_block
    spec_2_3_block_to_segment
    spec_3_3_remainders
    spec_3_5_oversize
    spec_3_5_size_just_below_max_split
    spec_4_1_zero_bytes
    spec_4_5_frees_one_that_is_large_enough
    spec_4_5_frees_several_from_the_highest_down
    spec_5_2_whole_small_segment_free_again
    spec_6_3_one_busy_stream_does_not_delay_others
    spec_8_1_fraction_reads_back_floored
    spec_8_1_total_equal_to_the_cap_is_allowed
    spec_8_1_lowering_frees_nothing
    spec_8_1_expandable_overshoots
    spec_9_2_max_split_size_is_frozen
    spec_13_1_modes_do_not_share_blocks
    spec_13_2_reservation_size
    spec_13_5_growth_of_the_tail
    spec_13_5_and_13_6_hole_is_unmapped_and_reused
    spec_14_2_begin_twice_is_an_error
    spec_14_2_live_blocks_survive_their_pool
    spec_14_2_pools_in_use_keep_their_memory
    spec_14_3_no_retry_while_a_pool_is_active
    spec_14_3_empty_cache_skips_default_pools
    spec_14_4_no_split_hands_out_whole_segments
    spec_14_4_use_on_oom_serves_the_default_pool
}

fn get(subject: &dyn Subject, key: &str) -> i64 {
    subject.stats()[key]
}

fn allocated(subject: &dyn Subject) -> u64 {
    get(subject, "allocated_bytes.all.current") as u64
}

fn reserved(subject: &dyn Subject) -> u64 {
    get(subject, "reserved_bytes.all.current") as u64
}

fn alloc(subject: &mut dyn Subject, bytes: u64) -> u64 {
    subject.alloc(bytes, 0).expect("enough memory")
}

/// Leaves a free block of `bytes` in the cache.
fn cache(subject: &mut dyn Subject, bytes: u64) {
    let address = alloc(subject, bytes);
    subject.free(address).expect("a live address");
}

fn spec_2_2_request_to_block(make: Make) {
    let tables: [(&str, &[(u64, u64)]); 7] = [
        (
            "",
            &[
                (1, 512),
                (512, 512),
                (513, 1024),
                (1000, 1024),
                (1_048_575, 1_048_576),
                (1_048_577, 1_049_088),
                (10_485_759, 10_485_760),
                (10_485_761, 10_486_272),
            ],
        ),
        (
            "roundup_power2_divisions:4",
            &[
                (1, 512),
                (513, 1024),
                (1000, 1024),
                (1200, 1536),
                (2047, 2048),
                (2048, 2048),
                (2049, 2560),
                (2560, 2560),
                (2561, 3072),
                (3000, 3072),
                (5000, 5120),
                (1_048_577, 1_310_720),
                (1_300_000, 1_310_720),
                (1_310_721, 1_572_864),
                (10_485_759, 10_485_760),
                (11_534_336, 12_582_912),
                (13_631_488, 14_680_064),
            ],
        ),
        (
            "roundup_power2_divisions:2",
            &[
                (1024, 1024),
                (1025, 1536),
                (1537, 2048),
                (2049, 3072),
                (3_145_728, 3_145_728),
                (3_145_729, 4_194_304),
            ],
        ),
        (
            "roundup_power2_divisions:8",
            &[(4096, 4096), (4097, 4608), (5000, 5120), (9_437_189, 10_485_760)],
        ),
        ("roundup_power2_divisions:1", &[(1025, 1536), (3_145_729, 3_146_240)]),
        (
            "roundup_power2_divisions:16384",
            &[(8_388_608, 8_388_608), (8_388_609, 8_389_120), (16_777_217, 16_778_240)],
        ),
        (
            "roundup_power2_divisions:[1:4,2:0,>:8]",
            &[
                (600_000, 655_360),
                (1_048_577, 1_310_720),
                (2_097_151, 2_097_152),
                (2_097_153, 2_097_664),
                (3_145_729, 3_146_240),
                (4_194_305, 4_718_592),
            ],
        ),
    ];
    for (conf, table) in tables {
        for &(request, block) in table {
            let mut subject = make(GIB, conf);
            alloc(&mut *subject, request);
            assert_eq!(allocated(&*subject), block, "{request} bytes with '{conf}'");
        }
    }
}

fn spec_2_3_block_to_segment(make: Make) {
    for (conf, request, block, segment) in [
        ("", MIB, MIB, 2 * MIB),
        ("", MIB + 1, MIB + 512, 20 * MIB),
        ("", 10_485_248, 10_485_248, 20 * MIB),
        ("", 10_485_249, 10 * MIB, 10 * MIB),
        ("", 10_485_760, 10 * MIB, 10 * MIB),
        ("", 10_485_761, 10_486_272, 12 * MIB),
        ("", 19_922_945, 20 * MIB, 20 * MIB),
        ("large_segment_size_mb:64", 3 * MIB, 3 * MIB, 64 * MIB),
        ("large_segment_size_mb:64", 10 * MIB, 10 * MIB, 10 * MIB),
    ] {
        let mut subject = make(GIB, conf);
        alloc(&mut *subject, request);
        assert_eq!((allocated(&*subject), reserved(&*subject)), (block, segment), "{request} bytes with '{conf}'");
    }
}

/// The large pool splits off more than 1 MiB only; the small pool, and expandable mode, 512 bytes.
fn spec_3_3_remainders(make: Make) {
    for (conf, segment, request, block) in [
        ("", 30 * MIB, 29 * MIB, 30 * MIB),
        ("", 30 * MIB, 29 * MIB - 512, 29 * MIB - 512),
        ("expandable_segments:True", 20 * MIB, 20 * MIB - 512, 20 * MIB - 512),
    ] {
        let mut subject = make(GIB, conf);
        cache(&mut *subject, segment);
        alloc(&mut *subject, request);
        assert_eq!((allocated(&*subject), reserved(&*subject)), (block, segment), "{request} bytes with '{conf}'");
    }
    let mut subject = make(GIB, "");
    alloc(&mut *subject, MIB);
    alloc(&mut *subject, MIB - 512);
    assert_eq!((allocated(&*subject), reserved(&*subject)), (2 * MIB - 512, 2 * MIB));
}

fn spec_3_5_oversize(make: Make) {
    // Cached block, request, segments afterwards, size of the block handed out; in MiB.
    for (cached, request, segments, block) in [
        (200, 150, 2, 150),
        (200, 190, 1, 200),
        (120, 100, 2, 100),
        (118, 100, 1, 118),
        (100, 60, 2, 60),
        (98, 60, 1, 60),
    ] {
        let mut subject = make(GIB, "max_split_size_mb:100");
        cache(&mut *subject, cached * MIB);
        alloc(&mut *subject, request * MIB);
        let seen = (get(&*subject, "segment.all.current"), allocated(&*subject));
        assert_eq!(seen, (segments, block * MIB), "{cached} MiB cached, {request} MiB requested");
    }
}

/// Also defect 23.5.
fn spec_3_5_size_just_below_max_split(make: Make) {
    let mut subject = make(GIB, "max_split_size_mb:100");
    for segments in 1..=3 {
        let address = alloc(&mut *subject, 99 * MIB);
        assert_eq!(allocated(&*subject), 100 * MIB, "the whole segment");
        assert_eq!(reserved(&*subject), segments * 100 * MIB, "another segment each time");
        subject.free(address).expect("a live address");
    }
}

fn spec_4_1_zero_bytes(make: Make) {
    let mut subject = make(GIB, "");
    let before = subject.stats();
    assert_eq!(subject.alloc(0, 0), Ok(0));
    subject.free(0).expect("freeing null is allowed");
    assert_eq!(subject.stats(), before);
}

fn spec_4_5_frees_one_that_is_large_enough(make: Make) {
    // The request in MiB, and which of the cached 2, 3 and 4 GiB goes.
    for (request, total, freed) in [(2560, 10 * GIB, 3 * GIB), (500, 9 * GIB, 2 * GIB)] {
        let mut subject = make(total, "max_split_size_mb:1024");
        let cached = [2, 3, 4].map(|gib| alloc(&mut *subject, gib * GIB));
        cached.map(|address| subject.free(address).expect("a live address"));
        alloc(&mut *subject, request * MIB);
        assert_eq!(reserved(&*subject), 9 * GIB - freed + request * MIB, "{request} MiB requested");
        assert_eq!(get(&*subject, "num_alloc_retries"), 0);
        assert_eq!(get(&*subject, "num_device_free"), 1);
    }
}

fn spec_4_5_frees_several_from_the_highest_down(make: Make) {
    let mut subject = make(8 * GIB, "max_split_size_mb:1024");
    let cached = [2 * GIB; 4].map(|bytes| alloc(&mut *subject, bytes));
    cached.map(|address| subject.free(address).expect("a live address"));
    alloc(&mut *subject, 5 * GIB);
    let frees: Vec<u64> = subject
        .calls()
        .iter()
        .filter_map(|call| if let Call::Free { address } = call { Some(*address) } else { None })
        .collect();
    assert_eq!(frees, [cached[3], cached[2], cached[1]]);
    assert_eq!(get(&*subject, "num_alloc_retries"), 0);
}

fn spec_5_2_whole_small_segment_free_again(make: Make) {
    let mut subject = make(GIB, "");
    cache(&mut *subject, 512);
    assert_eq!(get(&*subject, "inactive_split.all.freed"), 1);
    assert_eq!(get(&*subject, "inactive_split_bytes.all.freed"), 2_096_640);
    assert_eq!(get(&*subject, "inactive_split_bytes.all.current"), 0);
}

fn spec_6_3_one_busy_stream_does_not_delay_others(make: Make) {
    let mut subject = make(GIB, "");
    let (busy, idle) = (0x100, 0x200);
    let blocks = [busy, idle].map(|stream| (alloc(&mut *subject, 1000), stream));
    subject.hold(busy);
    for (address, stream) in blocks {
        subject.record_stream(address, stream);
        subject.free(address).expect("a live address");
    }
    assert_eq!(get(&*subject, "active.all.current"), 2, "both wait");
    alloc(&mut *subject, 64);
    assert_eq!(get(&*subject, "active.all.current"), 2, "the new one, and the one that the busy stream uses");
}

fn spec_8_1_fraction_reads_back_floored(make: Make) {
    let mut subject = make(10 * GIB, "");
    assert!((subject.fraction() - 1.0).abs() < f64::EPSILON);
    subject.set_fraction(0.333);
    assert!((subject.fraction() - 0.332_999_999_914_318_33).abs() < 1e-17, "{}", subject.fraction());
}

fn spec_8_1_total_equal_to_the_cap_is_allowed(make: Make) {
    let mut subject = make(GIB, "");
    subject.set_fraction(0.5);
    alloc(&mut *subject, 512 * MIB);
    assert!(subject.alloc(1, 0).is_err(), "above the cap");
    subject.set_fraction(1.0);
    alloc(&mut *subject, 1);
}

fn spec_8_1_lowering_frees_nothing(make: Make) {
    let mut subject = make(GIB, "");
    cache(&mut *subject, 512 * MIB);
    subject.set_fraction(0.25);
    assert_eq!(reserved(&*subject), 512 * MIB);
    alloc(&mut *subject, 512 * MIB);
    assert_eq!(get(&*subject, "num_device_alloc"), 1, "cached memory can be handed out above the cap");
}

/// Also defect 23.6.
fn spec_8_1_expandable_overshoots(make: Make) {
    let mut subject = make(300 * MIB, "expandable_segments:True");
    subject.set_fraction(0.1);
    alloc(&mut *subject, 21 * MIB);
    assert_eq!(reserved(&*subject), 40 * MIB);
}

fn spec_9_2_max_split_size_is_frozen(make: Make) {
    let mut subject = make(GIB, "");
    assert_eq!(get(&*subject, "max_split_size"), -1);
    subject.set_settings("max_split_size_mb:100");
    assert_eq!(get(&*subject, "max_split_size"), -1);
    assert_eq!(get(&*make(GIB, "max_split_size_mb:100"), "max_split_size"), 100 * MIB as i64);
}

fn spec_13_1_modes_do_not_share_blocks(make: Make) {
    let mut subject = make(GIB, "expandable_segments:True");
    cache(&mut *subject, 20 * MIB);
    subject.set_settings("expandable_segments:False");
    cache(&mut *subject, 3 * MIB);
    assert_eq!(get(&*subject, "segment.all.current"), 1, "free expandable memory is not handed out while off");
    subject.set_settings("expandable_segments:True");
    alloc(&mut *subject, 20 * MIB);
    assert_eq!(reserved(&*subject), 40 * MIB, "both kinds may serve while on");
}

fn spec_13_2_reservation_size(make: Make) {
    let mut subject = make(10 * GIB, "expandable_segments:True");
    alloc(&mut *subject, 1);
    alloc(&mut *subject, 3 * MIB);
    let sizes: Vec<u64> = subject
        .calls()
        .iter()
        .filter_map(|call| if let Call::Reserve { bytes, .. } = call { Some(*bytes) } else { None })
        .collect();
    assert_eq!(sizes, [12_079_595_520; 2]);
}

fn spec_13_5_growth_of_the_tail(make: Make) {
    let mut subject = make(GIB, "expandable_segments:True");
    let base = alloc(&mut *subject, 3 * MIB);
    assert_eq!(reserved(&*subject), 20 * MIB);
    assert_eq!(alloc(&mut *subject, 30 * MIB), base + 3 * MIB);
    assert_eq!(reserved(&*subject), 40 * MIB);
    assert_eq!(get(&*subject, "num_device_alloc"), 2);
}

fn spec_13_5_and_13_6_hole_is_unmapped_and_reused(make: Make) {
    let mut subject = make(GIB, "expandable_segments:True");
    let base = alloc(&mut *subject, 50 * MIB);
    assert_eq!(alloc(&mut *subject, 50 * MIB), base + 50 * MIB);
    subject.free(base).expect("a live address");
    subject.empty_cache();
    assert_eq!(reserved(&*subject), 60 * MIB, "pages 0 and 1 are gone, +40 to +50 MiB stays");
    assert_eq!(get(&*subject, "num_device_free"), 1, "one range");
    assert_eq!(alloc(&mut *subject, 45 * MIB), base);
    assert_eq!(reserved(&*subject), 100 * MIB);
    assert_eq!(alloc(&mut *subject, 5 * MIB), base + 45 * MIB);
}

fn spec_14_2_begin_twice_is_an_error(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    assert!(subject.begin_pool(pool).is_err());
    subject.end_pool(pool);
}

fn spec_14_2_live_blocks_survive_their_pool(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    let address = alloc(&mut *subject, 3 * MIB);
    subject.end_pool(pool);
    subject.drop_pool(pool);
    assert_eq!(reserved(&*subject), 20 * MIB);
    subject.free(address).expect("a live address");
    assert_eq!(reserved(&*subject), 20 * MIB);
    subject.empty_cache();
    assert_eq!(reserved(&*subject), 0);
}

fn spec_14_2_pools_in_use_keep_their_memory(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    cache(&mut *subject, 3 * MIB);
    subject.end_pool(pool);
    subject.empty_cache();
    assert_eq!(reserved(&*subject), 20 * MIB, "the pool has a user");
    alloc(&mut *subject, 3 * MIB);
    assert_eq!(reserved(&*subject), 40 * MIB, "and serves nobody else");
    subject.drop_pool(pool);
    assert_eq!(reserved(&*subject), 20 * MIB, "the last user returns it");
}

fn spec_14_3_no_retry_while_a_pool_is_active(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    assert!(subject.alloc(2 * GIB, 0).is_err());
    assert_eq!(get(&*subject, "num_ooms"), 1);
    assert_eq!(get(&*subject, "num_alloc_retries"), 0);
    assert_eq!(get(&*subject, "num_sync_all_streams"), 0);
    subject.end_pool(pool);
}

fn spec_14_3_empty_cache_skips_default_pools(make: Make) {
    let mut subject = make(GIB, "");
    cache(&mut *subject, 3 * MIB);
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    subject.empty_cache();
    assert_eq!((reserved(&*subject), get(&*subject, "num_sync_all_streams")), (20 * MIB, 0));
    subject.end_pool(pool);
    subject.empty_cache();
    assert_eq!((reserved(&*subject), get(&*subject, "num_sync_all_streams")), (0, 1));
}

fn spec_14_4_no_split_hands_out_whole_segments(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.set_no_split(pool);
    subject.begin_pool(pool).expect("not active");
    alloc(&mut *subject, 100);
    assert_eq!(allocated(&*subject), 2 * MIB);
    alloc(&mut *subject, 3 * MIB);
    assert_eq!(allocated(&*subject), 22 * MIB);
    subject.end_pool(pool);
}

fn spec_14_4_use_on_oom_serves_the_default_pool(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.set_use_on_oom(pool);
    subject.begin_pool(pool).expect("not active");
    cache(&mut *subject, 900 * MIB);
    subject.end_pool(pool);
    alloc(&mut *subject, 800 * MIB);
    assert_eq!(reserved(&*subject), 900 * MIB);
    for counter in ["num_ooms", "num_alloc_retries", "num_sync_all_streams"] {
        assert_eq!(get(&*subject, counter), 0, "{counter}");
    }
    assert_eq!(get(&*subject, "num_device_alloc"), 1, "no driver call on behalf of the overflow pool");
}
