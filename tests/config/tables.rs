//! Tables of the specification.

use gpucache::Config;
use gpucache::config::Divisions;

use crate::{MIB, error, parse, slots};

/// [spec 15.4]
#[test]
fn slot_table() {
    for (list, slots_text) in [
        ("[256:1,512:2,1024:4,>:8]", "1 1 1 1 1 1 1 1 1 2 4 8 8 8 8 8"),
        ("[64:8,256:4,1024:4,>:1]", "8 8 8 8 8 8 8 0 4 0 4 1 1 1 1 1"),
        ("[>:4]", "0 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4"),
        ("[128:2]", "2 2 2 2 2 2 2 2 0 0 0 0 0 0 0 0"),
        ("[512:4,64:2]", "4 4 4 4 4 4 2 4 4 4 0 0 0 0 0 0"),
        ("[131072:4]", "4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4"),
        ("[4:0,>:2]", "0 0 0 2 2 2 2 2 2 2 2 2 2 2 2 2"),
        ("[]", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"),
        ("8", "8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8"),
    ] {
        assert_eq!(slots(list).map(|slot| slot.to_string()).join(" "), slots_text, "{list}");
    }
}

/// [spec 2.2]: which slot serves which request.
#[test]
fn division_lookup() {
    let mut slots = [0; 16];
    for (slot, count) in slots.iter_mut().enumerate() {
        *count = slot as u32;
    }
    let divisions = Divisions(slots);
    for (bytes, slot) in [
        (0, 0),
        (1, 0),
        (MIB - 1, 0),
        (MIB, 0),
        (2 * MIB - 1, 0),
        (2 * MIB, 1),
        (3 * MIB, 1),
        (1024 * MIB, 10),
        ((32 << 30) - 1, 14),
        (32 << 30, 15),
        (64 << 30, 15),
        (u64::MAX, 15),
    ] {
        assert_eq!(divisions.for_size(bytes), slot, "{bytes}");
    }
}

/// [spec 2.1, 2.2]: the counts that the lookup gives lead to the block sizes of the table.
#[test]
fn worked_block_sizes() {
    fn block(value: &str, n: u64) -> u64 {
        let d = u64::from(Divisions(slots(value)).for_size(n));
        if n < 512 {
            512
        } else if d > 1 && n > 512 * d {
            let floor = 1 << n.ilog2();
            n.next_multiple_of(if n == floor { floor } else { floor >> d.ilog2() })
        } else {
            n.next_multiple_of(512)
        }
    }
    let rows: &[(&str, &[(u64, u64)])] = &[
        ("[]", &[(1, 512), (512, 512), (513, 1024), (1000, 1024), (1_048_577, 1_049_088)]),
        ("4", &[(1, 512), (513, 1024), (1200, 1536), (2048, 2048), (2049, 2560), (3000, 3072), (5000, 5120)]),
        ("4", &[(1_048_577, 1_310_720), (1_310_721, 1_572_864), (11_534_336, 12_582_912)]),
        ("2", &[(1024, 1024), (1025, 1536), (1537, 2048), (2049, 3072), (3_145_729, 4_194_304)]),
        ("8", &[(4096, 4096), (4097, 4608), (5000, 5120), (9_437_189, 10_485_760)]),
        ("1", &[(1025, 1536), (3_145_729, 3_146_240)]),
        ("16384", &[(8_388_608, 8_388_608), (8_388_609, 8_389_120), (16_777_217, 16_778_240)]),
        (
            "[1:4,2:0,>:8]",
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
    for (value, pairs) in rows {
        for (request, size) in *pairs {
            assert_eq!(block(value, *request), *size, "{value}: {request}");
        }
    }
}

/// [spec 15.3]
#[test]
fn bounds_and_texts() {
    for (text, message) in [
        ("backend:x", "Unknown allocator backend, options are native and cudaMallocAsync"),
        ("large_segment_size_mb:10", "CachingAllocator option large_segment_size_mb must be > 10 MB"),
        ("max_split_size_mb:19", "CachingAllocator option max_split_size_mb too small, must be >= 20"),
        (
            "max_split_size_mb:40,large_segment_size_mb:64",
            "CachingAllocator option max_split_size_mb too small, must be >= 64",
        ),
        (
            "max_non_split_rounding_mb:19",
            "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20",
        ),
        ("garbage_collection_threshold:1", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
        ("roundup_power2_divisions:0", "For roundups, the divisions has to be power of 2 "),
        (
            "roundup_power2_divisions:[1:3]",
            "For roundups, the divisions has to be power of 2 or 0 to disable roundup ",
        ),
        ("roundup_power2_divisions:[3:1]", "For roundups, the intervals have to be power of 2 "),
        ("pinned_num_register_threads:3", "Number of register threads has to be power of 2, got 3"),
        (
            "pinned_num_register_threads:256",
            "Number of register threads should be less than or equal to 128, got 256",
        ),
        ("pinned_reserve_segment_size_mb:0", "Pinned reserve segment size has to be greater than 0"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"),
        (
            "expandable_segments:true",
            "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'",
        ),
        ("max_split_size_mb:abc", "stoull"),
        ("garbage_collection_threshold:abc", "stod"),
        ("max_split_size_mb", "Index out of bounds in ConfigTokenizer"),
    ] {
        assert!(error(text).starts_with(message), "{text}: {}", error(text));
    }
}

/// [spec 15.2]
#[test]
fn separators_are_not_checked() {
    assert_eq!(parse("max_split_size_mb,100").max_split_size, Some(100 * MIB));
    assert_eq!(parse("max_split_size_mb:100,").max_split_size, Some(100 * MIB));
    assert_eq!(parse("max_split_size_mb:200mb").max_split_size, Some(200 * MIB));
    assert!(parse("max_split_size_mb:100:expandable_segments:True").expandable_segments);
    assert!(parse(" expandable_ segments : Tr ue ").expandable_segments);
    assert_eq!(
        parse("max_split_size_mb:-1").max_split_size,
        Some(u64::MAX - MIB + 1),
        "clamped to whole MiB"
    );
    assert_eq!(parse(""), Config::default());
}
