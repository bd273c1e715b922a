//! Growth from an empty cache against the driver's own allocation of the same size. Needs a GPU.

mod common;

use std::time::Instant;

use common::must;
use common::subject::{Handles, Subject};
use common::testbed::{Target, Testbed};
use common::workload::MIB;
use gpucache::device::Stream;

const SIZES: [usize; 4] = [2 * MIB, 20 * MIB, 64 * MIB, 1024 * MIB];

fn main() {
    // A simulated driver's time means nothing here, so the GPU is the default.
    let target = match Target::from_env() {
        Target::Simulated => Target::Cuda(0),
        cuda @ Target::Cuda(_) => cuda,
    };
    let testbed = match Testbed::open(target, 0) {
        Ok(testbed) => testbed,
        Err(reason) => {
            println!("cold: skipped, it measures a real driver: {reason}");
            return;
        }
    };
    let mut criterion = common::criterion();
    let allocator = &testbed.allocator;
    let subject = Handles(allocator);
    for bytes in SIZES {
        let mut group = criterion.benchmark_group(format!("cold/{bytes}"));
        group.bench_function("grow", |b| {
            b.iter_custom(|iterations| {
                let mut total = std::time::Duration::ZERO;
                for _ in 0..iterations {
                    let start = Instant::now();
                    let block = must(subject.alloc(bytes, Stream::DEFAULT));
                    total += start.elapsed();
                    subject.free(block);
                    must(allocator.empty_cache());
                }
                total
            });
        });
        group.bench_function("driver", |b| {
            b.iter_custom(|iterations| {
                let mut total = std::time::Duration::ZERO;
                for _ in 0..iterations {
                    let start = Instant::now();
                    let address = must(allocator.device().malloc(bytes as u64));
                    total += start.elapsed();
                    must(allocator.device().free(address));
                }
                total
            });
        });
    }
    criterion.final_summary();
}
