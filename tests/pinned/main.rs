//! Pinned host memory [spec 17]: sizes, reuse, events, options, statistics, bad input, faults.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod capture;
mod faults;
mod model;
mod options;
mod statistics;

use std::sync::Arc;

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, SimDevice};
use gpucache::{Allocator, Config, PinnedAllocator};

/// A device and its pinned memory; the device must be clean when all is gone.
struct Bed {
    device: SimDevice,
    pinned: Option<PinnedAllocator>,
}

impl Bed {
    fn new(options: &str) -> Self {
        Self::on(SimDevice::new(1 << 30), options)
    }

    fn on(device: SimDevice, options: &str) -> Self {
        let config = Config::parse(options).unwrap();
        let allocator = Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap();
        Bed { device, pinned: Some(allocator.pinned()) }
    }

    fn calls(&self, kind: CallKind) -> u64 {
        self.device.calls(kind)
    }

    fn stat(&self, key: &str) -> i64 {
        self.host_memory_stats().to_map()[key]
    }

    /// Allocates, lets the stream use it, frees.
    fn use_and_free(&self, bytes: usize, stream: Stream) -> u64 {
        let address = self.host_alloc_raw(bytes).unwrap();
        self.record_event(address, stream).unwrap();
        self.host_free_raw(address).unwrap();
        address
    }
}

impl std::ops::Deref for Bed {
    type Target = PinnedAllocator;

    fn deref(&self) -> &PinnedAllocator {
        self.pinned.as_ref().unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.pinned = None;
        if !std::thread::panicking() {
            self.device.assert_clean();
        }
    }
}

#[test]
fn sizes_are_powers_of_two() {
    let bed = Bed::new("");
    let mut sum = 0;
    for (bytes, size) in [(1, 1), (1000, 1024), (5000, 8192), (5 << 20, 8 << 20)] {
        let address = bed.host_alloc_raw(bytes).unwrap();
        sum += size;
        assert_eq!(bed.stat("active_bytes.current"), sum);
        bed.host_free_raw(address).unwrap();
        sum -= size;
    }
    assert_eq!(bed.host_alloc_raw(0).unwrap(), 0);
    bed.host_free_raw(0).unwrap();
    assert_eq!(bed.stat("num_host_alloc"), 4);
}

#[test]
fn the_newest_block_of_the_class_is_reused_without_a_driver_call() {
    let bed = Bed::new("");
    let [a, b, c] = [5000, 8000, 8192].map(|bytes| bed.host_alloc_raw(bytes).unwrap());
    let other = bed.host_alloc_raw(9000).unwrap();
    for address in [a, c, b, other] {
        bed.host_free_raw(address).unwrap();
    }
    let before = bed.device.total_calls();
    assert_eq!([4097, 8192, 5000].map(|bytes| bed.host_alloc_raw(bytes).unwrap()), [b, c, a]);
    assert_eq!(bed.device.total_calls(), before);
    let more = bed.host_alloc_raw(8192).unwrap();
    assert!(![a, b, c, other].contains(&more));
    for address in [a, b, c, more] {
        bed.host_free_raw(address).unwrap();
    }
}

#[test]
fn a_block_waits_for_its_streams() {
    let bed = Bed::new("");
    let (fast, slow) = (bed.device.create_stream(), bed.device.create_stream());
    bed.device.hold(fast);
    bed.device.hold(slow);
    let first = bed.host_alloc_raw(4096).unwrap();
    for stream in [fast, slow, fast] {
        bed.record_event(first, stream).unwrap();
    }
    bed.host_free_raw(first).unwrap();
    assert_eq!(bed.calls(CallKind::EventRecord), 2, "one event per stream");
    let second = bed.host_alloc_raw(4096).unwrap();
    assert_ne!(first, second);
    bed.device.release(fast);
    let third = bed.host_alloc_raw(4096).unwrap();
    assert_ne!(first, third, "one of two events is not complete");
    bed.device.release(slow);
    assert_eq!(bed.host_alloc_raw(4096).unwrap(), first);
    for address in [first, second, third] {
        bed.host_free_raw(address).unwrap();
    }
}

#[test]
fn events_are_taken_oldest_first_up_to_the_first_incomplete_one() {
    let bed = Bed::new("");
    let (slow, fast) = (bed.device.create_stream(), bed.device.create_stream());
    bed.device.hold(slow);
    let a = bed.use_and_free(4096, slow);
    let b = bed.use_and_free(4096, fast);
    assert_ne!(a, b);
    let c = bed.host_alloc_raw(4096).unwrap();
    assert!(c != a && c != b, "b's event is complete, but a's is before it");
    bed.device.release(slow);
    assert_eq!(bed.host_alloc_raw(4096).unwrap(), b);
    assert_eq!(bed.host_alloc_raw(4096).unwrap(), a);
    assert_eq!(bed.calls(CallKind::EventCreate), 2);
    bed.use_and_free(64, fast);
    assert_eq!(bed.calls(CallKind::EventCreate), 2, "events are used again");
    for address in [a, b, c] {
        bed.host_free_raw(address).unwrap();
    }
}

#[test]
fn empty_cache_returns_what_is_idle_only() {
    let bed = Bed::new("");
    let s = bed.device.create_stream();
    bed.device.hold(s);
    let kept = bed.host_alloc_raw(100).unwrap();
    let idle = bed.host_alloc_raw(5000).unwrap();
    bed.host_free_raw(idle).unwrap();
    bed.use_and_free(70_000, s);
    assert_eq!(bed.host_empty_cache().unwrap(), 8192);
    assert_eq!(bed.calls(CallKind::HostFree), 1);
    bed.device.release(s);
    assert_eq!(bed.host_empty_cache().unwrap(), 131_072);
    assert_eq!(bed.stat("allocations.current"), 1);
    bed.host_free_raw(kept).unwrap();
}

#[test]
fn device_empty_cache_does_not_touch_pinned_memory() {
    let device = SimDevice::new(1 << 30);
    let allocator = Allocator::simulated(device.clone());
    let pinned = allocator.pinned();
    let address = pinned.host_alloc_raw(4096).unwrap();
    pinned.host_free_raw(address).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(device.calls(CallKind::HostFree), 0);
    assert_eq!(pinned.host_alloc_raw(4096).unwrap(), address);
    pinned.host_free_raw(address).unwrap();
    drop((allocator, pinned));
    device.assert_clean();
}

#[test]
fn buffers_hold_typed_elements() {
    let bed = Bed::new("");
    let mut words = bed.alloc_zeroed::<u64>(3).unwrap();
    assert_eq!(*words, [0, 0, 0]);
    words.copy_from_slice(&[7, 8, 9]);
    assert_eq!(words.iter().sum::<u64>(), 24);
    assert_eq!((words.byte_len(), bed.stat("active_bytes.current")), (24, 32));
    let address = words.address();
    drop(words);
    // SAFETY: any bytes are numbers.
    let again = unsafe { bed.alloc_uninit::<u8>(32) }.unwrap();
    assert_eq!((again.address(), again[0]), (address, 7));
    again.free().unwrap();
    let zeroed = bed.alloc_zeroed::<u64>(4).unwrap();
    assert_eq!((zeroed.address(), zeroed[0]), (address, 0), "old contents are cleared");
    let copied = bed.alloc_from_slice(&[1.5_f32, -2.0]).unwrap();
    assert_eq!(*copied, [1.5, -2.0]);
    let empty = bed.alloc_from_slice::<f64>(&[]).unwrap();
    assert!(empty.is_empty() && empty.address() == 0);
    assert!(format!("{copied:?}").contains("len: 2"));
}

#[test]
fn buffers_outlive_their_allocator_and_move_between_threads() {
    let device = SimDevice::new(1 << 30);
    let buffer = Allocator::simulated(device.clone()).pinned().alloc_from_slice(&[1_u8; 100]).unwrap();
    assert_eq!(device.calls(CallKind::HostFree), 0);
    std::thread::spawn(move || assert_eq!(buffer[99], 1)).join().unwrap();
    device.assert_clean();
}

#[test]
fn a_buffer_waits_for_its_stream_too() {
    let bed = Bed::new("");
    let s = bed.device.create_stream();
    bed.device.hold(s);
    let buffer = bed.alloc_zeroed::<u8>(64).unwrap();
    let address = buffer.address();
    buffer.record_event(s).unwrap();
    drop(buffer);
    assert_ne!(bed.alloc_zeroed::<u8>(64).unwrap().address(), address);
    bed.device.release(s);
    let held = [bed.alloc_zeroed::<u8>(64).unwrap(), bed.alloc_zeroed::<u8>(64).unwrap()];
    assert!(held.iter().any(|b| b.address() == address));
}

#[test]
fn threads_share_it() {
    let bed = Bed::new("");
    let streams: Vec<Stream> = (0..4).map(|_| bed.device.create_stream()).collect();
    std::thread::scope(|scope| {
        for (number, stream) in (0_u64..).zip(&streams) {
            let pinned = (*bed).clone();
            scope.spawn(move || {
                for round in 0..200_u64 {
                    let mut buffer = pinned.alloc_zeroed::<u64>(1 + (round % 40) as usize).unwrap();
                    buffer.fill(number);
                    if round % 3 == 0 {
                        buffer.record_event(*stream).unwrap();
                    }
                    assert!(buffer.iter().all(|&x| x == number), "somebody else has the memory too");
                }
            });
        }
    });
    bed.host_empty_cache().unwrap();
    let stats = bed.host_memory_stats();
    assert_eq!((stats.active_requests.current, stats.active_bytes.current), (0, 0));
    assert_eq!((stats.allocations.current, stats.allocated_bytes.current), (0, 0));
    assert_eq!(stats.active_requests.allocated, 800);
}
