//! `fraction_of_process`: the cap counts what else the process has on the device.

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, SimDevice};
use gpucache::{Allocator, Error, Forecast};

use super::{MIB, allocator};

const ON: &str = "per_process_memory_fraction:0.5,fraction_of_process:True";

/// 1000 MiB, of which the context takes 100.
fn device() -> SimDevice {
    SimDevice::builder().total_memory(1000 << 20).context_overhead(100 << 20).build()
}

fn fits(allocator: &Allocator, mib: usize) -> bool {
    match allocator.alloc(mib * MIB) {
        Ok(_) => true,
        Err(Error::OutOfMemory(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_context_counts() {
    let plain = allocator(&device(), "per_process_memory_fraction:0.5");
    assert!(fits(&plain, 500), "PyTorch's cap is its own memory alone [spec 8.1]");
    for options in [ON.to_owned(), format!("{ON},expandable_segments:True")] {
        let allocator = allocator(&device(), &options);
        assert!(!fits(&allocator, 420), "{options}");
        assert!(fits(&allocator, 400), "{options}");
        // What is cached counts once, not twice.
        let half = allocator.alloc(200 * MIB).unwrap();
        assert!(fits(&allocator, 200), "{options}");
        drop(half);
        allocator.verify().unwrap();
    }
}

#[test]
fn other_memory_of_the_process_counts_and_that_of_others_does_not() {
    use gpucache::device::Device;
    let device = device();
    let allocator = allocator(&device, ON);
    device.set_other_process(4242, 300 << 20);
    assert!(fits(&allocator, 400));
    allocator.empty_cache().unwrap();
    let library = device.malloc(150 << 20).unwrap();
    assert!(!fits(&allocator, 270));
    assert!(fits(&allocator, 250));
    device.free(library).unwrap();
    assert!(fits(&allocator, 400));
}

#[test]
fn two_allocators_of_one_process_share_the_cap() {
    let device = device();
    let [first, second] = [(); 2].map(|()| allocator(&device, ON));
    let block = first.alloc(300 * MIB).unwrap();
    assert!(!fits(&second, 120));
    assert!(fits(&second, 100));
    drop(block);
}

#[test]
fn the_cap_path_and_the_forecast_agree() {
    let allocator = allocator(&device(), ON);
    let forecast = |mib: usize| allocator.would_allocate(mib * MIB, Stream::DEFAULT).unwrap();
    assert!(matches!(forecast(400), Forecast::Grow { .. }));
    assert!(matches!(forecast(402), Forecast::OutOfMemory { .. }));
    drop(allocator.alloc(300 * MIB).unwrap());
    assert!(matches!(forecast(310), Forecast::Release { .. }), "{:?}", forecast(310));
    assert!(fits(&allocator, 310), "the cap releases the cache like a full device");
}

#[test]
fn where_nobody_tells_only_own_memory_counts() {
    let device = SimDevice::builder().total_memory(1000 << 20).processes_visible(false).build();
    let allocator = allocator(&device, ON);
    assert!(fits(&allocator, 500));
    assert!(!fits(&allocator, 502));
    assert_eq!(device.calls(CallKind::Malloc), 1);
}
