//! One thing each: a graph, expandable segments, pinned copies, running out of memory.

use gpucache::cudarc::driver::sys;
use gpucache::device::{Device, Stream};
use gpucache::{Allocation, Allocator, Error};

use crate::gpu::{Gpu, MIB, is_fake, raw};
use crate::report::Finding;

const WORDS: u64 = MIB as u64 / 4;

fn expect(holds: bool, what: &str) -> Result<(), Box<dyn std::error::Error>> {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// A captured graph fills blocks of its pool; its replays write to the same places, and nobody else's.
pub(crate) fn graph(gpu: &Gpu, options: &str) -> Finding {
    // On a fake GPU the host does the kernels' work.
    let replays = if is_fake() { 3 } else { 200 };
    let allocator = gpu.allocator(options)?;
    let stream = gpu.stream()?;
    let own = raw(&stream);
    let count = allocator.alloc_zeros::<u32>(1, &gpu.device.context().default_stream())?;
    gpu.device.device_synchronize()?;

    let pool = allocator.graph_pool_id();
    allocator.begin_allocate_to_pool(pool, move |stream| stream == own)?;
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)?;
    let first = allocator.alloc_on(MIB, own)?;
    // SAFETY: the pool keeps the memory until it is released, after the graph is gone.
    unsafe { gpu.kernels.fill(&stream, first.address(), WORDS, 1) }?;
    let scratch = allocator.alloc_on(3 * MIB, own)?;
    let scratch_at = scratch.address();
    // SAFETY: as above.
    unsafe { gpu.kernels.fill(&stream, scratch_at, 3 * WORDS, 2) }?;
    drop(scratch);
    let second = allocator.alloc_on(3 * MIB, own)?;
    // SAFETY: as above.
    unsafe { gpu.kernels.fill(&stream, second.address(), 3 * WORDS, 3) }?;
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.ok_or("the allocations have spoilt the capture")?;
    allocator.end_allocate_to_pool(pool)?;
    expect(second.address() == scratch_at, "memory freed in the capture was not used again by it")?;

    for round in 0..replays {
        graph.launch()?;
        let other = allocator.alloc_on(3 * MIB, own)?;
        let inside = [&first, &second].iter().any(|b| b.address() == other.address());
        expect(!inside, "the graph's memory was handed out to others")?;
        // SAFETY: the blocks are live and freed in stream order.
        unsafe {
            gpu.kernels.fill(&stream, other.address(), 3 * WORDS, round + 10)?;
            gpu.kernels.count_other(&stream, first.address(), WORDS, 1, count.address())?;
            gpu.kernels.count_other(&stream, second.address(), 3 * WORDS, 3, count.address())?;
        }
    }
    expect(gpu.read_word(count.address())? == 0, "a replay's data was overwritten")?;
    drop((graph, first, second));
    allocator.release_pool(pool)?;
    drop(count);
    allocator.empty_cache()?;
    expect(allocator.memory_reserved() == 0, "the graph's memory did not go back")?;
    allocator.verify()?;
    Ok(format!("{replays} replays, addresses stable, data intact, all memory back"))
}

/// Growth in place: data stays, pages go back one by one, and all of them in the end.
pub(crate) fn expandable(gpu: &Gpu) -> Finding {
    if !gpu.device.properties().supports_virtual_memory {
        return Ok("this GPU has no virtual memory management".to_owned());
    }
    let allocator = gpu.allocator("expandable_segments:True")?;
    let stream = gpu.stream()?;
    let count = allocator.alloc_zeros::<u32>(1, &stream)?;
    let sizes = [30, 50, 10, 64].map(|mib| mib * MIB);
    let blocks = sizes.map(|bytes| allocator.alloc_on(bytes, raw(&stream)));
    let blocks = blocks.into_iter().collect::<Result<Vec<Allocation>, Error>>()?;
    for (block, pattern) in blocks.iter().zip(1..) {
        // SAFETY: the block is live until the end, and has these words.
        unsafe { gpu.kernels.fill(&stream, block.address(), block.len() as u64 / 4, pattern) }?;
    }
    let large =
        allocator.memory_snapshot().segments.into_iter().filter(|s| s.total_size > 2 * MIB as u64).count();
    expect(large == 1, "the blocks are not in one growing segment")?;
    let mut blocks: Vec<_> = blocks.into_iter().zip(1..).collect();
    drop(blocks.remove(1));
    let before = allocator.memory_reserved();
    allocator.empty_cache()?;
    let after = allocator.memory_reserved();
    expect(after < before, "no page of a hole in the middle was given back")?;
    for (block, pattern) in &blocks {
        // SAFETY: as above.
        unsafe {
            gpu.kernels.count_other(
                &stream,
                block.address(),
                block.len() as u64 / 4,
                *pattern,
                count.address(),
            )
        }?;
    }
    expect(gpu.read_word(count.address())? == 0, "data changed while pages came and went")?;
    drop((blocks, count));
    allocator.empty_cache()?;
    expect(allocator.memory_reserved() == 0, "pages are left")?;
    allocator.verify()?;
    Ok(format!(
        "grown to {} MiB, hole of {} MiB unmapped, data intact",
        before / MIB as u64,
        (before - after) / MIB as u64
    ))
}

/// Page-locked memory to a block and back, by work on two streams.
pub(crate) fn pinned(gpu: &Gpu) -> Finding {
    const ELEMENTS: u32 = MIB as u32;
    const ROUNDS: u32 = 20;
    let allocator = gpu.allocator("")?;
    let host = allocator.pinned();
    let (up, down) = (gpu.stream()?, gpu.stream()?);
    for round in 0..ROUNDS {
        let values: Vec<u32> = (round..round + ELEMENTS).collect();
        let input = host.alloc_from_slice(&values)?;
        let mut output = host.alloc_zeroed::<u32>(values.len())?;
        let buffer = allocator.clone_htod(&input, &up)?;
        buffer.copy_to_host_on(&mut output, &down)?;
        drop((buffer, input));
        down.synchronize()?;
        expect(*output == *values, "the copy came back different")?;
    }
    let allocated = host.host_memory_stats().num_host_alloc();
    expect(allocated < i64::from(ROUNDS), "pinned memory was not used again")?;
    allocator.verify()?;
    host.host_empty_cache()?;
    Ok(format!(
        "{ROUNDS} times 4 MiB up on one stream and down on another, {allocated} pinned blocks from the driver"
    ))
}

/// Takes blocks until there is no memory left.
fn exhaust(
    allocator: &Allocator,
    bytes: usize,
) -> Result<(Vec<Allocation>, String), Box<dyn std::error::Error>> {
    let mut blocks = Vec::new();
    loop {
        match allocator.alloc_on(bytes, Stream::DEFAULT) {
            Ok(block) => blocks.push(block),
            Err(error @ Error::OutOfMemory(_)) => return Ok((blocks, error.to_string())),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs out at a cap, says so in PyTorch's words, and goes on afterwards.
pub(crate) fn capped(gpu: &Gpu, options: &str) -> Finding {
    let allocator = gpu.allocator(options)?;
    let allowed = gpu.total() / 8;
    allocator.set_per_process_memory_fraction(0.125)?;
    let (blocks, text) = exhaust(&allocator, 24 * MIB)?;
    expect(allocator.memory_reserved() <= allowed, "more is reserved than the cap allows")?;
    expect(allocator.memory_reserved() + 24 * MIB as u64 > allowed, "memory was refused below the cap")?;
    expect(text.contains("CUDA out of memory. Tried to allocate 24.00 MiB"), &text)?;
    allocator.verify()?;
    let count = blocks.len();
    drop(blocks);
    drop(allocator.alloc(48 * MIB)?);
    allocator.verify()?;
    Ok(format!("{count} blocks of 24 MiB below a cap of {} MiB", allowed / MIB as u64))
}

/// Runs out for real; the driver has everything back afterwards.
pub(crate) fn exhausted(gpu: &Gpu, options: &str) -> Finding {
    const SLACK: u64 = 64 << 20;
    let before = gpu.free_bytes()?;
    let allocator = gpu.allocator(options)?;
    let chunk = (before as usize / 40 / MIB).max(1) * MIB;
    let (blocks, text) = exhaust(&allocator, chunk)?;
    let left = gpu.free_bytes()?;
    expect(text.contains("CUDA out of memory. Tried to allocate"), &text)?;
    expect(left < chunk as u64 + SLACK, "memory was refused that the driver has")?;
    allocator.verify()?;
    let count = blocks.len();
    drop(blocks);
    // One large request takes back what is cached in small pieces.
    drop(allocator.alloc(chunk * count / 2)?);
    allocator.empty_cache()?;
    let after = gpu.free_bytes()?;
    expect(after.abs_diff(before) <= SLACK, &format!("{before} bytes were free before, {after} are after"))?;
    allocator.verify()?;
    Ok(format!("{count} blocks of {} MiB, {} MiB left then", chunk / MIB, left / MIB as u64))
}
