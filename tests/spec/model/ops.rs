//! Random operation sequences.

use proptest::prelude::*;

use super::device::MIB;

/// At most; a case may use fewer.
pub(crate) const STREAMS: usize = 4;
pub(crate) const POOLS: usize = 2;

pub(crate) const CONFIGURATIONS: [&str; 12] = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:32,max_non_split_rounding_mb:40",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.7",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:4,4:2,>:8]",
    "large_segment_size_mb:32",
    "max_split_size_mb:24,garbage_collection_threshold:0.5,roundup_power2_divisions:8,per_process_memory_fraction:0.9",
    "expandable_segments:True",
    "expandable_segments:True,garbage_collection_threshold:0.6,per_process_memory_fraction:0.8",
    "expandable_segments:True,roundup_power2_divisions:4",
    "expandable_segments:True,large_segment_size_mb:32",
];

/// Settings calls that cannot lead into PyTorch's defects 23.13 and 23.14: each takes the split limit away.
pub(crate) const HARMLESS_SETTINGS: [&str; 7] = [
    "",
    "garbage_collection_threshold:0.5",
    "roundup_power2_divisions:2",
    "garbage_collection_threshold:0.9",
    "expandable_segments:True",
    "expandable_segments:False",
    "large_segment_size_mb:24,expandable_segments:False",
];

/// Settings calls that do: only without `mirror_defects`.
pub(crate) const ANY_SETTINGS: [&str; 2] =
    ["max_split_size_mb:32", "max_split_size_mb:64,expandable_segments:True"];

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Alloc {
        bytes: u64,
        stream: usize,
    },
    /// The `index`-th live allocation, counted round.
    Free {
        index: usize,
    },
    FreeAll,
    Record {
        index: usize,
        stream: usize,
    },
    Hold {
        stream: usize,
    },
    Release {
        stream: usize,
    },
    EmptyCache,
    Fraction(f64),
    ResetPeak,
    ResetAccumulated,
    Settings(&'static str),
    /// Operations while the thread's requests go to a private pool.
    InPool {
        pool: usize,
        ops: Vec<Op>,
    },
    UseOnOom {
        pool: usize,
        on: bool,
    },
    NoSplit {
        pool: usize,
    },
    DropPool {
        pool: usize,
    },
}

pub(crate) fn size() -> impl Strategy<Value = u64> {
    let edge = prop::sample::select(vec![512, 1024, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB]);
    prop_oneof![
        4 => (0.0..27.3_f64).prop_map(|log| log.exp2() as u64),
        2 => (edge, -513_i64..=513).prop_map(|(edge, off)| edge.saturating_add_signed(off).max(1)),
        1 => (1..=96_u64).prop_map(|mib| mib * MIB),
        1 => Just(0),
    ]
}

pub(crate) fn plain_op() -> impl Strategy<Value = Op> {
    let (stream, index) = (0..STREAMS, 0..1000_usize);
    prop_oneof![
        20 => (size(), stream.clone()).prop_map(|(bytes, stream)| Op::Alloc { bytes, stream }),
        14 => index.clone().prop_map(|index| Op::Free { index }),
        5 => (index, stream.clone()).prop_map(|(index, stream)| Op::Record { index, stream }),
        2 => stream.clone().prop_map(|stream| Op::Hold { stream }),
        2 => stream.prop_map(|stream| Op::Release { stream }),
        1 => Just(Op::EmptyCache),
        1 => Just(Op::FreeAll),
        1 => prop::sample::select(vec![1.0, 0.9, 0.5, 0.33, 0.1]).prop_map(Op::Fraction),
        1 => Just(Op::ResetPeak),
        1 => Just(Op::ResetAccumulated),
    ]
}

pub(crate) fn settings(mirror: bool) -> impl Strategy<Value = Op> {
    let mut texts = HARMLESS_SETTINGS.to_vec();
    if !mirror {
        texts.extend(ANY_SETTINGS);
    }
    prop::sample::select(texts).prop_map(Op::Settings)
}

pub(crate) fn pool_op() -> impl Strategy<Value = Op> {
    let pool = 0..POOLS;
    prop_oneof![
        6 => (pool.clone(), prop::collection::vec(plain_op(), 1..12)).prop_map(|(pool, ops)| Op::InPool { pool, ops }),
        1 => (pool.clone(), any::<bool>()).prop_map(|(pool, on)| Op::UseOnOom { pool, on }),
        1 => pool.clone().prop_map(|pool| Op::NoSplit { pool }),
        1 => pool.prop_map(|pool| Op::DropPool { pool }),
    ]
}

pub(crate) fn ops(mirror: bool, pools: bool) -> impl Strategy<Value = Vec<Op>> {
    let pool_weight = if pools { 8 } else { 0 };
    let op = prop_oneof![60 => plain_op(), 2 => settings(mirror), pool_weight => pool_op()];
    prop::collection::vec(op, 1..90)
}

pub(crate) fn case(mirror: bool, pools: bool) -> impl Strategy<Value = (&'static str, usize, Vec<Op>)> {
    (prop::sample::select(CONFIGURATIONS.to_vec()), 1..=STREAMS, ops(mirror, pools))
}
