//! Out of memory with enough memory free: what the error says, and what cures it.
//!
//! A device of 12 GiB holds 9 GiB of live buffers; 3 GiB lie between them in six pieces of 512 MiB, so
//! a request of 2 GiB fails. On a larger GPU the allocator is limited to 12 GiB.
//!
//! `cargo run --release --example fragmentation`

mod common;

use common::{GIB, MIB, open_small, say_which, size};
use gpucache::device::Stream;
use gpucache::observe::snapshot::{BlockState, SegmentInfo};
use gpucache::{Allocation, Allocator, Error, Result};

const DEVICE: usize = 12 * GIB;
const REQUEST: usize = 2 * GIB;
/// Almost 2 GiB, and a multiple of the 20 MiB pages of expandable segments: six fit the device either way.
const FIRST_PHASE: usize = 2040 * MIB;
const SECOND_PHASE: usize = FIRST_PHASE - 512 * MIB;

fn main() -> Result<()> {
    let gpu = open_small(DEVICE)?;
    say_which(&gpu);
    problem(&gpu)?;
    drop(gpu);

    println!("\nCures, each from the start:");
    cure("max_split_size_mb:512", "large blocks are not cut, so they can go back to the driver whole")?;
    cure("expandable_segments:True", "one growing segment: what is free in it is next to each other")
}

/// Six large buffers, then six smaller ones: each takes the block of one and leaves 512 MiB of it.
fn two_phases(gpu: &Allocator) -> Result<Vec<Allocation>> {
    let first: Vec<Allocation> = (0..6).map(|_| gpu.alloc(FIRST_PHASE)).collect::<Result<_>>()?;
    drop(first);
    (0..6).map(|_| gpu.alloc(SECOND_PHASE)).collect()
}

fn problem(gpu: &Allocator) -> Result<()> {
    let mut live = two_phases(gpu)?;
    println!("\nSegments (# in use, . free; one character is 128 MiB):");
    for segment in &gpu.memory_snapshot().segments {
        println!("  {:#014x} {}", segment.address, bar(segment));
    }

    println!(
        "\nA request of {} would end as: {:?}",
        size(REQUEST as u64),
        gpu.would_allocate(REQUEST, Stream::DEFAULT)?
    );
    match gpu.alloc(REQUEST) {
        Err(Error::OutOfMemory(report)) => {
            println!("It fails:\n\n{report}\n");
            println!("  reserved               {:>10}", size(report.reserved));
            println!("  of which live          {:>10}", size(report.allocated));
            println!("  of which free          {:>10}", size(report.reserved - report.active));
            println!(
                "  largest free block     {:>10}   <- smaller than the request",
                size(report.largest_free)
            );
        }
        Err(other) => return Err(other),
        Ok(_) => println!("It succeeds: this device has more room than the example thinks."),
    }

    let report = gpu.empty_cache()?;
    println!(
        "\nempty_cache does not help: it frees {}, because each segment has a live block:",
        size(report.freed_bytes)
    );
    for kept in &report.kept {
        println!(
            "  {:#014x} {} kept, {} live: {:?}",
            kept.address,
            size(kept.bytes),
            size(kept.live_bytes),
            kept.reason
        );
    }

    live.pop();
    let served = gpu.alloc(REQUEST)?;
    println!("\nDropping one live buffer makes its segment free as a whole, and the request is served.");
    drop((served, live));
    gpu.empty_cache()?;
    Ok(())
}

/// The same program under other options.
fn cure(options: &str, why: &str) -> Result<()> {
    let gpu = open_small(DEVICE)?;
    match gpu.set_allocator_settings(options) {
        Err(Error::NotSupported(what)) => {
            println!("  {options:<26} not available here: {what}");
            return Ok(());
        }
        other => other?,
    }
    let live = two_phases(&gpu)?;
    match gpu.alloc(REQUEST) {
        Ok(_served) => println!("  {options:<26} served, {} reserved: {why}", size(gpu.memory_reserved())),
        Err(error) => println!("  {options:<26} {error}"),
    }
    drop(live);
    gpu.empty_cache()?;
    Ok(())
}

fn bar(segment: &SegmentInfo) -> String {
    let cell = 128 * MIB as u64;
    segment
        .blocks
        .iter()
        .map(|block| {
            let mark = if block.state == BlockState::Inactive { "." } else { "#" };
            mark.repeat(((block.size + cell / 2) / cell) as usize)
        })
        .collect()
}
