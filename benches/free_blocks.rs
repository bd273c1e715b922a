//! A pair beside 64 to 32,768 free blocks: one size again and again, and sizes that vary.

mod common;

use gpucache::device::Stream;

use common::scene::Holes;
use common::subject::{Handles, Subject};
use common::testbed::{Testbed, VAST_BYTES};
use common::workload::{FREE_BLOCKS, Pool};

fn main() {
    let mut criterion = common::criterion();
    for pool in Pool::BOTH {
        let mut group = criterion.benchmark_group(format!("free_blocks/{}", pool.name()));
        for free in FREE_BLOCKS {
            let testbed = Testbed::from_env(VAST_BYTES);
            let subject = Handles(&testbed.allocator);
            if !Holes::fit(subject, pool, free) {
                println!("free_blocks/{}: {free} free blocks do not fit", pool.name());
                continue;
            }
            let mut holes = Holes::new(subject, Stream::DEFAULT, pool, free);
            group.bench_function(format!("same/{free}"), |b| {
                b.iter(|| subject.pair(pool.pair_size(), Stream::DEFAULT));
            });
            group.bench_function(format!("varied/{free}"), |b| b.iter(|| holes.varied_pair()));
        }
    }
    criterion.final_summary();
}
