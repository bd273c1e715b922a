//! What the examples share: opening a device and printing bytes.
#![allow(dead_code)] // every example compiles this module and uses its own part of it

pub(crate) use gpucache::units::format_size as size;

use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, Result};

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const GIB: usize = 1 << 30;

/// The first GPU, or a simulated one where there is none; prints which.
pub(crate) fn open() -> Allocator {
    let allocator = Allocator::cuda_or_simulated(0);
    say_which(&allocator);
    allocator
}

/// A device of exactly `bytes`: a real GPU limited to that much, or a simulated one where no GPU has it free.
pub(crate) fn open_small(bytes: usize) -> Result<Allocator> {
    let allocator = Allocator::cuda_or_simulated(0);
    if allocator.device().properties().simulated || allocator.mem_get_info()?.free < bytes as u64 {
        return Ok(Allocator::simulated(SimDevice::new(bytes as u64)));
    }
    limit_to(&allocator, bytes)?;
    Ok(allocator)
}

/// Prints what the allocator runs on.
pub(crate) fn say_which(allocator: &Allocator) {
    let device = allocator.device().properties();
    if device.simulated {
        println!(
            "No GPU with enough memory here: running on a simulated one ({}).",
            size(device.total_memory)
        );
    } else {
        println!("Running on GPU {}: {} ({}).", device.ordinal, device.name, size(device.total_memory));
    }
}

/// Limits `allocator` to exactly `bytes` of its device.
pub(crate) fn limit_to(allocator: &Allocator, bytes: usize) -> Result<()> {
    let total = allocator.device().properties().total_memory;
    // The limit is floor(fraction * total); the half byte keeps rounding from losing one.
    allocator.set_per_process_memory_fraction(((bytes as f64 + 0.5) / total as f64).min(1.0))
}

/// Bytes in GiB, for tables.
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / GIB as f64)
}

/// One line: what is in use, and what is held from the driver.
pub(crate) fn show(moment: &str, allocator: &Allocator) {
    println!(
        "{moment:<34} allocated {:>10}   reserved {:>10}",
        gib(allocator.memory_allocated()),
        gib(allocator.memory_reserved()),
    );
}
