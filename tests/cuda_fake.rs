//! What only the fake driver can show: each kind of failure, and work that is still pending.
//! `.ci/fake-cuda.sh` runs these; elsewhere they are skipped.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod fake;

use std::ffi::CString;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cudarc::driver::sys;
use fake::driver::{copy_out, raw};
use fake::fake;
use gpucache::cudarc;
use gpucache::device::cuda::CudaDevice;
use gpucache::device::{Device, DeviceError, HandleType, Stream};
use gpucache::{Error, device_count, device_properties, is_available};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 1 << 30;

#[test]
fn finds_the_devices() {
    let Some(fake) = fake() else { return };
    assert!(is_available());
    assert_eq!(device_count().unwrap(), 2);
    let properties = device_properties(1).unwrap();
    assert_eq!((properties.ordinal, properties.name.as_str()), (1, "Fake GPU 1"));
    assert_eq!(properties.total_memory, MEMORY);
    assert_eq!((properties.compute_capability, properties.driver_version), ((9, 0), 13000));
    assert_eq!(properties.pci, (0, 0x1c, 0));
    assert_eq!(&properties.uuid, b"fake-cuda-gpu--\x01");
    assert!(properties.supports_virtual_memory && properties.supports_rdma && !properties.simulated);
    assert_eq!(CudaDevice::new(1).unwrap().properties(), &properties);
    fake.assert_clean();
}

#[test]
fn an_ordinal_too_far_is_named_in_the_error() {
    let Some(_fake) = fake() else { return };
    for error in [CudaDevice::new(2).unwrap_err(), device_properties(2).unwrap_err()] {
        assert!(matches!(error, Error::InvalidOrdinal { ordinal: 2, count: 2 }), "{error:?}");
    }
}

/// Not a test: what [`unusable_drivers_are_told_apart`] starts as another process.
#[test]
fn child_probe() {
    if std::env::var_os("GPUCACHE_TEST_PROBE").is_some() {
        println!("PROBE {} {:?}", is_available(), CudaDevice::new(0).map(|_| ()).map_err(|e| e.to_string()));
        println!("PROBE {:?}", device_count().map_err(|e| e.to_string()));
    }
}

/// What the entry points answer in another process with that environment.
fn probe(variable: &str, value: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_probe", "--nocapture"])
        .env("GPUCACHE_TEST_PROBE", "1")
        .env(variable, value)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn unusable_drivers_are_told_apart() {
    if fake().is_none() {
        return;
    }
    for (variable, value, expected) in [
        ("FAKE_CUDA_INIT", "34", "toolkit's stub library"),
        ("FAKE_CUDA_INIT", "100", "no usable GPU (cuInit: CUDA_ERROR_NO_DEVICE)"),
        ("FAKE_CUDA_DEVICES", "0", "no usable GPU"),
        ("FAKE_CUDA_INIT", "3", "cuInit failed: CUDA_ERROR_NOT_INITIALIZED (3)"),
        ("FAKE_CUDA_INIT", "98765", "cuInit failed: unknown error (98765)"),
        ("FAKE_CUDA_FAIL", "cuDevicePrimaryCtxRetain:1:2", "cuDevicePrimaryCtxRetain: out of memory"),
        ("FAKE_CUDA_FAIL", "cuDevicePrimaryCtxRetain:1:101", "no usable GPU"),
        ("FAKE_CUDA_FAIL", "cuDevicePrimaryCtxRetain:1:34", "stub library"),
    ] {
        let text = probe(variable, value);
        assert!(text.contains(expected), "{variable}={value}: {text}");
        assert_eq!(text.contains("PROBE false"), variable != "FAKE_CUDA_FAIL", "{variable}={value}: {text}");
    }
}

/// A toolkit's stub beside the real driver is the usual case: two libraries, each with contexts of its own.
#[test]
fn two_driver_libraries_are_noticed() {
    if fake().is_none() {
        return;
    }
    let library = Path::new(&std::env::var_os("GPUCACHE_FAKE_CUDA_DIR").unwrap()).join("libcuda.so");
    let dir = std::env::temp_dir().join(format!("gpucache-two-drivers-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(&library, dir.join(name)).unwrap();
    }
    let text = probe("LD_LIBRARY_PATH", dir.to_str().unwrap());
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(text.contains("cudarc has loaded another libcuda"), "{text}");
}

#[test]
fn errors_keep_their_kind() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let error = device.malloc(MEMORY + 1).unwrap_err();
    assert_eq!(error, DeviceError::OutOfMemory { call: "cuMemAlloc" });
    assert_eq!(
        device.host_malloc(0).unwrap_err().to_string(),
        "cuMemHostAlloc failed: CUDA_ERROR_INVALID_VALUE (1)"
    );
    assert_eq!(
        device.mem_create(2 * MIB, HandleType::Fabric).unwrap_err(),
        DeviceError::NotSupported { call: "cuMemCreate" }
    );
    fake.fail("cuMemAlloc_v2", 1, 700);
    let error = device.malloc(2 * MIB).unwrap_err();
    assert_eq!(error.to_string(), "cuMemAlloc failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    fake.fail("cuMemAlloc_v2", 1, 123_456);
    assert_eq!(device.malloc(2 * MIB).unwrap_err().to_string(), "cuMemAlloc failed: unknown error (123456)");
    fake.assert_clean();
}

#[test]
fn the_fake_notices_misuse() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let address = device.malloc(2 * MIB).unwrap();
    device.free(address).unwrap();
    assert!(device.free(address).is_err());
    assert!(device.free(0x1234).is_err());
    assert!(fake.violations().contains("freed before"), "{}", fake.violations());
    assert_eq!(fake.report().violations, 2);
    fake.clear();
}

#[test]
fn events_follow_their_stream() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let (busy, waiting) = (device.context().new_stream().unwrap(), device.context().new_stream().unwrap());
    let (first, second) = (device.event_create().unwrap(), device.event_create().unwrap());
    assert!(device.event_query(first).unwrap(), "an event that was never recorded has happened");

    let memory = device.malloc(2 * MIB).unwrap();
    fake.hold(raw(&busy).raw(), true);
    // SAFETY: the memory is that large and lives until the stream is done.
    unsafe { cudarc::driver::result::memset_d8_async(memory, 7, 1024, busy.cu_stream()) }.unwrap();
    device.event_record(first, raw(&busy)).unwrap();
    device.stream_wait_event(raw(&waiting), first).unwrap();
    device.event_record(second, raw(&waiting)).unwrap();
    assert!(!device.event_query(first).unwrap() && !device.event_query(second).unwrap());

    device.event_synchronize(second).unwrap();
    assert!(device.event_query(first).unwrap() && device.event_query(second).unwrap());
    assert_eq!(copy_out(&device, memory, 1), [7]);

    device.stream_synchronize(raw(&busy)).unwrap();
    device.device_synchronize().unwrap();
    device.event_destroy(first).unwrap();
    device.event_destroy(second).unwrap();
    device.free(memory).unwrap();
    drop((busy, waiting));
    fake.assert_clean();
}

#[test]
fn peers_are_enabled_once() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    assert!(device.can_access_peer(1).unwrap());
    assert!(!device.can_access_peer(0).unwrap());
    let before = fake.calls("cuCtxEnablePeerAccess");
    device.enable_peer_access(1).unwrap();
    device.enable_peer_access(1).unwrap();
    assert_eq!(fake.calls("cuCtxEnablePeerAccess"), before + 1);
    // Someone else may have enabled it already.
    let second = CudaDevice::from_context(Arc::clone(device.context())).unwrap();
    second.enable_peer_access(1).unwrap();
    for error in [device.can_access_peer(2).unwrap_err(), device.enable_peer_access(2).unwrap_err()] {
        assert!(error.to_string().contains("there are 2 visible devices"), "{error}");
    }
    fake.assert_clean();
}

#[test]
fn the_default_stream_is_not_capturing_while_another_is() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let mut stream = std::ptr::null_mut();
    // SAFETY: `stream` is a place for the answer. Flags of 0 make a stream that the default one waits for.
    unsafe { sys::cuStreamCreate(&raw mut stream, 0) }.result().unwrap();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is alive.
    unsafe { cudarc::driver::result::stream::begin_capture(stream, mode) }.unwrap();
    assert!(device.capture_status(Stream::from_raw(stream as u64)).unwrap().is_some());
    assert_eq!(device.capture_status(Stream::DEFAULT).unwrap(), None);
    // SAFETY: as above; the graph is empty and belongs to this test.
    unsafe {
        let graph = cudarc::driver::result::stream::end_capture(stream).unwrap();
        cudarc::driver::result::graph::destroy(graph).unwrap();
        cudarc::driver::result::stream::destroy(stream).unwrap();
    }
    fake.assert_clean();
}

#[test]
fn kernels_run_in_stream_order() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let stream = device.context().new_stream().unwrap();
    let memory = device.malloc(2 * MIB).unwrap();
    let launch = |name: &str, mut value: u32| {
        let (mut out, mut count) = (memory, 4_u64);
        let mut arguments = [(&raw mut out).cast(), (&raw mut value).cast(), (&raw mut count).cast()];
        // SAFETY: the fake driver takes any image; its kernels take these three arguments.
        unsafe {
            let module = cudarc::driver::result::module::load_data(c"any".as_ptr().cast()).unwrap();
            let kernel =
                cudarc::driver::result::module::get_function(module, CString::new(name).unwrap()).unwrap();
            let one = (1, 1, 1);
            cudarc::driver::result::launch_kernel(kernel, one, one, 0, stream.cu_stream(), &mut arguments)
                .unwrap();
        }
    };
    fake.hold(raw(&stream).raw(), true);
    launch("fill_u32", 5);
    launch("add_u32", 2);
    assert_eq!(copy_out(&device, memory, 4), [0; 4], "held work has run");
    device.stream_synchronize(raw(&stream)).unwrap();
    assert_eq!(copy_out(&device, memory, 16), [7, 0, 0, 0].repeat(4));
    device.free(memory).unwrap();
    let gone = raw(&stream);
    drop(stream);
    device.stream_synchronize(gone).unwrap(); // without asking the driver for the stream
    fake.assert_clean();
}

/// Not a test: the other process of [`a_leak_fails_the_process`].
#[test]
fn child_leaks() {
    if std::env::var_os("GPUCACHE_TEST_LEAK").is_some() {
        CudaDevice::new(0).unwrap().malloc(2 * MIB).unwrap();
    }
}

#[test]
fn a_leak_fails_the_process() {
    if fake().is_none() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_leaks"])
        .env("GPUCACHE_TEST_LEAK", "1")
        .env("FAKE_CUDA_STRICT", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(86));
    assert!(String::from_utf8_lossy(&output.stderr).contains("allocations: 1"), "{output:?}");
}
