//! Recorded request streams of real models, in the steady state: everything was cached by a first pass.

mod common;

use criterion::Throughput;

use common::must;
use common::request::{Player, REAL_FOLDERS, Recording};
use common::subject::Handles;
use common::testbed::Testbed;

fn main() {
    let recordings = Recording::all(&REAL_FOLDERS);
    if recordings.is_empty() {
        println!("replay: no recordings in {}: nothing to measure", REAL_FOLDERS.join(" or "));
    }
    let mut criterion = common::criterion();
    let mut group = criterion.benchmark_group("replay");
    for (name, recording) in &recordings {
        let testbed = Testbed::simulated(recording.total_memory);
        must(testbed.allocator.set_allocator_settings(&recording.options));
        let mut player = Player::new(Handles(&testbed.allocator), &testbed.streams, recording);
        // The recording's cap is left out: with it, some streams would measure out-of-memory answers.
        player.pass();
        group.throughput(Throughput::Elements(recording.requests.len() as u64));
        group.bench_function(name, |b| b.iter(|| player.pass()));
    }
    group.finish();
    criterion.final_summary();
}
