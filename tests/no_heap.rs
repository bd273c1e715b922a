//! A cache hit touches neither the heap nor the driver: proved by an allocator that counts for each thread, and a
//! device that counts its calls and uses no heap itself.
#![allow(clippy::unwrap_used)] // also in the tests' helpers

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpucache::Allocator;
use gpucache::device::{
    Device, DeviceProperties, DeviceResult, Event, HandleType, MemInfo, PhysicalHandle, Stream,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [usize; 10] = [1, 512, 4 * KIB, 64 * KIB, MIB, MIB + 1, 4 * MIB, 20 * MIB, 64 * MIB, 1024 * MIB];

thread_local! {
    static HEAP_CALLS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that ends may free after its counter is gone; nothing is measured there.
    let _ = HEAP_CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes to `System` with its arguments unchanged; the counter is a `const` thread-local without a
// destructor, so counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above, and the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// Heap calls of this thread while `work` runs.
fn heap_calls(work: impl FnOnce()) -> u64 {
    let before = HEAP_CALLS.get();
    work();
    HEAP_CALLS.get() - before
}

/// A device that only hands out fresh numbers. Events are complete at once.
#[derive(Debug)]
struct Counter {
    properties: DeviceProperties,
    next: AtomicU64,
    /// Event records and queries.
    event_calls: AtomicU64,
    /// Everything else.
    other_calls: AtomicU64,
}

impl Counter {
    fn new() -> Arc<Self> {
        let mut properties = DeviceProperties::default();
        properties.total_memory = 1 << 40;
        properties.supports_virtual_memory = true;
        Arc::new(Counter {
            properties,
            next: AtomicU64::new(1 << 44),
            event_calls: AtomicU64::new(0),
            other_calls: AtomicU64::new(0),
        })
    }

    fn counts(&self) -> (u64, u64) {
        (self.event_calls.load(Ordering::SeqCst), self.other_calls.load(Ordering::SeqCst))
    }

    #[allow(clippy::unnecessary_wraps)] // the shape of every answer below
    fn event_call<T>(&self, answer: T) -> DeviceResult<T> {
        self.event_calls.fetch_add(1, Ordering::SeqCst);
        Ok(answer)
    }

    #[allow(clippy::unnecessary_wraps)] // the shape of every answer below
    fn other_call<T>(&self, answer: T) -> DeviceResult<T> {
        self.other_calls.fetch_add(1, Ordering::SeqCst);
        Ok(answer)
    }

    /// An unused address range, aligned to 2 MiB.
    fn fresh(&self, bytes: u64) -> u64 {
        self.next.fetch_add(bytes.next_multiple_of(2 << 20), Ordering::SeqCst)
    }
}

impl Device for Counter {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }
    fn malloc(&self, bytes: u64) -> DeviceResult<u64> {
        self.other_call(self.fresh(bytes))
    }
    fn free(&self, _address: u64) -> DeviceResult<()> {
        self.other_call(())
    }
    fn mem_get_info(&self) -> DeviceResult<MemInfo> {
        let total = self.properties.total_memory;
        self.other_call(MemInfo { free: total, total })
    }
    fn event_create(&self) -> DeviceResult<Event> {
        self.other_call(Event(self.fresh(1)))
    }
    fn event_destroy(&self, _event: Event) -> DeviceResult<()> {
        self.other_call(())
    }
    fn event_record(&self, _event: Event, _stream: Stream) -> DeviceResult<()> {
        self.event_call(())
    }
    fn event_query(&self, _event: Event) -> DeviceResult<bool> {
        self.event_call(true)
    }
    fn event_synchronize(&self, _event: Event) -> DeviceResult<()> {
        self.other_call(())
    }
    fn stream_wait_event(&self, _stream: Stream, _event: Event) -> DeviceResult<()> {
        self.other_call(())
    }
    fn stream_synchronize(&self, _stream: Stream) -> DeviceResult<()> {
        self.other_call(())
    }
    fn device_synchronize(&self) -> DeviceResult<()> {
        self.other_call(())
    }
    fn address_reserve(&self, bytes: u64) -> DeviceResult<u64> {
        self.other_call(self.fresh(bytes))
    }
    fn address_free(&self, _address: u64, _bytes: u64) -> DeviceResult<()> {
        self.other_call(())
    }
    fn mem_create(&self, _bytes: u64, _handle_type: HandleType) -> DeviceResult<PhysicalHandle> {
        self.other_call(PhysicalHandle(self.fresh(1)))
    }
    fn mem_release(&self, _handle: PhysicalHandle) -> DeviceResult<()> {
        self.other_call(())
    }
    fn mem_map(&self, _address: u64, _bytes: u64, _handle: PhysicalHandle) -> DeviceResult<()> {
        self.other_call(())
    }
    fn mem_unmap(&self, _address: u64, _bytes: u64) -> DeviceResult<()> {
        self.other_call(())
    }
    fn mem_set_access(&self, _address: u64, _bytes: u64, _accessor: u32) -> DeviceResult<()> {
        self.other_call(())
    }
}

fn allocator() -> (Arc<Counter>, Allocator) {
    let device = Counter::new();
    let allocator = Allocator::builder().device(device.clone()).build().unwrap();
    (device, allocator)
}

/// Runs the work once to warm up; a second time it must use neither the heap nor the driver.
#[track_caller]
fn assert_free_of_cost(device: &Counter, mut work: impl FnMut()) {
    work();
    let before = device.counts();
    assert_eq!(heap_calls(work), 0, "heap calls");
    assert_eq!(device.counts(), before, "driver calls (events, others)");
}

#[test]
fn the_counters_count() {
    assert_eq!(heap_calls(|| drop(std::hint::black_box(Box::new(1)))), 2);
    let (device, allocator) = allocator();
    let before = device.counts();
    drop(allocator.alloc(1).unwrap());
    assert!(device.counts() > before, "the first allocation cannot come from the cache");
}

#[test]
fn hot_pair_through_handles() {
    let (device, allocator) = allocator();
    for bytes in SIZES {
        assert_free_of_cost(&device, || {
            for _ in 0..10 {
                drop(allocator.alloc_on(bytes, Stream::DEFAULT).unwrap());
            }
        });
    }
}

#[test]
fn hot_pair_through_addresses() {
    let (device, allocator) = allocator();
    for bytes in SIZES {
        assert_free_of_cost(&device, || {
            for _ in 0..10 {
                let address = allocator.alloc_raw(bytes, Stream::DEFAULT).unwrap();
                allocator.free_raw(address).unwrap();
            }
        });
    }
}

#[test]
fn hot_pair_in_expandable_segments() {
    let (device, allocator) = allocator();
    allocator.set_allocator_settings("expandable_segments:True").unwrap();
    for bytes in SIZES {
        assert_free_of_cost(&device, || drop(allocator.alloc(bytes).unwrap()));
    }
}

#[test]
fn splits_and_merges_of_many_live_blocks() {
    let (device, allocator) = allocator();
    let mut live: Vec<_> = (0..512).map(|_| None).collect();
    let mut random = 1_u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let mut churn = |steps: u32| {
        for _ in 0..steps {
            let slot = below(512) as usize;
            live[slot] = None;
            let octave = 512 << below(14);
            live[slot] = Some(allocator.alloc((octave + below(octave)) as usize).unwrap());
        }
    };
    churn(200_000);
    // New peaks of fragmentation get rarer, but never end: what is looked at is a stretch without a driver call.
    let clean = (0..200).find(|_| {
        let before = device.counts();
        let heap = heap_calls(|| churn(2_000));
        let hits_only = device.counts() == before;
        assert!(!hits_only || heap == 0, "{heap} heap calls in 2000 hits");
        hits_only
    });
    assert!(clean.is_some(), "no 2000 requests in a row came from the cache");
}

#[test]
fn blocks_used_on_a_second_stream() {
    const PAIRS: u64 = 100;
    let (device, allocator) = allocator();
    let side = Stream::from_raw(64);
    let pairs = || {
        for _ in 0..PAIRS {
            let block = allocator.alloc(4 * KIB).unwrap();
            block.record_stream(side);
        }
    };
    pairs();
    let (events, others) = device.counts();
    assert_eq!(heap_calls(pairs), 0, "heap calls");
    let (events, others) = (device.counts().0 - events, device.counts().1 - others);
    assert_eq!(others, 0, "driver calls other than event records and queries");
    assert_eq!(events, 2 * PAIRS, "one record and one query for each pair");
}

#[test]
fn hits_of_many_threads() {
    let (device, allocator) = allocator();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let allocator = &allocator;
            scope.spawn(move || {
                let stream = Stream::from_raw(64 * (1 + t));
                let pairs = || (0..1_000).for_each(|_| drop(allocator.alloc_on(MIB, stream).unwrap()));
                pairs();
                assert_eq!(heap_calls(pairs), 0, "heap calls");
            });
        }
    });
    let before = device.counts();
    for t in 0..4 {
        drop(allocator.alloc_on(MIB, Stream::from_raw(64 * (1 + t))).unwrap());
    }
    assert_eq!(device.counts(), before, "driver calls");
}

#[test]
fn reading_totals() {
    let (device, allocator) = allocator();
    let _block = allocator.alloc(MIB).unwrap();
    assert_free_of_cost(&device, || {
        std::hint::black_box((allocator.memory_allocated(), allocator.max_memory_reserved()));
        std::hint::black_box(allocator.memory_stats());
    });
}
