//! What users of other allocators complain about, and the known defects of PyTorch's [spec 23]: one test per kind,
//! named after a report of it. Where PyTorch fails, `mirror_defects` fails too, and the test asserts both.
//!
//! Not here: speed (see the benches); pinned memory and most of graph capture have tests of their own.
// Two underscores part the kind from the report.
#![allow(clippy::unwrap_used, non_snake_case)]

mod defects;
mod explained;
mod figures;
mod fragmentation;
mod streams;

use std::sync::Arc;

use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, Config, Error};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const SIDE: Stream = Stream::from_raw(8);
const MIRROR: &str = "mirror_defects:True";

/// An allocator on a device of so many MiB.
fn fresh(mib: u64, options: &str) -> (SimDevice, Allocator) {
    let device = SimDevice::new(mib << 20);
    let allocator = on(&device, options);
    (device, allocator)
}

fn on(device: &SimDevice, options: &str) -> Allocator {
    let config = Config::parse(options).unwrap();
    Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap()
}

fn is_oom<T>(outcome: &gpucache::Result<T>) -> bool {
    matches!(outcome, Err(Error::OutOfMemory(_)))
}

/// MiB.
fn reserved(allocator: &Allocator) -> u64 {
    allocator.memory_reserved() >> 20
}
