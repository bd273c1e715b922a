//! The shapes of RMM's `random_allocations` benchmark: with probability 0.73 allocate a size that is uniform up to
//! a maximum, otherwise free a random block; at most 16,000 MiB live.

mod common;

use criterion::{BenchmarkId, Throughput};
use gpucache::device::Stream;

use common::must;
use common::subject::{Handles, Subject};
use common::testbed::{H200_BYTES, Testbed};
use common::workload::{MIB, Rng};

const ALLOCATIONS: [usize; 3] = [1_000, 10_000, 100_000];
const MAX_MIB: [usize; 3] = [1, 4, 64];
const LIVE_CAP: usize = 16_000 * MIB;

fn main() {
    let testbed = Testbed::from_env(H200_BYTES);
    let subject = Handles(&testbed.allocator);
    let mut criterion = common::criterion();
    let mut group = criterion.benchmark_group("rmm_random");
    for allocations in ALLOCATIONS {
        for max in MAX_MIB {
            must(testbed.allocator.empty_cache());
            // Elements are alloc and free pairs: every block is freed in the end.
            group.throughput(Throughput::Elements(allocations as u64));
            group.bench_function(BenchmarkId::new(allocations.to_string(), format!("{max}MiB")), |b| {
                b.iter(|| run(subject, allocations, max * MIB));
            });
        }
    }
    group.finish();
    criterion.final_summary();
}

fn run<S: Subject>(subject: S, allocations: usize, max_bytes: usize) {
    let mut rng = Rng::new(1);
    let mut live: Vec<(S::Block, usize)> = Vec::with_capacity(allocations);
    let (mut done, mut bytes_live) = (0, 0);
    while done < allocations {
        let bytes = 1 + rng.below(max_bytes);
        let wanted = rng.below(100) < 73;
        if live.is_empty() || (wanted && bytes_live + bytes <= LIVE_CAP) {
            live.push((must(subject.alloc(bytes, Stream::DEFAULT)), bytes));
            bytes_live += bytes;
            done += 1;
        } else {
            let (block, bytes) = live.swap_remove(rng.below(live.len()));
            subject.free(block);
            bytes_live -= bytes;
        }
    }
    for (block, _) in live {
        subject.free(block);
    }
}
