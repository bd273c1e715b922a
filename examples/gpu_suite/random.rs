//! Random requests, and the allocator's own check of all its books after every few of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpucache::cudarc::driver::CudaStream;
use gpucache::{Allocation, Allocator};

use crate::gpu::{Gpu, MIB, Random, raw};
use crate::report::Finding;

const STEPS: usize = 4000;
const STEPS_PER_VERIFY: usize = 50;

/// What is live, by address.
#[derive(Default)]
struct Live {
    blocks: Vec<Allocation>,
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Live {
    fn add(&mut self, block: Allocation) -> Result<(), String> {
        let (start, end) = (block.address(), block.address() + block.len() as u64);
        let before = self.ranges.range(..end).next_back();
        if let Some((other, _)) = before.filter(|(_, other_end)| **other_end > start) {
            return Err(format!("{start:#x} was handed out inside the live block at {other:#x}"));
        }
        self.ranges.insert(start, end);
        self.bytes += block.len() as u64;
        self.blocks.push(block);
        Ok(())
    }

    fn take(&mut self, random: &mut Random) -> Option<Allocation> {
        if self.blocks.is_empty() {
            return None;
        }
        let block = self.blocks.swap_remove(random.below(self.blocks.len()));
        self.ranges.remove(&block.address());
        self.bytes -= block.len() as u64;
        Some(block)
    }
}

/// One run under one configuration.
pub(crate) fn run(gpu: &Gpu, options: &str, seed: u64) -> Finding {
    let allocator = gpu.allocator(options)?;
    let budget = gpu.free_bytes()? / 4;
    let streams = [gpu.stream()?, gpu.stream()?, gpu.device.context().default_stream()];
    let pool = allocator.create_pool();
    let (mut live, mut random) = (Live::default(), Random(seed));
    let mut refused = 0_u64;
    for step in 0..STEPS {
        match random.below(100) {
            0..50 if live.bytes < budget => {
                let bytes = random.size((budget / 8).min(64 * MIB as u64) as usize);
                let stream = raw(&streams[random.below(3)]);
                let in_pool = random.below(10) == 0;
                let asked = if in_pool {
                    pool.scope(|| allocator.alloc_on(bytes, stream))?
                } else {
                    allocator.alloc_on(bytes, stream)
                };
                match asked {
                    Ok(block) => live.add(block)?,
                    Err(error) if error.is_out_of_memory() => refused += 1,
                    Err(error) => return Err(error.into()),
                }
            }
            0..85 => drop(live.take(&mut random)),
            85..95 => use_elsewhere(&mut live, &mut random, &streams),
            95..97 => drop(allocator.empty_cache()?),
            97 => cap(&allocator, &mut random, budget, gpu.total())?,
            _ => allocator.set_per_process_memory_fraction(1.0)?,
        }
        if step % STEPS_PER_VERIFY == 0 {
            allocator.verify()?;
        }
    }
    finish(&allocator, live, refused)
}

/// Frees a block that another stream is still said to use.
fn use_elsewhere(live: &mut Live, random: &mut Random, streams: &[Arc<CudaStream>; 3]) {
    if let Some(block) = live.take(random) {
        block.record_stream(raw(&streams[random.below(3)]));
    }
}

fn cap(allocator: &Allocator, random: &mut Random, budget: u64, total: u64) -> gpucache::Result<()> {
    let allowed = budget / 4 + random.next() % budget;
    allocator.set_per_process_memory_fraction((allowed as f64 / total as f64).min(1.0))
}

fn finish(allocator: &Allocator, live: Live, refused: u64) -> Finding {
    drop(live);
    allocator.verify()?;
    let stats = allocator.memory_stats();
    if stats.active_bytes.all.current > 0 {
        // Frees that wait for other streams complete with the next call.
        allocator.empty_cache()?;
    }
    let left = allocator.memory_allocated();
    if left > 0 {
        return Err(format!("{left} bytes are allocated after the last free").into());
    }
    allocator.verify()?;
    Ok(format!(
        "{STEPS} steps, {} allocations, {refused} refused, {} driver allocations, peak {} MiB",
        stats.allocation.all.allocated,
        stats.num_device_alloc,
        stats.reserved_bytes.all.peak as u64 / MIB as u64
    ))
}
