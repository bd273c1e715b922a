//! Allocate and free the same size, from the cache: through handles, through raw addresses, and what two
//! uncontended locks cost in the same run.

mod common;

use criterion::Criterion;
use gpucache::device::Stream;

use common::locks::TwoLocks;
use common::subject::{Addresses, Handles, Subject};
use common::testbed::{H200_BYTES, Testbed};
use common::workload::PAIR_SIZES;

fn main() {
    let mut criterion = common::criterion();
    let testbed = Testbed::from_env(H200_BYTES);
    locks(&mut criterion);
    pairs(&mut criterion, "hot_pair/handle", Handles(&testbed.allocator));
    pairs(&mut criterion, "hot_pair/raw", Addresses(&testbed.allocator));
    criterion.final_summary();
}

fn locks(criterion: &mut Criterion) {
    let locks = TwoLocks::new();
    criterion.bench_function("hot_pair/two_locks", |b| b.iter(|| locks.pair()));
}

fn pairs(criterion: &mut Criterion, name: &str, subject: impl Subject) {
    let mut group = criterion.benchmark_group(name);
    for bytes in PAIR_SIZES {
        group.bench_function(bytes.to_string(), |b| b.iter(|| subject.pair(bytes, Stream::DEFAULT)));
    }
}
