//! Copies that overlap with kernels: three streams and page-locked host memory.
//!
//! `cargo run --release --features cuda-examples --example streams` (needs a GPU and NVRTC; without, it shows on a
//! simulated one which blocks are kept back)

mod common {
    pub(crate) mod gpu;
}

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::gpu::{Gpu, elements, gpu};
use gpucache::cudarc::driver::{CudaFunction, CudaStream, PushKernelArg};
use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, PinnedBuffer};

const SOURCE: &str = r#"
extern "C" __global__ void work(float *x, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    for (int k = 0; k < 4000; k++) v = v * 0.999f + 0.001f;
    x[i] = v;
}"#;

const CHUNK: usize = 1 << 23;
const CHUNKS: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(gpu) = gpu(false)? else { return Ok(simulated()?) };
    let kernel = gpu.kernel(SOURCE, "work")?;
    let pinned = gpu.allocator.pinned();
    let input = pinned.alloc_from_slice(&vec![3.0_f32; CHUNK])?;
    let mut output = pinned.alloc_zeroed::<f32>(CHUNK)?;

    let (copy_in, copy_out) = (gpu.context.new_stream()?, gpu.context.new_stream()?);
    let one = [&gpu.stream, &gpu.stream, &gpu.stream];
    let three = [&copy_in, &gpu.stream, &copy_out];
    for (name, streams) in [("warm-up", one), ("one stream", one), ("three streams", three)] {
        let time = pipeline(&gpu, &kernel, streams, &input, &mut output)?;
        println!("{name:<14} {:>8.2} ms for {CHUNKS} chunks", time.as_secs_f64() * 1e3);
    }
    let value = output[CHUNK - 1];
    println!("last element {value} (1.0 to 1.1 expected)");
    gpu.allocator.verify()?;
    print!("{}", gpu.allocator.memory_summary(true));
    Ok(())
}

/// Copies each chunk in, works on it, and copies it out, on three streams that may be one.
fn pipeline(
    gpu: &Gpu,
    kernel: &CudaFunction,
    [copy_in, compute, copy_out]: [&Arc<CudaStream>; 3],
    input: &PinnedBuffer<f32>,
    output: &mut PinnedBuffer<f32>,
) -> Result<Duration, Box<dyn Error>> {
    let count = CHUNK as u64;
    let started = Instant::now();
    for _ in 0..CHUNKS {
        // Queued behind earlier chunks on its own stream only. The other two streams wait for what they need, and the
        // drop at the end of the round leaves the block to them: nothing is waited for here.
        // SAFETY: the copy fills it, and nobody writes to `input`.
        let mut chunk = unsafe {
            let mut chunk = gpu.allocator.alloc_uninit(CHUNK, copy_in)?;
            chunk.copy_from_pinned(input, copy_in)?;
            chunk
        };
        {
            let argument = chunk.on_mut(compute);
            let mut launch = compute.launch_builder(kernel);
            launch.arg(&argument).arg(&count);
            // SAFETY: the arguments are the kernel's, and it stays within the chunk.
            unsafe { launch.launch(elements(CHUNK)) }?;
        }
        // SAFETY: `output` is looked at only when all streams are done.
        unsafe { chunk.copy_to_pinned(output, copy_out) }?;
    }
    for stream in [copy_in, compute, copy_out] {
        stream.synchronize()?;
    }
    Ok(started.elapsed())
}

fn simulated() -> gpucache::Result<()> {
    let sim = SimDevice::new(8 << 30);
    let (copy, compute) = (sim.create_stream(), sim.create_stream());
    let allocator = Allocator::simulated(sim.clone());
    sim.hold(compute);
    for round in 1..=3 {
        let chunk = allocator.typed::<f32>(CHUNK, copy)?;
        println!("round {round}: chunk at {:#x}", chunk.address());
        chunk.record_stream(compute);
    }
    sim.release(compute);
    let chunk = allocator.typed::<f32>(CHUNK, copy)?;
    println!("the compute stream is done: chunk at {:#x} again", chunk.address());
    Ok(())
}
