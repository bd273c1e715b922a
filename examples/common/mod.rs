//! What the examples share: opening a device and printing bytes.
#![allow(dead_code)] // every example compiles this module and uses its own part of it

use gpucache::{Allocator, Result};

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const GIB: usize = 1 << 30;

/// The first GPU, or a simulated one where there is none; prints which.
pub(crate) fn open() -> Allocator {
    let allocator = Allocator::cuda_or_simulated(0);
    let device = allocator.device().properties();
    if device.simulated {
        println!("No GPU here: running on a simulated one ({}).", size(device.total_memory));
    } else {
        println!("Running on GPU {}: {} ({}).", device.ordinal, device.name, size(device.total_memory));
    }
    allocator
}

/// Limits `allocator` to exactly `bytes` of its device.
pub(crate) fn limit_to(allocator: &Allocator, bytes: usize) -> Result<()> {
    let total = allocator.device().properties().total_memory;
    // The limit is floor(fraction * total); the half byte keeps rounding from losing one.
    allocator.set_per_process_memory_fraction(((bytes as f64 + 0.5) / total as f64).min(1.0))
}

/// Bytes for people, as PyTorch's messages write them.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 3] = ["KiB", "MiB", "GiB"];
    if bytes <= 1024 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value > 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
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
