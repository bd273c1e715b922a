//! How well the recorded models' memory is used, beside the time that it takes: one table row per recording, under
//! the options and the cap that it was made with.

mod common;

use std::time::Instant;

use gpucache::Result;

use common::must;
use common::request::{Player, REAL_FOLDERS, Recording};
use common::subject::Handles;
use common::testbed::Testbed;

/// Passes after the first, of which the quickest counts.
const PASSES: usize = 5;

fn main() {
    let recordings = Recording::all(&REAL_FOLDERS);
    if recordings.is_empty() {
        println!("fragmentation: no recordings in {}: nothing to measure", REAL_FOLDERS.join(" or "));
        return;
    }
    println!(
        "Peaks and driver calls of the first pass from an empty cache. Failed: requests that did not fit.\n"
    );
    println!(
        "| recording | allocated GiB | reserved GiB | utilisation | driver calls | requests | failed | ns/request, first | ns/request, cached |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (name, recording) in &recordings {
        must(row(name, recording));
    }
}

fn row(name: &str, recording: &Recording) -> Result<()> {
    let testbed = Testbed::simulated(recording.total_memory);
    let allocator = &testbed.allocator;
    allocator.set_allocator_settings(&recording.options)?;
    if let Some(fraction) = recording.fraction {
        allocator.set_per_process_memory_fraction(fraction)?;
    }
    let mut player = Player::new(Handles(allocator), &testbed.streams, recording);
    let per_request = |start: Instant| start.elapsed().as_nanos() as f64 / recording.requests.len() as f64;

    let start = Instant::now();
    let failed = player.pass();
    let first = per_request(start);
    let stats = allocator.memory_stats();
    let (allocated, reserved) = (stats.allocated_bytes.all.peak as f64, stats.reserved_bytes.all.peak as f64);

    let mut cached = f64::INFINITY;
    for _ in 0..PASSES {
        let start = Instant::now();
        player.pass();
        cached = cached.min(per_request(start));
    }
    println!(
        "| {name} | {:.3} | {:.3} | {:.1} % | {} | {} | {failed} | {first:.0} | {cached:.0} |",
        allocated / GIB,
        reserved / GIB,
        100.0 * allocated / reserved,
        stats.num_device_alloc + stats.num_device_free,
        recording.requests.len(),
    );
    Ok(())
}

const GIB: f64 = (1_u64 << 30) as f64;
