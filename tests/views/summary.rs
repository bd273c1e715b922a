//! `memory_summary` and the statistics' names against PyTorch's own output [spec 9.2, 10].

use gpucache::stats::MemoryStats;
use gpucache::stats::summary::{memory_summary, memory_summary_as};

/// Statistics in a recording's form: `key value` lines.
fn stats(text: &str) -> MemoryStats {
    let mut stats = MemoryStats::default();
    for line in text.lines() {
        let (key, value) = line.split_once(' ').unwrap();
        assert!(stats.set(key, value.parse().unwrap()), "{key}");
    }
    stats
}

macro_rules! recorded {
    ($($name:ident: $case:literal;)*) => {$(
        /// Recorded on an H200; PyTorch's own text.
        #[test]
        fn $name() {
            let text = include_str!(concat!("../data/summary/", $case, ".stats.txt"));
            let stats = stats(text);
            let full = include_str!(concat!("../data/summary/", $case, ".full.txt"));
            assert_eq!(memory_summary_as("PyTorch", &stats, 0, false), full);
            let abbreviated = include_str!(concat!("../data/summary/", $case, ".abbreviated.txt"));
            assert_eq!(memory_summary_as("PyTorch", &stats, 0, true), abbreviated);

            // The recording lists PyTorch's keys in PyTorch's order.
            let map: Vec<_> = stats.to_map().into_iter().map(|(k, v)| format!("{k} {v}")).collect();
            assert_eq!(map, text.lines().collect::<Vec<_>>());
        }
    )*};
}

recorded! {
    out_of_memory: "oom_real.default";
    oversize_blocks: "mss_oversize.mss64";
    expandable_segments: "exp_growth.exp";
    many_sizes: "sizes_kept.default";
    private_pool: "graph_pool.default";
    after_resets: "stats_reset.default";
}

/// The state of the sample in [spec 10.3]: current, peak, allocated, freed of `all`, `large_pool`, `small_pool`.
const SAMPLE: &[(&str, [[i64; 4]; 3])] = &[
    ("allocated_bytes", SAMPLE_BYTES),
    ("active_bytes", SAMPLE_BYTES),
    (
        "requested_bytes",
        [
            [943_719_400, 1_677_722_600, 1_682_965_481, 739_246_081],
            [943_718_400, 1_677_721_600, 1_682_964_480, 739_246_080],
            [1000, 1001, 1001, 1],
        ],
    ),
    (
        "reserved_bytes",
        [
            [945_815_552, 1_700_790_272, 1_700_790_272, 754_974_720],
            [943_718_400, 1_698_693_120, 1_698_693_120, 754_974_720],
            [2_097_152, 2_097_152, 2_097_152, 0],
        ],
    ),
    (
        "inactive_split_bytes",
        [
            [2_096_128, 17_824_768, 17_825_280, 15_729_152],
            [0, 15_728_640, 15_728_640, 15_728_640],
            [2_096_128, 2_096_128, 2_096_640, 512],
        ],
    ),
    ("allocation", SAMPLE_COUNT),
    ("active", SAMPLE_COUNT),
    ("segment", [[2, 4, 4, 2], [1, 3, 3, 2], [1, 1, 1, 0]]),
    ("inactive_split", [[1, 2, 2, 1], [0, 1, 1, 1], [1, 1, 1, 0]]),
];
const SAMPLE_BYTES: [[i64; 4]; 3] = [
    [943_719_424, 1_677_722_624, 1_682_966_016, 739_246_592],
    [943_718_400, 1_677_721_600, 1_682_964_480, 739_246_080],
    [1024, 1536, 1536, 512],
];
const SAMPLE_COUNT: [[i64; 4]; 3] = [[2, 4, 5, 3], [1, 2, 3, 2], [1, 2, 2, 1]];

fn sample() -> MemoryStats {
    let mut stats = MemoryStats::default();
    for (array, pools) in SAMPLE {
        for (pool, values) in ["all", "large_pool", "small_pool"].into_iter().zip(pools) {
            for (field, value) in ["current", "peak", "allocated", "freed"].into_iter().zip(values) {
                assert!(stats.set(&format!("{array}.{pool}.{field}"), *value));
            }
        }
    }
    stats.num_ooms = 1;
    stats.num_alloc_retries = 1;
    stats
}

#[test]
fn the_full_sample() {
    let expected = include_str!("../data/summary/sample.full.txt");
    assert_eq!(memory_summary_as("PyTorch", &sample(), 0, false), expected);
    assert_eq!(expected.lines().count(), 47);
    assert_eq!(memory_summary_as("PyTorch", &sample(), 0, true).lines().count(), 29);
}

#[test]
fn only_the_title_differs_from_pytorchs() {
    let ours = memory_summary(&sample(), 3, false);
    let theirs = memory_summary_as("PyTorch", &sample(), 3, false);
    for (number, (a, b)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(a.len(), 77);
        assert_eq!(a == b, number != 1, "line {number}");
    }
    let title = ours.lines().nth(1).unwrap();
    assert_eq!(title, "|                  gpucache CUDA memory summary, device ID 3                |");
}

#[test]
fn wide_numbers_push_the_line_wider() {
    let mut stats = MemoryStats::default();
    stats.num_ooms = 1_234_567_890_123;
    stats.num_alloc_retries = 123_456_789;
    let text = memory_summary(&stats, 0, true);
    let line = text.lines().nth(3).unwrap();
    assert_eq!(line, "|            CUDA OOMs: 1234567890123 |        cudaMalloc retries: 123456789  |");
}
