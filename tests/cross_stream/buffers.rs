//! `DeviceBuffer` as cudarc's calls and its owners see it.

use std::sync::Arc;

use gpucache::buffer::{check_streams, take_stream_misuses};
use gpucache::cudarc::driver::{CudaSlice, DevicePtr, DeviceSlice, PushKernelArg};
use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, DeviceBuffer, Error};

use super::cuda::{Gpu, LEN, assert_all, elements};

fn is_shared<T: Send + Sync>() {}

#[test]
fn buffers_may_cross_threads() {
    is_shared::<DeviceBuffer<f32>>();
    let Some(gpu) = Gpu::new() else { return };
    let allocator = gpu.allocator("");
    let buffer = allocator.clone_htod(&vec![3_u32; LEN], &gpu.a).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_all(&gpu.b.clone_dtoh(&buffer).unwrap(), 3, "spoilt"));
        scope.spawn(|| assert_all(&buffer.to_vec().unwrap(), 3, "spoilt"));
    });
    std::thread::spawn(move || drop(buffer)).join().unwrap();
    assert_eq!(allocator.memory_allocated(), 0);
    allocator.verify().unwrap();
}

#[test]
fn copies_and_views() {
    let Some(gpu) = Gpu::new() else { return };
    let allocator = gpu.allocator("");
    let source: Vec<u32> = (0..1000).collect();
    let mut buffer = allocator.clone_htod(&source, &gpu.a).unwrap();
    assert_eq!((buffer.len(), buffer.num_bytes()), (1000, 4000));
    let part = buffer.slice(10..20).unwrap();
    assert_eq!(part.to_vec().unwrap(), source[10..20]);
    assert_eq!(part.slice(5..).unwrap().to_vec().unwrap(), source[15..20]);
    assert_eq!(part.stream().cu_stream(), gpu.a.cu_stream());
    assert!(buffer.try_slice(990..1001).is_none());
    let error = buffer.slice(990..1001).unwrap_err();
    assert!(matches!(&error, Error::Buffer(text) if text.contains("1000")), "{error}");

    let twin = allocator.clone_dtod(&buffer.slice(..500).unwrap(), &gpu.b).unwrap();
    assert_eq!(twin.to_vec().unwrap(), source[..500]);
    let (mut front, mut back) = buffer.split_at_mut(500).unwrap();
    back.copy_from(&front).unwrap();
    front.fill_zeros().unwrap();
    let mut expected = vec![0; 500];
    expected.extend(&source[..500]);
    assert_eq!(buffer.to_vec().unwrap(), expected);
    assert!(matches!(buffer.copy_from(&twin), Err(Error::Buffer(_))));
    buffer.slice_mut(..500).unwrap().copy_from(&twin).unwrap();
    let mut host = vec![0; 1000];
    buffer.copy_to_host(&mut host).unwrap();
    assert_eq!(host[..500], host[500..]);

    let empty = allocator.alloc_zeros::<u64>(0, &gpu.a).unwrap();
    assert_eq!((empty.address(), empty.to_vec().unwrap()), (0, vec![]));
    assert!(matches!(allocator.alloc_zeros::<u64>(usize::MAX, &gpu.a), Err(Error::TooLarge { .. })));
}

#[test]
fn copies_of_pinned_memory_do_not_wait() {
    let Some(gpu) = Gpu::new() else { return };
    let allocator = gpu.allocator("");
    let pinned = allocator.pinned();
    let source = pinned.alloc_from_slice(&vec![6_u32; LEN]).unwrap();
    let mut target = pinned.alloc_zeroed::<u32>(LEN).unwrap();
    let mut buffer = allocator.alloc_zeros::<u32>(LEN, &gpu.a).unwrap();
    gpu.slow_down(&gpu.b);
    // SAFETY: both are left alone until the streams are done.
    unsafe {
        buffer.copy_from_pinned(&source, &gpu.b).unwrap();
        buffer.copy_to_pinned(&mut target, &gpu.a).unwrap();
    }
    drop((buffer, source));
    gpu.finish();
    assert_all(&target[..], 6, "spoilt");
    let short = allocator.alloc_zeros::<u32>(3, &gpu.a).unwrap();
    // SAFETY: refused.
    assert!(matches!(unsafe { short.copy_to_pinned(&mut target, &gpu.a) }, Err(Error::Buffer(_))));
    let copy = allocator.clone_htod(&target, &gpu.b).unwrap();
    assert_all(&copy.to_vec().unwrap(), 6, "spoilt");
}

#[test]
fn uses_by_two_streams_keep_their_order() {
    let Some(gpu) = Gpu::new() else { return };
    let allocator = gpu.allocator("");
    let mut buffer = allocator.alloc_zeros::<u32>(LEN, &gpu.a).unwrap();
    gpu.fill(&mut buffer, 1);
    gpu.add_on(&mut buffer, &gpu.b, 1);
    gpu.b.memset_zeros(&mut allocator.alloc_zeros::<u32>(LEN, &gpu.a).unwrap()).unwrap();
    // Home waits for the other stream's kernel, which is late, without being told.
    gpu.slow_down(&gpu.b);
    gpu.add_on(&mut buffer, &gpu.b, 1);
    let copy = allocator.clone_dtod(&buffer, &gpu.a).unwrap();
    gpu.finish();
    assert_all(&copy.to_vec().unwrap(), 3, "spoilt");
}

#[test]
fn a_home_stream_alone_costs_no_events() {
    let Some(gpu) = Gpu::new() else { return };
    let Some(fake) = gpu.driver.fake() else { return };
    let allocator = gpu.allocator("");
    drop(allocator.alloc_zeros::<u32>(LEN, &gpu.a).unwrap());
    let events = fake.report().events;
    let calls = fake.report().calls;
    let buffer = allocator.alloc_zeros::<u32>(LEN, &gpu.a).unwrap();
    drop(buffer.device_ptr(&gpu.a));
    drop(buffer);
    assert_eq!(fake.report().events, events);
    assert!(fake.report().calls <= calls + 6, "only the memset and context calls");
}

#[test]
fn the_slice_of_cudarc_does_not_free_the_block() {
    let Some(gpu) = Gpu::new() else { return };
    let allocator = gpu.allocator("");
    let buffer = allocator.clone_htod(&vec![5_u32; LEN], &gpu.a).unwrap();
    {
        let whole = buffer.as_cuda_slice();
        let slice: &CudaSlice<u32> = &whole;
        assert_all(&gpu.b.clone_dtoh(slice).unwrap(), 5, "spoilt");
        assert_eq!(slice.slice(1..3).len(), 2);
    }
    assert_all(&buffer.to_vec().unwrap(), 5, "spoilt");
    drop(buffer);
    allocator.verify().unwrap();
}

#[test]
fn parts_make_a_buffer_again() {
    let Some(gpu) = Gpu::new() else { return };
    let allocator = gpu.allocator("");
    let mut buffer = allocator.clone_htod(&[1_u32, 2, 3], &gpu.a).unwrap();
    gpu.add_on(&mut buffer, &gpu.b, 1);
    let (parts, len, stream) = buffer.into_parts();
    assert_eq!(allocator.memory_allocated(), 512);
    // SAFETY: the parts are used once; the elements were written.
    let buffer = unsafe { DeviceBuffer::<u32>::from_parts(parts, len, stream) }.unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [2, 3, 4]);
    let (parts, _, _) = buffer.into_parts();
    // SAFETY: as above.
    let error = unsafe { DeviceBuffer::<u32>::from_parts(parts, 1000, Arc::clone(&gpu.a)) }.unwrap_err();
    assert!(matches!(error, Error::Buffer(_)), "{error}");
    assert_eq!(allocator.memory_allocated(), 0, "a refused block is freed");
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let Some(gpu) = Gpu::new() else { return };
    let simulated = Allocator::simulated(SimDevice::new(1 << 30));
    let error = simulated.alloc_zeros::<f32>(10, &gpu.a).unwrap_err();
    assert!(matches!(&error, Error::Buffer(text) if text.contains("typed")), "{error}");
    assert_eq!(simulated.memory_allocated(), 0);
}

#[test]
fn the_checker_finds_launches_that_nobody_noted() {
    let Some(gpu) = Gpu::new() else { return };
    let allocator = gpu.allocator("");
    let (function, len, value) = (gpu.kernel("fill_u32"), 16_u64, 1_u32);
    let launch = |buffer: &DeviceBuffer<u32>, stream: &gpucache::cudarc::driver::CudaStream| {
        // SAFETY: the kernel has these arguments and writes 16 elements.
        unsafe { stream.launch_builder(&function).arg(buffer).arg(&value).arg(&len).launch(elements(len)) }
            .unwrap();
    };
    check_streams(true);
    take_stream_misuses();
    let fine = allocator.alloc_zeros::<u32>(16, &gpu.a).unwrap();
    launch(&fine, &gpu.a);
    let noted = allocator.alloc_zeros::<u32>(16, &gpu.a).unwrap();
    launch(&noted, &gpu.b);
    noted.record_stream(&gpu.b);
    drop((fine, noted));
    assert_eq!(take_stream_misuses(), []);

    let wrong = allocator.alloc_zeros::<u32>(16, &gpu.a).unwrap();
    launch(&wrong, &gpu.b);
    gpu.finish();
    drop(wrong);
    check_streams(false);
    let found = take_stream_misuses();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].stream.raw(), gpu.b.cu_stream() as u64);
    assert!(found[0].launch.file().ends_with("buffers.rs"), "{}", found[0]);
}
