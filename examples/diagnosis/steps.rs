//! The cases. Each returns what gpucache prints.

use std::time::Duration;

use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;
use gpucache::{Allocation, Allocator, Error, HistoryOptions, Result};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const COPY_STREAM: Stream = Stream::from_raw(0x2a);

/// A case's name and its run.
pub(crate) type Step = (&'static str, fn() -> Result<String>);

/// All cases, in the page's order.
pub(crate) const ALL: &[Step] = &[
    ("reconcile", reconcile),
    ("cached", cached),
    ("other_process", other_process),
    ("context", context),
    ("growing", growing),
    ("growing_sites", growing_sites),
    ("fragmented", fragmented),
    ("fragmented_oom", fragmented_oom),
    ("pending_free", pending_free),
    ("other_stream", other_stream),
    ("private_pool", private_pool),
    ("cap", cap),
    ("too_small", too_small),
];

/// A GPU of 12 GiB with an ordinary context.
fn machine() -> (SimDevice, Allocator) {
    let device = SimDevice::builder()
        .total_memory(12 << 30)
        .context_overhead(500 << 20)
        .driver_reserved(450 << 20)
        .driver_version(13_000)
        .pid(4321)
        .build();
    (device.clone(), Allocator::simulated(device))
}

/// The first experiment, beside another process.
fn reconcile() -> Result<String> {
    let (device, gpu) = machine();
    device.set_other_process(1234, 2 << 30);
    gpu.reconcile()?;
    drop(gpu.alloc(10_000 * 10_000 * size_of::<f32>())?);
    let _in_use = gpu.alloc(64 * MIB)?;
    Ok(gpu.reconcile()?.to_string())
}

fn cached() -> Result<String> {
    let (_, gpu) = machine();
    drop(gpu.alloc(3 * GIB)?);
    Ok(gpu.diagnose()?.to_string())
}

fn other_process() -> Result<String> {
    let (device, gpu) = machine();
    device.set_other_process(1234, 9 << 30);
    let _in_use = gpu.alloc(GIB)?;
    explain(&gpu, 4 * GIB)
}

fn context() -> Result<String> {
    let (device, gpu) = machine();
    let library = gpucache::device::Device::malloc(&device, 4 << 30)?;
    let _in_use = gpu.alloc(4 * GIB)?;
    let text = explain(&gpu, 5 * GIB);
    gpucache::device::Device::free(&device, library)?;
    text
}

/// A training loop that keeps every output.
fn iteration(gpu: &Allocator, outputs: &mut Vec<Allocation>) -> Result<()> {
    let activations = (0..4).map(|_| gpu.alloc(32 * MIB)).collect::<Result<Vec<_>>>()?;
    outputs.push(gpu.alloc(256 * MIB)?);
    drop(activations);
    Ok(())
}

fn growing() -> Result<String> {
    let (_, gpu) = machine();
    gpu.record_memory_history(Some(HistoryOptions::default()));
    let mut outputs = Vec::new();
    for _ in 0..16 {
        iteration(&gpu, &mut outputs)?;
        // What the iteration computes.
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(gpu.diagnose()?.to_string())
}

fn growing_sites() -> Result<String> {
    let (_, gpu) = machine();
    let mut outputs = Vec::new();
    iteration(&gpu, &mut outputs)?;
    let mark = gpu.mark();
    iteration(&gpu, &mut outputs)?;
    Ok(gpu.since(&mark).to_string())
}

/// Five buffers of 2 GiB, then five of 1.5 GiB in their places.
fn two_phases(gpu: &Allocator) -> Result<Vec<Allocation>> {
    let first = (0..5).map(|_| gpu.alloc(2 * GIB)).collect::<Result<Vec<_>>>()?;
    drop(first);
    (0..5).map(|_| gpu.alloc(1536 * MIB)).collect()
}

fn fragmented() -> Result<String> {
    let (_, gpu) = machine();
    let _in_use = two_phases(&gpu)?;
    explain(&gpu, 2 * GIB)
}

/// The same as the error tells it.
fn fragmented_oom() -> Result<String> {
    let (_, gpu) = machine();
    let _in_use = two_phases(&gpu)?;
    match gpu.alloc(2 * GIB) {
        Err(Error::OutOfMemory(report)) => Ok(format!("{report:#}")),
        Err(other) => Err(other),
        Ok(_) => Ok("it was served".to_owned()),
    }
}

fn pending_free() -> Result<String> {
    let (device, gpu) = machine();
    let batch = gpu.alloc(3 * GIB)?;
    batch.record_stream(COPY_STREAM);
    device.hold(COPY_STREAM);
    drop(batch);
    Ok(gpu.diagnose()?.to_string())
}

fn other_stream() -> Result<String> {
    let (_, gpu) = machine();
    drop(gpu.alloc_on(6 * GIB, COPY_STREAM)?);
    let _in_use = (gpu.alloc_on(GIB, COPY_STREAM)?, gpu.alloc(5 * GIB)?);
    explain(&gpu, 3 * GIB)
}

fn private_pool() -> Result<String> {
    let (_, gpu) = machine();
    let pool = gpu.create_pool();
    drop(pool.scope(|| gpu.alloc(5 * GIB))??);
    let _in_use = gpu.alloc(5 * GIB)?;
    explain(&gpu, 4 * GIB)
}

fn cap() -> Result<String> {
    let (_, gpu) = machine();
    gpu.set_per_process_memory_fraction(0.5)?;
    let _in_use = gpu.alloc(4 * GIB)?;
    explain(&gpu, 3 * GIB)
}

fn too_small() -> Result<String> {
    let (_, gpu) = machine();
    let _weights = gpu.alloc(2 * GIB)?;
    let _activations = (0..6).map(|_| gpu.alloc(GIB)).collect::<Result<Vec<_>>>()?;
    explain(&gpu, 4 * GIB)
}

fn explain(gpu: &Allocator, bytes: usize) -> Result<String> {
    Ok(gpu.diagnose_request(bytes, Stream::DEFAULT)?.to_string())
}
