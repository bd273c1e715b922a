//! The first experiment: allocated and reserved are two things.
//!
//! `cargo run --release --example quickstart`

mod common;

use common::{open, show, size};

fn main() -> gpucache::Result<()> {
    let gpu = open();
    show("at the start", &gpu);

    let matrix = gpu.alloc(10_000 * 10_000 * size_of::<f32>())?;
    show("a matrix of 10,000 x 10,000 f32", &gpu);

    // The memory is free for the next request, but nvidia-smi still counts it: it stays in the cache.
    drop(matrix);
    show("matrix dropped", &gpu);

    let report = gpu.empty_cache()?;
    show("cache emptied", &gpu);
    println!(
        "empty_cache gave {} back to the driver and kept {}.\n",
        size(report.freed_bytes),
        size(report.kept_bytes)
    );

    print!("{}", gpu.memory_summary(false));
    Ok(())
}
