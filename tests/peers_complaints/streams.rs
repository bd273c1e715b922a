//! Contention, streams, private pools, virtual memory.

use std::iter;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, Fault, SimDevice, code};
use gpucache::{Error, TypedAllocation, Upstream};
use parking_lot::Mutex;

use super::{MIB, MIRROR, SIDE, fresh, is_oom, on, reserved};

/// A driver whose allocation takes until it is told to go on.
struct Slow {
    begun: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Upstream for Slow {
    fn alloc(&self, _: u64, _: Stream) -> Option<u64> {
        self.begun.send(()).unwrap();
        self.go_on.lock().recv().unwrap();
        Some(1 << 40)
    }
    fn free(&self, _: u64, _: u64, _: Stream) {}
}

#[test]
fn nobody_waits_for_somebody_elses_growth__pytorch_108367() {
    let (_, allocator) = fresh(1000, "");
    drop(allocator.alloc(100 * MIB).unwrap());
    let (begun, has_begun) = channel();
    let (go, go_on) = channel();
    let pool = allocator.create_pool_with(Arc::new(Slow { begun, go_on: Mutex::new(go_on) }));
    thread::scope(|s| {
        s.spawn(|| pool.scope(|| drop(allocator.alloc(50 * MIB).unwrap())).unwrap());
        has_begun.recv().unwrap();
        // The same stream; hits, frees and figures while the other thread is in the driver.
        drop(allocator.alloc(100 * MIB).unwrap());
        assert_eq!(allocator.memory_allocated(), 0);
        go.send(()).unwrap();
    });
    allocator.verify().unwrap();
}

/// Another thread may use the allocator, and be waited for, in whatever the allocator calls.
#[test]
fn no_lock_is_held_in_callbacks__pytorch_97833() {
    let (_, allocator) = fresh(100, "");
    let called = Arc::new(Mutex::new(Vec::new()));
    let other_thread = {
        let (allocator, called) = (allocator.clone(), Arc::clone(&called));
        move |who| {
            let work = || (allocator.empty_cache().unwrap(), allocator.verify().unwrap());
            thread::scope(|s| s.spawn(work).join()).unwrap();
            called.lock().push(who);
        }
    };
    let callback = other_thread.clone();
    allocator.add_free_memory_callback(move || {
        callback("free memory");
        false
    });
    allocator.attach_out_of_memory_observer(move |_| other_thread("out of memory"));
    assert!(is_oom(&allocator.alloc(200 * MIB)));
    let called = called.lock();
    assert_eq!((called.first(), called.last()), (Some(&"free memory"), Some(&"out of memory")));
    allocator.verify().unwrap();
}

#[test]
fn a_free_on_its_own_stream_needs_no_event__rmm_448__cudarc_386() {
    let (device, allocator) = fresh(1000, "");
    let use_it = || {
        for mib in [1, 3, 20] {
            let block = allocator.alloc_on(mib * MIB, SIDE).unwrap();
            block.record_stream(SIDE);
            drop(block);
        }
    };
    use_it();
    let calls = device.total_calls();
    use_it();
    assert_eq!(device.total_calls(), calls, "no driver call at all when warm");
    assert_eq!(device.calls(CallKind::EventRecord), 0);
}

#[test]
fn a_full_cache_does_not_stall__rmm_2510() {
    let (device, allocator) = fresh(1000, "");
    let step = || drop([(); 5].map(|()| allocator.alloc(190 * MIB).unwrap()));
    step();
    let calls = device.total_calls();
    (0..100).for_each(|_| step());
    assert_eq!(device.total_calls(), calls);
}

#[test]
fn private_pools_stand_in_the_error__pytorch_121932_124673() {
    let (_, allocator) = fresh(1000, "");
    let pool = allocator.create_pool();
    pool.scope(|| drop(allocator.alloc(600 * MIB).unwrap())).unwrap();
    let Err(Error::OutOfMemory(report)) = allocator.alloc(500 * MIB) else { panic!("too much") };
    assert_eq!(report.private_free, 600 << 20);
    let text = report.to_string();
    assert!(text.contains("600.00 MiB is idle in private pools"), "{text}");
}

#[test]
fn oversize_limit_with_expandable_segments__pytorch_123548_119452() {
    let (device, allocator) = fresh(1000, "max_split_size_mb:100,expandable_segments:True");
    for round in 0..30 {
        let blocks = [150, 40, 99, 220, 3].map(|mib| allocator.alloc((mib + round) * MIB).unwrap());
        drop(blocks);
        allocator.verify().unwrap();
        if round % 7 == 0 {
            allocator.empty_cache().unwrap();
        }
    }
    drop(allocator);
    device.assert_clean();
}

/// Said once, and everything works the ordinary way.
#[test]
fn expandable_segments_without_virtual_memory__pytorch_122057() {
    let device = SimDevice::builder().total_memory(1 << 30).supports_virtual_memory(false).build();
    let allocator = on(&device, "expandable_segments:True");
    assert!(!allocator.config().expandable_segments, "the options in force say so");
    drop(allocator.alloc(100 * MIB).unwrap());
    allocator.set_allocator_settings("expandable_segments:True").unwrap();
    drop(allocator.alloc(200 * MIB).unwrap());
    assert_eq!((device.calls(CallKind::AddressReserve), device.calls(CallKind::Malloc)), (0, 2));
}

#[test]
fn no_address_space_is_no_reason_to_fail__llama_cpp_29142_23094() {
    for fault in [Fault::OutOfMemory, Fault::Driver(code::INVALID_VALUE), Fault::NotSupported] {
        let (device, allocator) = fresh(1000, "expandable_segments:True");
        device.fail_from(CallKind::AddressReserve, 1, fault);
        let block = allocator.alloc(100 * MIB).unwrap();
        assert_eq!((reserved(&allocator), device.calls(CallKind::Malloc)), (100, 1));
        device.clear_faults();
        drop(allocator.alloc(200 * MIB).unwrap());
        assert_eq!(device.calls(CallKind::Malloc), 1, "as soon as there is some, it is used");
        drop(block);
        allocator.verify().unwrap();
        drop(allocator);
        device.assert_clean();
    }
}

/// A block knows its stream: dropping it while another stream that it was lent to still reads is safe.
#[test]
fn dropped_while_another_stream_uses_it__megatron_5788() {
    let (device, allocator) = fresh(1000, "");
    let block: TypedAllocation<f32> = allocator.typed(MIB, Stream::DEFAULT).unwrap();
    let (address, bytes) = (block.address(), block.num_bytes() as u64);
    assert_eq!(block.stream(), Stream::DEFAULT);
    device.write(Stream::DEFAULT, address, bytes, 1);
    device.hold(SIDE);
    device.expect(SIDE, address, bytes, 1);
    block.record_stream(SIDE);
    drop(block);
    let next: TypedAllocation<f32> = allocator.typed(MIB, Stream::DEFAULT).unwrap();
    assert_ne!(next.address(), address, "not handed out while it is read");
    device.write(Stream::DEFAULT, next.address(), bytes, 7);
    device.release(SIDE);
    assert_eq!((device.mismatches(), device.misuses()), (vec![], vec![]));
}

/// PyTorch fails in a pool's scope although the cache holds enough.
#[test]
fn private_pools_run_the_same_ladder__pytorch_159674() {
    for (options, retries) in [("", 1), (MIRROR, 0)] {
        let (_, allocator) = fresh(100, options);
        drop(allocator.alloc(60 * MIB).unwrap());
        let pool = allocator.create_pool();
        let outcome = pool.scope(|| allocator.alloc(90 * MIB).map(drop)).unwrap();
        assert_eq!(is_oom(&outcome), options == MIRROR);
        assert_eq!(allocator.memory_stats().num_alloc_retries, retries);
    }
}

/// A graph's addresses are its own for as long as it may be replayed, whatever the program allocates meanwhile.
#[test]
fn a_replayed_graph_finds_its_memory__candle_3352__cudarc_594() {
    let (device, allocator) = fresh(200, "");
    let stream = device.create_stream();
    let capture = allocator.begin_capture_pool(stream, None).unwrap();
    device.begin_capture(stream).unwrap();
    let scratch = allocator.alloc_on(30 * MIB, stream).unwrap();
    let (address, bytes) = (scratch.address(), 30 << 20);
    device.launch(stream);
    drop(scratch);
    let graph = device.end_capture(stream).unwrap();
    let graph = capture.end().unwrap().keep_with(graph);
    for value in 0..5 {
        // The program takes all memory that it can get, then the graph is replayed.
        let all: Vec<_> = iter::from_fn(|| allocator.alloc_on(30 * MIB, stream).ok()).collect();
        assert_eq!(all.len(), 5);
        for block in &all {
            device.write(stream, block.address(), bytes, 100);
        }
        device.write(stream, address, bytes, value);
        drop(all);
        allocator.empty_cache().unwrap();
        device.expect(stream, address, bytes, value);
    }
    assert_eq!((device.mismatches(), device.misuses()), (vec![], vec![]));
    drop(graph);
    allocator.empty_cache().unwrap();
    assert_eq!(reserved(&allocator), 0);
}

/// Memory of the driver for an upstream that never maps any.
struct Plain(SimDevice);
impl Upstream for Plain {
    fn alloc(&self, bytes: u64, _: Stream) -> Option<u64> {
        gpucache::device::Device::malloc(&self.0, bytes).ok()
    }
    fn free(&self, address: u64, _: u64, _: Stream) {
        gpucache::device::Device::free(&self.0, address).unwrap();
    }
}

/// 9/8 of the device for each pool and stream is too much for some programs; a pool with an upstream of its own is
/// never expandable, so that its memory can be exported.
#[test]
fn expandable_segments_are_a_choice__pytorch_186213_130330() {
    use gpucache::device::sim::SimCall;
    let (device, allocator) = fresh(1000, "expandable_segments:True,expandable_segments_reserve:0.25");
    device.start_log();
    drop(allocator.alloc(100 * MIB).unwrap());
    let reserve =
        |call: &SimCall| if let SimCall::AddressReserve { bytes } = call { Some(*bytes >> 20) } else { None };
    let reserved: Vec<u64> = device.take_log().iter().filter_map(|l| reserve(&l.call)).collect();
    assert_eq!(reserved, [260], "a quarter, in whole pages");
    // What does not fit in it comes the ordinary way.
    drop(allocator.alloc(300 * MIB).unwrap());
    assert_eq!(device.calls(CallKind::Malloc), 1);
    let pool = allocator.create_pool_with(Arc::new(Plain(device.clone())));
    pool.scope(|| drop(allocator.alloc(40 * MIB).unwrap())).unwrap();
    assert_eq!(device.calls(CallKind::Malloc), 2);
    drop(pool);
    drop(allocator);
    device.assert_clean();
}
