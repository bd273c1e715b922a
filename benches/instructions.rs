//! Runs a number of hot pairs and nothing else that depends on that number. Under an instruction counter, the
//! difference of two runs is the cost of a pair, without the machine's noise: see `scripts/instructions.sh`.
//!
//! usage: instructions CASE PAIRS, where CASE is small, large, small-raw, large-raw, recorded-raw, churn or locks.

mod common;

use gpucache::device::Stream;

use common::locks::TwoLocks;
use common::must;
use common::scene::Churn;
use common::subject::{Addresses, Handles, Subject};
use common::testbed::{H200_BYTES, Testbed};
use common::workload::{KIB, MIB};

const SMALL: usize = 4 * KIB;
const LARGE: usize = 20 * MIB;
/// Blocks that the churn holds.
const LIVE: usize = 256;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [case, pairs] = arguments.as_slice() else {
        println!("instructions: run it through scripts/instructions.sh");
        return;
    };
    let pairs: u64 = must(pairs.parse());
    if case == "locks" {
        let locks = TwoLocks::new();
        return (0..pairs).for_each(|_| locks.pair());
    }
    let testbed = Testbed::simulated(H200_BYTES);
    let (handles, addresses) = (Handles(&testbed.allocator), Addresses(&testbed.allocator));
    match case.as_str() {
        "small" => run(handles, SMALL, pairs),
        "large" => run(handles, LARGE, pairs),
        "small-raw" => run(addresses, SMALL, pairs),
        "large-raw" => run(addresses, LARGE, pairs),
        "recorded-raw" => recorded(&testbed, pairs),
        "churn" => {
            let mut churn = Churn::new(handles, Stream::DEFAULT, LIVE);
            (0..pairs).for_each(|_| churn.step());
        }
        other => must::<(), _>(Err(format!("no case '{other}'"))),
    }
}

/// A second stream uses every block. What the simulated device does for its events counts too.
fn recorded(testbed: &Testbed, pairs: u64) {
    let allocator = &testbed.allocator;
    for _ in 0..pairs {
        let address = must(allocator.alloc_raw(SMALL, Stream::DEFAULT));
        must(allocator.record_stream_raw(address, testbed.side_stream()));
        must(allocator.free_raw(address));
    }
}

fn run(subject: impl Subject, bytes: usize, pairs: u64) {
    for _ in 0..pairs {
        subject.pair(bytes, Stream::DEFAULT);
    }
}
