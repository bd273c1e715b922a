//! Bad input: a clear error or a documented meaning, never a panic, a leak or harm to anybody else.
#![allow(clippy::unwrap_used)]

mod lifetimes;
mod threads;

use std::sync::Arc;

use gpucache::device::sim::{CallKind, Fault, SimDevice, code};
use gpucache::device::{DeviceError, Stream};
use gpucache::{Allocation, Allocator, Config, Error};

const MIB: usize = 1 << 20;

fn fresh() -> (SimDevice, Allocator) {
    with_options("")
}

fn with_options(options: &str) -> (SimDevice, Allocator) {
    let device = SimDevice::new(1 << 30);
    let config = Config::parse(options).unwrap();
    let allocator = Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap();
    (device, allocator)
}

/// Nothing happened, and the allocator works.
fn unharmed(device: &SimDevice, allocator: Allocator) {
    allocator.verify().unwrap();
    drop(allocator.alloc(3 * MIB).unwrap());
    assert_eq!(allocator.memory_allocated(), 0);
    drop(allocator);
    device.assert_clean();
}

fn reason(outcome: gpucache::Result<()>) -> (u64, &'static str) {
    match outcome {
        Err(Error::InvalidPointer { address, reason }) => (address, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn zero_bytes_are_a_null_address() {
    let (device, allocator) = fresh();
    let before = allocator.memory_stats();
    let block = allocator.alloc(0).unwrap();
    assert_eq!((block.address(), block.len(), block.is_empty()), (0, 0, true));
    block.record_stream(Stream::from_raw(8));
    // SAFETY: the parts come from `into_parts` and are used once.
    unsafe { Allocation::from_parts(block.into_parts()) }.unwrap().free().unwrap();
    assert_eq!(allocator.alloc_raw(0, Stream::DEFAULT).unwrap(), 0);
    allocator.free_raw(0).unwrap();
    allocator.record_stream_raw(0, Stream::from_raw(8)).unwrap();
    allocator.reserve(0, Stream::DEFAULT).unwrap();
    allocator.would_allocate(0, Stream::DEFAULT).unwrap();
    assert_eq!(allocator.memory_stats(), before);
    assert_eq!(device.total_calls(), 0);
    unharmed(&device, allocator);
}

/// No GPU is that large; a simulated one, or a driver that tells nonsense, may be.
#[test]
fn devices_that_cannot_be() {
    for total in [0, 1, 1 << 50, u64::MAX / 2, u64::MAX] {
        for options in ["", "expandable_segments:True", "per_process_memory_fraction:0.5"] {
            let device = SimDevice::new(total);
            let config = Config::parse(options).unwrap();
            let allocator =
                Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap();
            // Page by page, more would take a while.
            let most = if options.starts_with("exp") { 1 << 36 } else { (1 << 60) - 1 };
            for bytes in [1, 3 * MIB, 1 << 36, most] {
                drop(allocator.would_allocate(bytes, Stream::DEFAULT));
                drop(allocator.alloc(bytes));
            }
            allocator.memory_summary(false);
            allocator.get_per_process_memory_fraction();
            allocator.verify().unwrap();
            drop(allocator);
            device.assert_clean();
        }
    }
}

/// A forecast knows what the pool's requests get.
#[test]
fn forecasts_in_pools_that_do_not_split() {
    let (_, allocator) = fresh();
    let pool = allocator.create_pool();
    pool.set_no_split();
    pool.scope(|| {
        drop(allocator.alloc(3 * MIB).unwrap());
        let told = allocator.would_allocate(3 * MIB, Stream::DEFAULT).unwrap();
        let block = allocator.alloc(3 * MIB).unwrap();
        let in_use = allocator.memory_allocated();
        assert_eq!(told, gpucache::Forecast::Hit { block_size: in_use });
        drop(block);
    })
    .unwrap();
}

#[test]
fn sizes_that_cannot_be() {
    for options in ["", "roundup_power2_divisions:4", "expandable_segments:True", "max_split_size_mb:32"] {
        let (device, allocator) = with_options(options);
        let before = allocator.memory_stats();
        for bytes in [usize::MAX, usize::MAX - 511, 1 << 63, (1 << 60) + 1, 1 << 60] {
            let told = format!("{options}: {bytes}");
            let too_large = |outcome: gpucache::Result<()>| matches!(outcome, Err(Error::TooLarge { requested }) if requested == bytes as u64);
            assert!(too_large(allocator.alloc(bytes).map(drop)), "{told}");
            assert!(too_large(allocator.alloc_raw(bytes, Stream::DEFAULT).map(drop)), "{told}");
            assert!(too_large(allocator.would_allocate(bytes, Stream::DEFAULT).map(drop)), "{told}");
            assert!(too_large(allocator.reserve(bytes, Stream::DEFAULT)), "{told}");
            assert!(too_large(allocator.scope("x").alloc(bytes).map(drop)), "{told}");
        }
        assert_eq!(allocator.memory_stats(), before, "{options}");
        // The largest that is a size at all, which rounding takes to the ceiling itself.
        for bytes in [(1 << 60) - 1, (1 << 59) + 1, 1 << 40] {
            let error = allocator.alloc(bytes).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_)), "{options}: {bytes}: {error:?}");
        }
        unharmed(&device, allocator);
    }
}

#[test]
fn fractions_that_are_none() {
    let (device, allocator) = fresh();
    for fraction in [f64::NAN, -0.1, -0.0 - f64::EPSILON, 1.000_001, f64::INFINITY, f64::NEG_INFINITY] {
        let error = allocator.set_per_process_memory_fraction(fraction).unwrap_err();
        assert!(matches!(error, Error::InvalidFraction { .. }), "{fraction}");
        assert!(
            error.to_string().starts_with(&format!("invalid fraction:{fraction}. Please set within")),
            "{error}"
        );
        let mut config = Config::default();
        config.per_process_memory_fraction = fraction;
        let error = Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{fraction}: {error}");
    }
    assert!((allocator.get_per_process_memory_fraction() - 1.0).abs() < f64::EPSILON);
    for fraction in [0.0, -0.0, 1.0] {
        allocator.set_per_process_memory_fraction(fraction).unwrap();
    }
    allocator.set_per_process_memory_fraction(0.0).unwrap();
    assert!(matches!(allocator.alloc(1), Err(Error::OutOfMemory(_))), "nothing at all is allowed");
    allocator.set_per_process_memory_fraction(1.0).unwrap();
    unharmed(&device, allocator);
}

#[test]
fn addresses_that_are_not_the_start_of_a_live_block() {
    let (device, allocator) = fresh();
    let raw = allocator.alloc_raw(3 * MIB, Stream::DEFAULT).unwrap();
    let owned = allocator.alloc(3 * MIB).unwrap();
    let freed = allocator.alloc_raw(3 * MIB, Stream::DEFAULT).unwrap();
    let wall = allocator.alloc(1000).unwrap();
    allocator.free_raw(freed).unwrap();
    let before = allocator.memory_stats();
    for (address, why) in [
        (freed, "its block was freed already"),
        (raw + 1, "it is inside a block, not its start"),
        (raw + 512, "it is inside a block, not its start"),
        (owned.address(), "its block belongs to an Allocation, which frees it itself"),
        (12345, "no segment of this allocator holds it"),
        (u64::MAX, "no segment of this allocator holds it"),
        (1 << 48, "no segment of this allocator holds it"),
    ] {
        assert_eq!(reason(allocator.free_raw(address)), (address, why));
        assert_eq!(reason(allocator.record_stream_raw(address, Stream::from_raw(8))), (address, why));
    }
    let error = allocator.free_raw(freed).unwrap_err().to_string();
    assert!(error.contains(&format!("{freed:#x}")), "{error}");
    assert!(allocator.base_allocation(u64::MAX).is_err());
    assert_eq!(allocator.base_allocation(raw + 512).unwrap(), (raw, 20 << 20));
    assert_eq!(allocator.memory_stats(), before, "nobody was harmed");
    allocator.free_raw(raw).unwrap();
    drop((owned, wall));
    unharmed(&device, allocator);
}

#[test]
fn an_address_of_another_allocator() {
    let (device, allocator) = fresh();
    let (other_device, other) = (SimDevice::builder().ordinal(1).build(), fresh().1);
    let second = Allocator::simulated(other_device.clone());
    let foreign = second.alloc_raw(1000, Stream::DEFAULT).unwrap();
    assert_eq!(reason(allocator.free_raw(foreign)).1, "no segment of this allocator holds it");
    second.free_raw(foreign).unwrap();
    drop(other);
    unharmed(&other_device, second);
    unharmed(&device, allocator);
}

#[test]
fn parts_whose_block_is_gone() {
    let (device, allocator) = fresh();
    let parts = allocator.alloc(1000).unwrap().into_parts();
    assert_eq!((parts.requested, parts.stream), (1000, 0));
    // SAFETY: used once here; the second use below is of a block that is not live, which the call refuses.
    unsafe { Allocation::from_parts(parts) }.unwrap().free().unwrap();
    // SAFETY: the allocator is alive, and nothing was allocated since: the parts name no live block.
    let again = unsafe { Allocation::from_parts(parts) };
    assert_eq!(reason(again.map(drop)).0, parts.address);
    let new = allocator.alloc(1000).unwrap();
    // SAFETY: the allocator is alive; the address is live again, as another block, and that is noticed.
    let stale = unsafe { Allocation::from_parts(parts) };
    assert_eq!(reason(stale.map(drop)).0, parts.address);
    drop(new);
    unharmed(&device, allocator);
}

/// What can be known of a stream is that the driver does not know it, once an event is to be recorded on it.
#[test]
fn a_stream_of_another_device_or_one_that_is_gone() {
    let device = SimDevice::builder().total_memory(1 << 30).strict_streams(true).build();
    let allocator = Allocator::simulated(device.clone());
    let foreign = Stream::from_raw(0xdead_0000);
    let destroyed = device.create_stream();
    let block = allocator.alloc_on(1000, destroyed).unwrap();
    device.destroy_stream(destroyed).unwrap();
    drop(block);
    for stream in [foreign, destroyed] {
        let (bad, good) = (allocator.alloc(3 * MIB).unwrap(), allocator.alloc(3 * MIB).unwrap());
        let address = bad.address();
        bad.record_stream(stream);
        let error = bad.free().unwrap_err();
        assert!(matches!(error, Error::Device(DeviceError::Driver { .. })), "{error:?}");
        // Others are not troubled, and the block is not handed out while nobody knows whether it is in use.
        drop(good);
        let next = allocator.alloc(3 * MIB).unwrap();
        assert_ne!(next.address(), address);
        drop(next);
        allocator.verify().unwrap();
        assert_eq!(allocator.memory_stats().active.all.current, 1);
        // Once the device was waited for, it is free.
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.memory_reserved(), 0);
    }
    let told = device.misuses();
    assert!(!told.is_empty() && told.iter().all(|m| m.starts_with("cuEventRecord")), "{told:?}");
    drop(allocator);
    assert_eq!(device.leaks(), Vec::<String>::new());
}

/// A kernel dies in the middle: every call fails from then on.
#[test]
fn a_device_that_fails_in_the_middle() {
    for options in ["", "expandable_segments:True"] {
        let (device, allocator) = with_options(options);
        let side = Stream::from_raw(8);
        let held = allocator.alloc(3 * MIB).unwrap();
        let pending = allocator.alloc(3 * MIB).unwrap();
        pending.record_stream(side);
        device.hold(side);
        drop(pending);
        let waiting = allocator.alloc(4 * MIB).unwrap();
        waiting.record_stream(side);
        drop(allocator.alloc_on(30 * MIB, side).unwrap());

        device.set_broken(true);
        let failed = |outcome: gpucache::Result<()>| {
            let is =
                matches!(outcome, Err(Error::Device(DeviceError::Driver { code: code::LAUNCH_FAILED, .. })));
            assert!(is, "{options}: {outcome:?}");
        };
        failed(allocator.alloc(50 * MIB).map(drop));
        failed(allocator.alloc_raw(1, Stream::from_raw(0x999)).map(drop));
        failed(allocator.empty_cache().map(drop));
        failed(allocator.mem_get_info().map(drop));
        failed(waiting.free());
        drop(held);
        allocator.verify().unwrap();

        device.set_broken(false);
        device.release(side);
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.memory_reserved(), 0, "{options}: nothing was lost");
        unharmed(&device, allocator);
    }
}

#[test]
fn a_pending_error_of_the_device_fails_growth_alone() {
    let (device, allocator) = fresh();
    drop(allocator.alloc(3 * MIB).unwrap());
    device.set_pending_error(Fault::Driver(code::LAUNCH_FAILED));
    let hit = allocator.alloc(3 * MIB).unwrap();
    let error = allocator.alloc(50 * MIB).unwrap_err();
    assert!(matches!(error, Error::Device(_)), "{error}");
    assert_eq!(device.calls(CallKind::Malloc), 1, "the driver was not asked");
    drop(hit);
    unharmed(&device, allocator);
}

#[test]
fn options_that_cannot_be() {
    let (device, allocator) = fresh();
    let before = allocator.config();
    for text in
        ["max_split_size_mb", "max_split_size_mb:nan", "no_such_key:1", "max_split_size_mb:1", ":", "a:b:c"]
    {
        let error = allocator.set_allocator_settings(text).unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{text}: {error}");
        assert_eq!(allocator.config(), before, "{text}");
    }
    unharmed(&device, allocator);
}

#[test]
fn pools_used_against_their_state() {
    use gpucache::observe::snapshot::PoolId;
    let (device, allocator) = fresh();
    let unknown = PoolId(77, 0);
    let is_pool_error =
        |outcome: gpucache::Result<()>| assert!(matches!(outcome, Err(Error::Pool(_))), "{outcome:?}");
    is_pool_error(allocator.end_allocate_to_pool(unknown));
    is_pool_error(allocator.release_pool(unknown));
    is_pool_error(allocator.begin_allocate_to_pool(PoolId(0, 0), |_| true));
    let pool = allocator.create_pool();
    pool.scope(|| is_pool_error(pool.scope(|| ()))).unwrap();
    allocator.begin_allocate_to_pool(unknown, |_| false).unwrap();
    is_pool_error(allocator.begin_allocate_to_pool(unknown, |_| false));
    allocator.end_allocate_to_pool(unknown).unwrap();
    allocator.release_pool(unknown).unwrap();
    is_pool_error(allocator.release_pool(unknown));
    drop(pool);
    unharmed(&device, allocator);
}
