//! Replaces a random one of many live blocks by one of another size.

mod common;

use gpucache::device::Stream;

use common::scene::Churn;
use common::subject::Handles;
use common::testbed::{Testbed, VAST_BYTES};
use common::workload::CHURN_LIVE;

fn main() {
    let mut criterion = common::criterion();
    let mut group = criterion.benchmark_group("churn");
    for live in CHURN_LIVE {
        let testbed = Testbed::from_env(VAST_BYTES);
        let mut churn = Churn::new(Handles(&testbed.allocator), Stream::DEFAULT, live);
        group.bench_function(live.to_string(), |b| b.iter(|| churn.step()));
    }
    group.finish();
    criterion.final_summary();
}
