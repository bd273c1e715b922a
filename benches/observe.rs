//! What watching costs: blocks used on a second stream, statistics, the summary, a snapshot of 10,000 blocks, a history.

mod common;

use std::hint::black_box;

use criterion::Criterion;
use gpucache::HistoryOptions;
use gpucache::device::Stream;

use common::must;
use common::scene::Holes;
use common::subject::Handles;
use common::testbed::{H200_BYTES, Testbed};
use common::workload::{KIB, Pool};

fn main() {
    let mut criterion = common::criterion();
    record_stream(&mut criterion);
    views(&mut criterion);
    history(&mut criterion);
    criterion.final_summary();
}

/// A pair whose block is used on a second stream, beside the two driver calls that it cannot do without.
fn record_stream(criterion: &mut Criterion) {
    let testbed = Testbed::from_env(H200_BYTES);
    let mut group = criterion.benchmark_group("record_stream");
    group.bench_function("pair", |b| {
        b.iter(|| {
            let block = must(testbed.allocator.alloc_on(black_box(4 * KIB), Stream::DEFAULT));
            block.record_stream(testbed.side_stream());
        });
    });
    let device = testbed.allocator.device();
    let event = must(device.event_create());
    group.bench_function("driver_event", |b| {
        b.iter(|| {
            must(device.event_record(event, testbed.side_stream()));
            black_box(must(device.event_query(event)))
        });
    });
    must(device.event_destroy(event));
}

fn views(criterion: &mut Criterion) {
    let testbed = Testbed::from_env(H200_BYTES);
    let allocator = &testbed.allocator;
    let _blocks = Holes::new(Handles(allocator), Stream::DEFAULT, Pool::Small, 5_000);
    let mut group = criterion.benchmark_group("observe");
    group.bench_function("memory_allocated", |b| b.iter(|| allocator.memory_allocated()));
    group.bench_function("memory_stats", |b| b.iter(|| allocator.memory_stats()));
    group.bench_function("memory_summary", |b| b.iter(|| allocator.memory_summary(false)));
    group.bench_function("memory_snapshot_10k_blocks", |b| b.iter(|| allocator.memory_snapshot()));
}

/// Hot pairs, and pairs of two sizes by turns (which no parked block serves), without and with a history. A pair is two
/// calls.
fn history(criterion: &mut Criterion) {
    let testbed = Testbed::from_env(H200_BYTES);
    let allocator = &testbed.allocator;
    let mut group = criterion.benchmark_group("history");
    for (name, options) in [("off", None), ("on", Some(HistoryOptions::with_max_entries(100_000)))] {
        allocator.record_memory_history(options);
        group.bench_function(format!("hot_pair_{name}"), |b| {
            b.iter(|| must(allocator.alloc_on(black_box(4 * KIB), Stream::DEFAULT)));
        });
        group.bench_function(format!("two_sizes_{name}"), |b| {
            b.iter(|| {
                drop(must(allocator.alloc_on(black_box(4 * KIB), Stream::DEFAULT)));
                must(allocator.alloc_on(black_box(8 * KIB), Stream::DEFAULT))
            });
        });
    }
}
