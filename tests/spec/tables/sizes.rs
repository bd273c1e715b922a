//! Sizes, segments, splits [spec 2, 3].

use super::{GIB, Make, alloc, allocated, cache, get, reserved};
use crate::model::device::MIB;

pub(crate) fn spec_2_2_request_to_block(make: Make) {
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
        ("roundup_power2_divisions:8", &[(4096, 4096), (4097, 4608), (5000, 5120), (9_437_189, 10_485_760)]),
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

pub(crate) fn spec_2_3_block_to_segment(make: Make) {
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
        assert_eq!(
            (allocated(&*subject), reserved(&*subject)),
            (block, segment),
            "{request} bytes with '{conf}'"
        );
    }
}

/// The large pool splits off more than 1 MiB only; the small pool, and expandable mode, 512 bytes.
pub(crate) fn spec_3_3_remainders(make: Make) {
    for (conf, segment, request, block) in [
        ("", 30 * MIB, 29 * MIB, 30 * MIB),
        ("", 30 * MIB, 29 * MIB - 512, 29 * MIB - 512),
        ("expandable_segments:True", 20 * MIB, 20 * MIB - 512, 20 * MIB - 512),
    ] {
        let mut subject = make(GIB, conf);
        cache(&mut *subject, segment);
        alloc(&mut *subject, request);
        assert_eq!(
            (allocated(&*subject), reserved(&*subject)),
            (block, segment),
            "{request} bytes with '{conf}'"
        );
    }
    let mut subject = make(GIB, "");
    alloc(&mut *subject, MIB);
    alloc(&mut *subject, MIB - 512);
    assert_eq!((allocated(&*subject), reserved(&*subject)), (2 * MIB - 512, 2 * MIB));
}

pub(crate) fn spec_3_5_oversize(make: Make) {
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
pub(crate) fn spec_3_5_size_just_below_max_split(make: Make) {
    let mut subject = make(GIB, "max_split_size_mb:100");
    for segments in 1..=3 {
        let address = alloc(&mut *subject, 99 * MIB);
        assert_eq!(allocated(&*subject), 100 * MIB, "the whole segment");
        assert_eq!(reserved(&*subject), segments * 100 * MIB, "another segment each time");
        subject.free(address).expect("a live address");
    }
}
