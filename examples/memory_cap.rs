//! Two allocators share one device, each with its own limit; what happens at the limit.
//!
//! `cargo run --release --example memory_cap`

mod common;

use std::sync::Arc;

use common::{GIB, gib, limit_to, open_small, say_which, size};
use gpucache::{Allocator, Error, Result};

fn main() -> Result<()> {
    let training = open_small(12 * GIB)?;
    say_which(&training);
    let serving = Allocator::builder().device(Arc::clone(training.device())).build()?;
    limit_to(&training, 6 * GIB)?;
    limit_to(&serving, 4 * GIB)?;
    println!(
        "Limits as fractions of the device: training {:.4}, serving {:.4}",
        training.get_per_process_memory_fraction(),
        serving.get_per_process_memory_fraction()
    );
    let both = || table(&training, &serving);

    println!("\n1. The cache counts too, but it gives way: 4 GiB cached, then a request of 5 GiB.");
    drop(training.alloc(4 * GIB)?);
    both()?;
    let batch = training.alloc(5 * GIB)?;
    both()?;
    println!("   Retries after giving the cache back: {}", training.memory_stats().num_alloc_retries);

    println!("\n2. At the limit: 2 GiB more, although the device has them.");
    explain(training.alloc(2 * GIB));

    println!("\n3. The other allocator notices nothing.");
    let model = serving.alloc(3 * GIB)?;
    both()?;

    println!("\n4. Lowering a limit below what is held frees nothing; it stops growth.");
    limit_to(&training, 2 * GIB)?;
    both()?;
    explain(training.alloc(GIB));
    println!("   What is cached is still handed out:");
    drop(batch);
    let smaller = training.alloc(GIB)?;
    both()?;

    println!("\n5. A fraction outside 0 to 1 is an error.");
    explain(training.set_per_process_memory_fraction(1.5));

    drop((smaller, model));
    training.empty_cache()?;
    serving.empty_cache()?;
    Ok(())
}

fn table(training: &Allocator, serving: &Allocator) -> Result<()> {
    for (name, allocator) in [("training", training), ("serving", serving)] {
        println!(
            "   {name:<9} allocated {:>10}   reserved {:>10}",
            gib(allocator.memory_allocated()),
            gib(allocator.memory_reserved())
        );
    }
    println!("   {:<9} free      {:>10}", "device", gib(training.mem_get_info()?.free));
    Ok(())
}

/// Prints how a request ended.
fn explain<T>(outcome: Result<T>) {
    match outcome {
        Ok(_) => println!("   succeeded"),
        Err(Error::OutOfMemory(report)) => println!(
            "   out of memory by the limit: {} asked, {} of {} held, {} free on the device\n   \"{report}\"",
            size(report.segment_size),
            size(report.reserved),
            size(report.allowed.unwrap_or(report.device_total)),
            size(report.device_free)
        ),
        Err(error) => println!("   {error}"),
    }
}
