//! A CUDA graph with its own memory pool: addresses stay the same from replay to replay, buffers live across
//! replays, and the memory goes back when the graph is gone.
//!
//! `cargo run --release --example cuda_graph`
//!
//! On a GPU the graph runs; on the simulated device it is captured, and the memory is the same.

#[path = "../common/mod.rs"]
mod common;
mod gpu;

use std::error::Error;
use std::sync::Arc;

use common::{MIB, say_which, show};
use gpu::{CudaGpu, Gpu, SimGpu};
use gpucache::device::cuda::CudaDevice;
use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, Config};

const BYTES: usize = 64 * MIB;

fn main() -> Result<(), Box<dyn Error>> {
    match CudaDevice::new(0) {
        Ok(device) => {
            let device = Arc::new(device);
            run(Arc::<CudaDevice>::clone(&device), &CudaGpu::new(&device)?)
        }
        Err(why) => {
            println!("{why}");
            let device = SimDevice::new(80 << 30);
            run(Arc::new(device.clone()), &SimGpu::new(device))
        }
    }
}

fn run<G: Gpu>(device: Arc<dyn gpucache::device::Device>, gpu: &G) -> Result<(), Box<dyn Error>> {
    let allocator = Allocator::builder().device(device).config(Config::from_env()?).build()?;
    say_which(&allocator);
    let stream = gpu.stream();

    // Made before the capture, in the ordinary cache: the replays count in it.
    let counter = allocator.alloc_on(BYTES, stream)?;
    gpu.fill(counter.address(), BYTES, 0)?;

    let scope = allocator.begin_capture_pool(stream, None)?;
    gpu.begin_capture()?;
    let scratch = allocator.alloc_on(BYTES, stream)?;
    gpu.fill(scratch.address(), BYTES, 0)?;
    gpu.add_u32(scratch.address(), BYTES, 7)?;
    let output = allocator.alloc_on(BYTES, stream)?;
    gpu.copy(output.address(), scratch.address(), BYTES)?;
    let first = scratch.address();
    drop(scratch);
    // Within the capture freed memory serves again: the graph's kernels run in the order of the stream.
    let again = allocator.alloc_on(BYTES, stream)?;
    println!("scratch at {first:#x}, then at {:#x}; output at {:#x}", again.address(), output.address());
    gpu.add_u32(counter.address(), BYTES, 1)?;
    drop(again);
    let graph = gpu.end_capture()?;
    let graph = scope.end()?.keep_with(graph);
    show("captured", &allocator);

    for replay in 1..=3 {
        gpu.replay(&graph)?;
        // An ordinary request of the scratch's size: it cannot get the graph's memory, although that is idle.
        let ordinary = allocator.alloc_on(BYTES, stream)?;
        assert_ne!(ordinary.address(), first);
        if let (Some(count), Some(result)) =
            (gpu.read_u32(counter.address())?, gpu.read_u32(output.address())?)
        {
            println!("replay {replay}: counter {count}, output {result}");
            assert_eq!((count, result), (replay, 7));
        }
    }

    let report = allocator.empty_cache()?;
    show("cache emptied", &allocator);
    println!("  {} segments stay: the graph's two, and the counter's.", report.kept.len());

    drop(graph);
    drop(output);
    allocator.empty_cache()?;
    show("graph dropped, cache emptied", &allocator);
    assert_eq!(allocator.memory_reserved(), counter.len() as u64);
    Ok(())
}
