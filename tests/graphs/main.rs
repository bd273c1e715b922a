//! Private pools and graph captures [spec 14], on the simulated GPU.
#![allow(clippy::unwrap_used)]

mod capture;
mod checkpoint;
mod ladder;
mod orders;
mod reuse;

use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, Config};

const MIB: usize = 1 << 20;

/// A simulated GPU and its allocator.
fn open(memory: usize, options: &str) -> (SimDevice, Allocator) {
    open_with(memory, options, false)
}

fn open_with(memory: usize, options: &str, mirror_defects: bool) -> (SimDevice, Allocator) {
    let gpu = SimDevice::new(memory as u64);
    let mut config = Config::parse(options).unwrap();
    config.mirror_defects = mirror_defects;
    let device = std::sync::Arc::new(gpu.clone());
    (gpu, Allocator::builder().device(device).config(config).build().unwrap())
}

/// Later work on `later` comes after what `earlier` has queued or captured so far.
fn order(gpu: &SimDevice, earlier: Stream, later: Stream) {
    use gpucache::device::Device;
    let event = gpu.event_create().unwrap();
    gpu.event_record(event, earlier).unwrap();
    gpu.stream_wait_event(later, event).unwrap();
    gpu.event_destroy(event).unwrap();
}
