//! A real small training loop (cuBLAS, NVRTC kernels, AdamW) over three kinds of memory: time per step, peak memory.
//!
//! `cargo run --release --features cuda-examples --example training -- --alloc cuda|cudarc|gpucache` (needs a GPU,
//! NVRTC and cuBLAS). Run it once for each: peaks are of the process.

#[path = "../common/gpu.rs"]
mod gpu;
mod memory;
mod model;

mod common {
    pub(crate) use super::gpu;
}

use std::time::Instant;

use clap::{Parser, ValueEnum};
use common::gpu::{Gpu, free_bytes, gpu};
use gpucache::units::format_size;
use memory::{Cached, Cudarc, Driver, Failure, Memory};
use model::{Mlp, uniform};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// `cuMemAlloc` and `cuMemFree`
    Cuda,
    /// cudarc's `stream.alloc` (`cuMemAllocAsync`)
    Cudarc,
    /// this crate
    Gpucache,
}

#[derive(Parser)]
#[command(about = "Trains a small network on memory of three kinds")]
struct Options {
    /// Where memory comes from.
    #[arg(long, value_enum, default_value = "gpucache")]
    alloc: Kind,
    /// Steps that are timed.
    #[arg(long, default_value_t = 200)]
    steps: usize,
    /// Samples per step.
    #[arg(long, default_value_t = 256)]
    batch: usize,
    /// Let the number of samples change from step to step.
    #[arg(long)]
    ragged: bool,
    /// Width of the hidden layers.
    #[arg(long, default_value_t = 2048)]
    width: usize,
    /// Number of hidden layers.
    #[arg(long, default_value_t = 4)]
    depth: usize,
}

const FEATURES: usize = 256;
const CLASSES: usize = 10;
/// Steps before the clock starts; memory is sampled in them.
const WARM_UP: usize = 10;

fn main() -> Result<(), Failure> {
    let options = Options::parse();
    let Some(gpu) = gpu(true)? else { return Ok(()) };
    match options.alloc {
        Kind::Cuda => train(&gpu, &Driver(gpu.stream.clone()), &options)?,
        Kind::Cudarc => train(&gpu, &Cudarc(gpu.stream.clone()), &options)?,
        Kind::Gpucache => {
            train(&gpu, &Cached(gpu.allocator.clone(), gpu.stream.clone()), &options)?;
            println!(
                "gpucache: peak allocated {}, peak reserved {}, {} segments asked of the driver",
                format_size(gpu.allocator.max_memory_allocated()),
                format_size(gpu.allocator.max_memory_reserved()),
                gpu.allocator.memory_stats().num_device_alloc,
            );
        }
    }
    Ok(())
}

fn train<M: Memory>(gpu: &Gpu, memory: &M, options: &Options) -> Result<(), Failure> {
    let module = gpu.context.load_module(gpu.compile(include_str!("kernels.cu"))?)?;
    let mut sizes = vec![FEATURES];
    sizes.extend(std::iter::repeat_n(options.width, options.depth));
    sizes.push(CLASSES);
    let before = free_bytes()?;
    let mut least = before;
    let mut mlp = Mlp::new(memory, &gpu.stream, &module, &sizes)?;
    let mut data = Data { random: 7 };
    let batches: Vec<_> = (0..16).map(|_| data.batch(options.batch)).collect();
    let (mut first, mut last) = (0.0, 0.0);
    let mut started = Instant::now();
    for step in 0..WARM_UP + options.steps {
        if step == WARM_UP {
            gpu.stream.synchronize()?;
            started = Instant::now();
        }
        let rows =
            if options.ragged { data.between(options.batch / 2, options.batch) } else { options.batch };
        let (samples, labels) = &batches[step % batches.len()];
        let (samples, labels) = (&samples[..rows * FEATURES], &labels[..rows]);
        // Asking costs time, so it is done before the clock starts.
        let mut sample = || -> Result<(), Failure> {
            if step < WARM_UP {
                gpu.stream.synchronize()?;
                least = least.min(free_bytes()?);
            }
            Ok(())
        };
        let loss = mlp.step(samples, labels, &mut sample)?;
        if step == 0 || step + 1 == WARM_UP + options.steps {
            let losses = gpu.stream.clone_dtoh(&loss)?;
            last = losses.iter().sum::<f32>() / losses.len() as f32;
            first = if step == 0 { last } else { first };
        }
    }
    gpu.stream.synchronize()?;
    gpu.context.check_err()?;
    let time = started.elapsed().as_secs_f64() / options.steps as f64;
    println!(
        "{:?}: {:.3} ms per step, peak {} taken from the device, loss {first:.3} -> {last:.3}",
        options.alloc,
        time * 1e3,
        format_size((before - least) as u64),
    );
    if last >= first {
        return Err("the loss did not fall".into());
    }
    Ok(())
}

/// Samples whose label is the largest of their first features.
struct Data {
    random: u32,
}

impl Data {
    fn between(&mut self, low: usize, high: usize) -> usize {
        low + (uniform(&mut self.random).abs() * (high - low) as f32) as usize
    }

    fn batch(&mut self, rows: usize) -> (Vec<f32>, Vec<u32>) {
        let samples: Vec<f32> = (0..rows * FEATURES).map(|_| uniform(&mut self.random)).collect();
        let label = |row: &[f32]| {
            let best = row[..CLASSES].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            best.map_or(0, |(index, _)| index as u32)
        };
        let labels = samples.chunks(FEATURES).map(label).collect();
        (samples, labels)
    }
}
