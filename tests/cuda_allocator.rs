//! The allocator over a real driver or the fake one (`.ci/fake-cuda.sh`).
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Arc;

use cudarc::driver::{CudaStream, sys};
use fake::driver::{copy_in, copy_out, driver, free_bytes, raw};
use fake::fake;
use gpucache::device::cuda::CudaDevice;
use gpucache::device::{Device, Stream};
use gpucache::{Allocation, Allocator, Config, Error, cudarc};

const MIB: usize = 1 << 20;

fn allocator(device: &Arc<CudaDevice>, options: &str) -> Allocator {
    let device: Arc<dyn Device> = Arc::<CudaDevice>::clone(device);
    Allocator::builder().device(device).config(Config::parse(options).unwrap()).build().unwrap()
}

/// Two small blocks share a segment, their data survives, and everything goes back.
fn round_trip(options: &str) {
    let Some((driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let before = free_bytes(&device);
    let allocator = allocator(&device, options);
    let small = [allocator.alloc(1000).unwrap(), allocator.alloc(1000).unwrap()];
    let large = allocator.alloc(30 * MIB).unwrap();
    assert_eq!(small[1].address() - small[0].address(), 1024);
    for (index, block) in small.iter().chain([&large]).enumerate() {
        copy_in(&device, block.address(), &vec![index as u8; block.len()]);
    }
    for (index, block) in small.iter().chain([&large]).enumerate() {
        assert_eq!(copy_out(&device, block.address(), block.len()), vec![index as u8; block.len()]);
    }
    allocator.verify().unwrap();
    assert!(free_bytes(&device) <= before - allocator.memory_reserved());

    drop((small, large));
    assert!(allocator.memory_reserved() > 0, "freed memory is kept");
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 0);
    driver.assert_all_back(&device, before);
    allocator.verify().unwrap();
}

#[test]
fn blocks_hold_their_data_and_go_back() {
    round_trip("");
}

#[test]
fn expandable_blocks_hold_their_data_and_go_back() {
    round_trip("expandable_segments:True");
}

#[test]
fn the_last_owner_may_be_on_any_thread() {
    let Some((driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let before = free_bytes(&device);
    for options in ["", "expandable_segments:True"] {
        let allocator = allocator(&device, options);
        let block = allocator.alloc(3 * MIB).unwrap();
        drop(allocator);
        std::thread::spawn(move || drop(block)).join().unwrap();
        driver.assert_all_back(&device, before);
    }
}

#[test]
fn a_request_beyond_the_device_is_refused_with_the_figures() {
    let Some((_driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let total = device.mem_get_info().unwrap().total;
    for options in ["", "expandable_segments:True"] {
        let allocator = allocator(&device, options);
        let cached = allocator.alloc(30 * MIB).unwrap();
        drop(cached);
        let error = allocator.alloc(total as usize + MIB).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(_)), "{error:?}");
        assert!(error.to_string().contains("CUDA out of memory. Tried to allocate"), "{error}");
        assert_eq!(allocator.memory_reserved(), 0, "what was cached was given back for it");
        allocator.verify().unwrap();
        drop(allocator.alloc(MIB).unwrap());
    }
}

#[test]
fn a_capture_allocates_from_its_pool() {
    let Some((_driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let allocator = allocator(&device, "");
    let stream = device.context().new_stream().unwrap();
    let pool = allocator.graph_pool_id();
    let own = raw(&stream);
    allocator.begin_allocate_to_pool(pool, move |stream| stream == own).unwrap();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let block = allocator.alloc_on(3 * MIB, own).unwrap();
    // SAFETY: the pool keeps the memory until it is released below, after the graph is gone.
    unsafe { cudarc::driver::result::memset_d8_async(block.address(), 9, 16, stream.cu_stream()) }.unwrap();
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).unwrap().expect("the allocation has spoilt the capture");
    allocator.end_allocate_to_pool(pool).unwrap();

    graph.launch().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(copy_out(&device, block.address(), 16), [9; 16]);
    drop(graph);
    drop(block);
    allocator.release_pool(pool).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 0);
    allocator.verify().unwrap();
}

const CAPTURE: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const FLAGS: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

fn fill(block: &Allocation, value: u8, stream: &CudaStream) {
    // SAFETY: the tests keep the memory until the work is done, also that of replays.
    unsafe { cudarc::driver::result::memset_d8_async(block.address(), value, 16, stream.cu_stream()) }
        .unwrap();
}

#[test]
fn a_graph_holds_its_pool_over_several_streams() {
    let Some((driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let before = free_bytes(&device);
    for options in ["", "expandable_segments:True"] {
        let allocator = allocator(&device, options);
        let [stream, side, outside] = [0; 3].map(|_| device.context().new_stream().unwrap());
        let scope = allocator.begin_capture_pool(raw(&stream), None).unwrap();
        stream.begin_capture(CAPTURE).unwrap();
        side.join(&stream).unwrap();
        let mine = allocator.alloc_on(3 * MIB, raw(&stream)).unwrap();
        let sides = allocator.alloc_on(3 * MIB, raw(&side)).unwrap();
        let other = allocator.alloc_on(3 * MIB, raw(&outside)).unwrap();
        fill(&mine, 9, &stream);
        fill(&sides, 8, &side);
        stream.join(&side).unwrap();
        let graph = stream.end_capture(FLAGS).unwrap().expect("the allocations have spoilt the capture");
        let graph = scope.end().unwrap().keep_with(graph);
        let id = graph.pool().id();
        assert!(allocator.check_pool_live_allocations(id, &[mine.address(), sides.address()]).unwrap());

        graph.launch().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(copy_out(&device, mine.address(), 16), [9; 16]);
        assert_eq!(copy_out(&device, sides.address(), 16), [8; 16]);
        drop((mine, sides, other));
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.memory_reserved(), 2 * 20 * MIB as u64, "a replay may come");
        drop(graph);
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.memory_reserved(), 0);
        drop(allocator);
        driver.assert_all_back(&device, before);
    }
}

#[test]
fn a_block_comes_back_within_a_capture_once_its_uses_are_joined() {
    let Some((_driver, device)) = driver() else { return };
    let device = Arc::new(device);
    let allocator = allocator(&device, "graph_capture_record_stream_reuse:True");
    let [stream, side] = [0; 2].map(|_| device.context().new_stream().unwrap());
    let scope = allocator.begin_capture_pool(raw(&stream), None).unwrap();
    stream.begin_capture(CAPTURE).unwrap();
    let block = allocator.alloc_on(3 * MIB, raw(&stream)).unwrap();
    let address = block.address();
    fill(&block, 1, &stream);
    side.join(&stream).unwrap();
    fill(&block, 2, &side);
    block.record_stream(raw(&side));
    drop(block);
    let early = allocator.alloc_on(3 * MIB, raw(&stream)).unwrap();
    assert_ne!(early.address(), address, "the side's work may run at the same time");
    stream.join(&side).unwrap();
    let late = allocator.alloc_on(3 * MIB, raw(&stream)).unwrap();
    assert_eq!(late.address(), address, "whatever the stream does next comes after it");
    fill(&late, 3, &stream);
    let graph = stream.end_capture(FLAGS).unwrap().expect("the allocator has spoilt the capture");
    let graph = scope.end().unwrap().keep_with(graph);
    graph.launch().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(copy_out(&device, address, 16), [3; 16]);
    drop(graph);
    allocator.verify().unwrap();
}

#[test]
fn a_block_waits_for_the_other_streams_work() {
    let Some(fake) = fake() else { return };
    let device = Arc::new(CudaDevice::new(0).unwrap());
    let allocator = allocator(&device, "");
    let side = device.context().new_stream().unwrap();
    let block = allocator.alloc(3 * MIB).unwrap();
    let address = block.address();

    fake.hold(raw(&side).raw(), true);
    // SAFETY: the memory is that large, and is kept until the work is done: that is what is tested.
    unsafe { cudarc::driver::result::memset_d8_async(address, 1, 64, side.cu_stream()) }.unwrap();
    block.record_stream(raw(&side));
    drop(block);
    let other = allocator.alloc(3 * MIB).unwrap();
    assert_ne!(other.address(), address, "handed out while another stream still uses it");
    fake.hold(raw(&side).raw(), false);
    let again = allocator.alloc(3 * MIB).unwrap();
    assert_eq!(again.address(), address, "kept back after the other stream is done");
    drop((other, again, allocator, side));
    fake.assert_clean();
}

#[test]
fn segments_are_asked_for_once() {
    let Some(fake) = fake() else { return };
    let device = Arc::new(CudaDevice::new(0).unwrap());
    let allocator = allocator(&device, "");
    drop(allocator.alloc(3 * MIB).unwrap());
    let before = fake.report().calls;
    for _ in 0..100 {
        drop(allocator.alloc(3 * MIB).unwrap());
    }
    assert_eq!(fake.report().calls, before, "a hit needs no driver call");
}

#[test]
fn a_drop_while_the_driver_shuts_down_is_quiet() {
    let Some(fake) = fake() else { return };
    for options in ["", "expandable_segments:True"] {
        let device = Arc::new(CudaDevice::new(0).unwrap());
        let allocator = allocator(&device, options);
        let block = allocator.alloc_on(3 * MIB, Stream::DEFAULT).unwrap();
        fake.fail("*", 0, 4);
        drop(block);
        drop(allocator);
        fake.fail("*", 0, 0);
        fake.forget_memory();
    }
    assert_eq!(fake.violations(), "");
}
