//! Threads and streams that fill blocks by kernel, use them on other streams, free them early, and check by kernel
//! that nobody else wrote to them.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpucache::cudarc::driver::CudaStream;
use gpucache::{Allocation, Allocator, DeviceBuffer};

use crate::gpu::{Gpu, MIB, Random, is_fake, raw};
use crate::report::Finding;

const THREADS: usize = 6;
const VERIFY_EVERY: Duration = Duration::from_secs(5);
/// The most blocks that a thread keeps.
const KEEP: usize = 64;

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Default)]
struct Counts {
    allocations: AtomicU64,
    checks: AtomicU64,
    across_streams: AtomicU64,
    refused: AtomicU64,
    mismatches: AtomicU64,
}

/// A block with its pattern: by hand, or as a buffer that looks after its streams itself.
enum Memory {
    Plain(Allocation),
    Buffer(DeviceBuffer<u32>),
}

struct Block {
    memory: Memory,
    words: u64,
    pattern: u32,
    home: usize,
}

struct Worker<'a> {
    gpu: &'a Gpu,
    allocator: &'a Allocator,
    counts: &'a Counts,
    /// Two of its own, and one that all threads share.
    streams: [Arc<CudaStream>; 3],
    random: Random,
    blocks: Vec<Block>,
    largest: usize,
    /// A word on the device that counts mismatches.
    count: Allocation,
}

/// Runs for that long under one configuration.
pub(crate) fn run(gpu: &Gpu, options: &str, time: Duration) -> Finding {
    let allocator = gpu.allocator(options)?;
    let budget = (gpu.free_bytes()? / 2).min(24 << 30);
    // Frees that wait for streams pile up; beyond the cap requests wait for them.
    allocator.set_per_process_memory_fraction((budget as f64 / gpu.total() as f64).min(1.0))?;
    let counts = Counts::default();
    // Kept until the cache is empty: unmapping expandable segments waits for their stream. The last is for all threads.
    let streams = (0..=2 * THREADS).map(|_| gpu.stream()).collect::<Result<Vec<_>, _>>()?;
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| -> Result<(), Failure> {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (allocator, counts, stop) = (&allocator, &counts, &stop);
                let own = [2 * thread, 2 * thread + 1, 2 * THREADS].map(|k| Arc::clone(&streams[k]));
                scope.spawn(move || {
                    let outcome =
                        Worker::new(gpu, allocator, counts, own, thread, budget).and_then(|w| w.run(stop));
                    stop.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    outcome
                })
            })
            .collect();
        let watched = watch(&allocator, time, &stop);
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().map_err(|_| "a thread panicked")??;
        }
        watched
    });
    outcome.map_err(|error| error.to_string())?;
    finish(&allocator, &counts)
}

/// Checks the books while the threads work.
fn watch(allocator: &Allocator, time: Duration, stop: &AtomicBool) -> Result<(), Failure> {
    let started = Instant::now();
    while started.elapsed() < time && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(VERIFY_EVERY.min(time.saturating_sub(started.elapsed())));
        allocator.verify()?;
    }
    Ok(())
}

fn finish(allocator: &Allocator, counts: &Counts) -> Finding {
    let mismatches = counts.mismatches.load(Ordering::Relaxed);
    allocator.empty_cache()?;
    allocator.verify()?;
    let left = allocator.memory_reserved();
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let text = format!(
        "{THREADS} threads, {} allocations, {} blocks checked by kernels, {} of them on another stream, \
         {mismatches} wrong words, {} requests refused at the cap, peak {} MiB reserved, {left} bytes left",
        of(&counts.allocations),
        of(&counts.checks),
        of(&counts.across_streams),
        of(&counts.refused),
        allocator.max_memory_reserved() / MIB as u64
    );
    if mismatches > 0 || left > 0 || of(&counts.checks) == 0 { Err(text.into()) } else { Ok(text) }
}

impl<'a> Worker<'a> {
    fn new(
        gpu: &'a Gpu,
        allocator: &'a Allocator,
        counts: &'a Counts,
        streams: [Arc<CudaStream>; 3],
        thread: usize,
        budget: u64,
    ) -> Result<Self, Failure> {
        let context = gpu.device.context();
        context.bind_to_thread()?;
        let mut count = allocator.alloc_zeros::<u32>(1, &context.default_stream())?;
        count.fill_zeros()?;
        let (count, stream) = count.into_typed();
        stream.synchronize()?;
        // On a fake GPU the host's cores do the kernels' work.
        let most = if is_fake() { MIB / 4 } else { 32 * MIB };
        Ok(Worker {
            gpu,
            allocator,
            counts,
            streams,
            random: Random(thread as u64 + 1),
            blocks: Vec::new(),
            largest: most.min(budget as usize / THREADS / KEEP * 4),
            count: count.into_allocation(),
        })
    }

    fn run(mut self, stop: &AtomicBool) -> Result<(), Failure> {
        while !stop.load(Ordering::Relaxed) {
            match self.random.below(1000) {
                0..500 if self.blocks.len() < KEEP => self.allocate()?,
                0..997 => self.check_and_free()?,
                _ => drop(self.allocator.empty_cache()?),
            }
        }
        while !self.blocks.is_empty() {
            self.check_and_free()?;
        }
        for stream in &self.streams {
            stream.synchronize()?;
        }
        let wrong = self.gpu.read_word(self.count.address()).map_err(|error| error.to_string())?;
        self.counts.mismatches.fetch_add(u64::from(wrong), Ordering::Relaxed);
        Ok(())
    }

    fn allocate(&mut self) -> Result<(), Failure> {
        let (words, home) =
            (self.random.size(self.largest) as u64 / 4, self.random.below(self.streams.len()));
        let stream = &self.streams[home];
        let asked = if self.random.below(2) == 0 {
            self.allocator.alloc_on(words as usize * 4, raw(stream)).map(Memory::Plain)
        } else {
            // SAFETY: filled next.
            unsafe { self.allocator.alloc_uninit(words as usize, stream) }.map(Memory::Buffer)
        };
        let memory = match asked {
            Err(error) if error.is_out_of_memory() => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                return self.check_and_free();
            }
            other => other?,
        };
        let pattern = self.random.next() as u32;
        // SAFETY: the memory has these words, and goes back only by `check_and_free`, in stream order.
        unsafe { self.gpu.kernels.fill(stream, memory.address(), words, pattern) }?;
        self.counts.allocations.fetch_add(1, Ordering::Relaxed);
        self.blocks.push(Block { memory, words, pattern, home });
        Ok(())
    }

    /// Queues the check of a block on some stream, and frees it at once: the check runs later.
    fn check_and_free(&mut self) -> Result<(), Failure> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let block = self.blocks.swap_remove(self.random.below(self.blocks.len()));
        let (home, user) = (&self.streams[block.home], &self.streams[self.random.below(self.streams.len())]);
        let elsewhere = raw(home) != raw(user);
        let address = block.memory.address();
        let check = || {
            let kernels = &self.gpu.kernels;
            // SAFETY: both are live until the kernel is done: the block because its other stream is recorded.
            unsafe { kernels.count_other(user, address, block.words, block.pattern, self.count.address()) }
        };
        match &block.memory {
            Memory::Plain(allocation) => {
                if elsewhere {
                    user.join(home)?;
                }
                check()?;
                allocation.record_stream(raw(user));
            }
            Memory::Buffer(buffer) => {
                let _used = buffer.on(user);
                check()?;
            }
        }
        self.counts.checks.fetch_add(1, Ordering::Relaxed);
        self.counts.across_streams.fetch_add(u64::from(elsewhere), Ordering::Relaxed);
        Ok(())
    }
}

impl Memory {
    fn address(&self) -> u64 {
        match self {
            Memory::Plain(allocation) => allocation.address(),
            Memory::Buffer(buffer) => buffer.address(),
        }
    }
}
