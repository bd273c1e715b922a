//! Each driver call of the CUDA device, and of the allocator over it, fails once: the error arrives, nothing panics,
//! the books stay right, and nothing is left behind.
//! `.ci/fake-cuda.sh` runs this on the fake driver; elsewhere it is skipped.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Arc;

use fake::driver::raw;
use fake::fake;
use gpucache::device::cuda::CudaDevice;
use gpucache::device::{Device, DeviceError, DeviceResult, HandleType, Stream};
use gpucache::{Allocator, Config};

const PAGE: u64 = 2 << 20;

/// Runs a release on drop, a second time if the first hits the fault.
struct Undo<'a>(&'a dyn Fn() -> DeviceResult<()>);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if (self.0)().is_err() {
            (self.0)().unwrap();
        }
    }
}

/// Uses every method once, and undoes what has been done on every way out.
fn everything(device: &CudaDevice) -> DeviceResult<()> {
    let address = device.malloc(PAGE)?;
    let free = || device.free(address);
    let _undo = Undo(&free);
    device.mem_get_info()?;
    device.address_range(address)?;
    device.ipc_export(address)?;

    let event = device.event_create()?;
    let destroy = || device.event_destroy(event);
    let _undo = Undo(&destroy);
    device.event_record(event, Stream::DEFAULT)?;
    device.event_query(event)?;
    device.event_synchronize(event)?;
    device.stream_wait_event(Stream::DEFAULT, event)?;
    device.stream_synchronize(Stream::DEFAULT)?;
    device.device_synchronize()?;
    device.capture_status(Stream::DEFAULT)?;
    device.capture_terminals(Stream::DEFAULT)?;

    let host = device.host_malloc(4096)?;
    let free_host = || device.host_free(host);
    let _undo = Undo(&free_host);
    let managed = device.malloc_managed(PAGE)?;
    let free_managed = || device.free(managed);
    let _undo = Undo(&free_managed);
    device.can_access_peer(1)?;
    mapping(device)
}

fn mapping(device: &CudaDevice) -> DeviceResult<()> {
    let base = device.address_reserve(PAGE)?;
    let free = || device.address_free(base, PAGE);
    let _undo = Undo(&free);
    let page = device.mem_create(PAGE, HandleType::PosixFileDescriptor)?;
    let release = || device.mem_release(page);
    let _undo = Undo(&release);
    device.mem_map(base, PAGE, page)?;
    let unmap = || device.mem_unmap(base, PAGE);
    let _undo = Undo(&unmap);
    device.mem_set_access(base, PAGE, 0)?;
    let imported = device.mem_import_fd(std::os::fd::AsFd::as_fd(&device.mem_export_fd(page)?))?;
    device.mem_release(imported).or_else(|_| device.mem_release(imported))
}

#[test]
fn every_call_may_fail() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    everything(&device).unwrap();
    let before = fake.alive();
    let start = fake.report().calls;
    everything(&device).unwrap();
    let calls = fake.report().calls - start;
    assert!(calls > 60, "the scenario shrank to {calls} calls");

    let mut failures = 0;
    for nth in 1..=calls {
        fake.fail("*", nth, 999);
        failures += u64::from(everything(&device).is_err());
        fake.fail("*", 0, 0);
        assert_eq!(fake.alive(), before, "after call {nth} failed");
        assert_eq!(fake.violations(), "", "after call {nth} failed");
    }
    // The rest are releases, which are tried again, and the capture mode, which can only fail a call that needs it.
    assert!(failures * 2 > calls, "{failures} errors for {calls} faults");
}

#[test]
fn opening_may_fail_at_every_call() {
    let Some(fake) = fake() else { return };
    let start = fake.report().calls;
    drop(CudaDevice::new(1).unwrap());
    let calls = fake.report().calls - start;
    for nth in 1..=calls {
        fake.fail("*", nth, 999);
        let _ = CudaDevice::new(1);
        fake.fail("*", 0, 0);
    }
    CudaDevice::new(1).unwrap();
    fake.assert_clean();
}

#[test]
fn a_driver_that_shuts_down_is_recognised() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let address = device.malloc(PAGE).unwrap();
    let event = device.event_create().unwrap();
    for code in [4, 709] {
        fake.fail("*", 0, code);
        let answers = [
            device.free(address),
            device.event_destroy(event),
            device.malloc(PAGE).map(drop),
            device.mem_unmap(0, PAGE),
            device.event_query(event).map(drop),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(DeviceError::ShuttingDown { .. })), "{answer:?}");
        }
        fake.fail("*", 0, 0);
    }
    device.free(address).unwrap();
    device.event_destroy(event).unwrap();
    fake.assert_clean();
}

/// Growing, splitting, a free that waits for another stream, giving back, and growing again.
fn use_of(allocator: &Allocator, side: Stream) -> gpucache::Result<()> {
    let small = allocator.alloc(1000)?;
    let large = allocator.alloc(30 << 20)?;
    let shared = allocator.alloc(3 << 20)?;
    shared.record_stream(side);
    shared.free()?;
    drop(large);
    drop(allocator.alloc_on(5 << 20, side)?);
    allocator.empty_cache()?;
    drop(small);
    drop(allocator.alloc(50 << 20)?);
    allocator.empty_cache()?;
    Ok(())
}

/// The driver calls behind the allocator, and whether a failing one may lose what it was to release: nothing can be
/// done about that but go on.
const CALLS: [(&str, bool); 16] = [
    ("cuCtxGetCurrent", true),
    ("cuMemAlloc_v2", false),
    ("cuMemFree_v2", false),
    ("cuMemGetInfo_v2", false),
    ("cuEventCreate", false),
    ("cuEventRecord", false),
    ("cuEventQuery", false),
    ("cuEventSynchronize", false),
    ("cuEventDestroy_v2", true),
    ("cuStreamSynchronize", false),
    ("cuCtxSynchronize", false),
    ("cuThreadExchangeStreamCaptureMode", false),
    ("cuMemAddressReserve", false),
    ("cuMemCreate", false),
    ("cuMemMap", false),
    ("cuMemSetAccess", false),
];

/// Each call of each function fails once, with a lack of memory and with an error that no one expects.
fn sweep_allocator(options: &str, more: &[(&str, bool)]) {
    let Some(fake) = fake() else { return };
    let device = Arc::new(CudaDevice::new(0).unwrap());
    let side = device.context().new_stream().unwrap();
    let fresh = || {
        let device: Arc<dyn Device> = Arc::<CudaDevice>::clone(&device);
        Allocator::builder().device(device).config(Config::parse(options).unwrap()).build().unwrap()
    };
    let before = fake.alive();
    let mut faults = 0;
    for (name, may_lose) in CALLS.iter().chain(more) {
        let start = fake.calls(name);
        use_of(&fresh(), raw(&side)).unwrap();
        assert_eq!(fake.alive(), before, "without a fault");
        let calls = fake.calls(name) - start;
        for (nth, code) in (1..=calls).flat_map(|nth| [(nth, 2), (nth, 999)]) {
            faults += 1;
            let allocator = fresh();
            fake.fail(name, nth, code);
            let outcome = use_of(&allocator, raw(&side));
            fake.fail(name, 0, 0);
            let told = format!("{options}: {name} number {nth} of {calls} failed with {code}: {outcome:?}");
            allocator.verify().unwrap_or_else(|text| panic!("{told}: {text}"));
            use_of(&allocator, raw(&side)).unwrap_or_else(|error| panic!("{told}: afterwards {error}"));
            drop(allocator);
            if *may_lose {
                fake.forget_memory();
            }
            assert_eq!(fake.alive(), before, "{told}");
            assert_eq!(fake.violations(), "", "{told}");
        }
    }
    assert!(faults > 40, "the scenario shrank: {faults} faults");
}

#[test]
fn every_call_of_the_allocator_may_fail() {
    sweep_allocator("", &[]);
}

#[test]
fn every_call_of_the_expandable_allocator_may_fail() {
    let releases = [("cuMemUnmap", true), ("cuMemRelease", true), ("cuMemAddressFree", true)];
    sweep_allocator("expandable_segments:True", &releases);
}
