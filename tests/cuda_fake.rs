//! The CUDA device over the fake driver. `.ci/fake-cuda.sh` runs these; elsewhere they are skipped.

mod fake;

use std::process::Command;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};
use fake::fake;
use gpucache::cudarc;
use gpucache::device::cuda::CudaDevice;
use gpucache::device::{Device, DeviceError, HandleType, Stream};
use gpucache::{Error, device_count, device_properties, is_available};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 1 << 30;

fn raw(stream: &CudaStream) -> Stream {
    Stream::from_raw(stream.cu_stream() as u64)
}

fn copy_in(device: &CudaDevice, address: u64, bytes: &[u8]) {
    device.context().bind_to_thread().unwrap();
    // SAFETY: the tests give device memory of at least that length.
    unsafe { cudarc::driver::result::memcpy_htod_sync(address, bytes) }.unwrap();
}

fn copy_out(device: &CudaDevice, address: u64, length: usize) -> Vec<u8> {
    device.context().bind_to_thread().unwrap();
    let mut bytes = vec![0; length];
    // SAFETY: as above.
    unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut bytes, address) }.unwrap();
    bytes
}

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

#[test]
fn unusable_drivers_are_told_apart() {
    if fake().is_none() {
        return;
    }
    let probe = |variable: &str, value: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_probe", "--nocapture"])
            .env("GPUCACHE_TEST_PROBE", "1")
            .env(variable, value)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
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

#[test]
fn allocates_and_frees() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let before = fake.alive();
    let a = device.malloc(2 * MIB).unwrap();
    let b = device.malloc(20 * MIB).unwrap();
    assert_eq!(device.mem_get_info().unwrap().free, MEMORY - 22 * MIB);
    assert_eq!(device.address_range(b + 5).unwrap(), (b, 20 * MIB));
    copy_in(&device, a, b"hello");
    assert_eq!(copy_out(&device, a, 5), b"hello");
    device.free(a).unwrap();
    device.free(b).unwrap();
    assert_eq!(device.mem_get_info().unwrap().free, device.mem_get_info().unwrap().total);
    assert_eq!(fake.alive(), before);
    fake.assert_clean();
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
fn a_capture_survives_the_allocators_calls() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let (stream, side) = (device.context().new_stream().unwrap(), device.context().new_stream().unwrap());
    let memory = device.malloc(2 * MIB).unwrap();
    let event = device.event_create().unwrap();
    assert_eq!(device.capture_status(raw(&stream)).unwrap(), None);
    assert_eq!(device.capture_terminals(raw(&stream)).unwrap(), []);

    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    // SAFETY: the memory is that large and outlives the graph.
    let fill = |stream: &CudaStream| unsafe {
        cudarc::driver::result::memset_d8_async(memory, 1, 16, stream.cu_stream()).unwrap();
    };
    fill(&stream);
    let first = device.capture_terminals(raw(&stream)).unwrap();
    fill(&stream);
    let second = device.capture_terminals(raw(&stream)).unwrap();
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_eq!(device.graph_node_dependencies(second[0]).unwrap(), first);
    assert_eq!(device.graph_node_dependencies(first[0]).unwrap(), []);

    // The same capture, on a stream that was forked into it; none on the default stream.
    let fork = device.event_create().unwrap();
    device.event_record(fork, raw(&stream)).unwrap();
    device.stream_wait_event(raw(&side), fork).unwrap();
    let id = device.capture_status(raw(&stream)).unwrap();
    assert!(id.is_some());
    assert_eq!(device.capture_status(raw(&side)).unwrap(), id);
    assert_eq!(device.capture_terminals(raw(&side)).unwrap(), second);
    assert_eq!(device.capture_status(Stream::DEFAULT).unwrap(), None);

    let during = device.malloc(2 * MIB).unwrap();
    let host = device.host_malloc(4096).unwrap();
    assert!(device.event_query(event).unwrap());
    device.host_free(host).unwrap();
    device.free(during).unwrap();

    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).unwrap();
    assert!(graph.is_some(), "the capture was spoilt");
    drop(graph);
    for event in [event, fork] {
        device.event_destroy(event).unwrap();
    }
    device.free(memory).unwrap();
    fake.assert_clean();
}

#[test]
fn a_spoilt_capture_is_an_error() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let stream = device.context().new_stream().unwrap();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    // What the allocator must never do: a blocking call in the strict mode.
    assert!(stream.synchronize().is_err());
    let error = device.capture_status(raw(&stream)).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)"), "{error}");
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    assert!(stream.end_capture(flags).is_err());
    fake.clear();
}

#[test]
fn maps_physical_memory() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let before = fake.alive();
    let base = device.address_reserve(8 * MIB).unwrap();
    let page = device.mem_create(2 * MIB, HandleType::PosixFileDescriptor).unwrap();
    assert_eq!(device.mem_get_info().unwrap().free, MEMORY - 2 * MIB);
    device.mem_map(base + 4 * MIB, 2 * MIB, page).unwrap();
    device.mem_set_access(base + 4 * MIB, 2 * MIB, 0).unwrap();
    copy_in(&device, base + 4 * MIB, b"page");

    // The handle may go first: the mapping keeps the memory.
    device.mem_release(page).unwrap();
    assert_eq!(copy_out(&device, base + 4 * MIB, 4), b"page");
    device.mem_unmap(base + 4 * MIB, 2 * MIB).unwrap();
    assert_eq!(device.mem_get_info().unwrap().free, MEMORY);
    device.address_free(base, 8 * MIB).unwrap();
    assert_eq!(fake.alive(), before);
    fake.assert_clean();
}

#[test]
fn physical_memory_travels_by_descriptor() {
    use std::os::fd::AsFd;

    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let (here, there) = (device.address_reserve(2 * MIB).unwrap(), device.address_reserve(2 * MIB).unwrap());
    let page = device.mem_create(2 * MIB, HandleType::PosixFileDescriptor).unwrap();
    let imported = {
        let fd = device.mem_export_fd(page).unwrap();
        device.mem_import_fd(fd.as_fd()).unwrap()
    };
    for (address, handle) in [(here, page), (there, imported)] {
        device.mem_map(address, 2 * MIB, handle).unwrap();
        device.mem_set_access(address, 2 * MIB, 0).unwrap();
        device.mem_release(handle).unwrap();
    }
    copy_in(&device, here, b"shared");
    assert_eq!(copy_out(&device, there, 6), b"shared");
    for address in [here, there] {
        device.mem_unmap(address, 2 * MIB).unwrap();
        device.address_free(address, 2 * MIB).unwrap();
    }
    let private = device.mem_create(2 * MIB, HandleType::None).unwrap();
    assert!(device.mem_export_fd(private).is_err());
    assert!(device.mem_export_fabric(private).is_err());
    device.mem_release(private).unwrap();
    fake.assert_clean();
}

/// Not a test: the other process of [`memory_travels_by_handle`].
#[test]
fn child_opens() {
    let Ok(text) = std::env::var("GPUCACHE_TEST_HANDLE") else { return };
    let mut handle = gpucache::device::IpcHandle([0; 64]);
    for (byte, pair) in handle.0.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    }
    let device = CudaDevice::new(0).unwrap();
    let address = device.ipc_open(&handle).unwrap();
    assert_eq!(copy_out(&device, address, 6), b"parent");
    copy_in(&device, address, b"child!");
    device.ipc_close(address).unwrap();
    println!("OPENED");
}

#[test]
fn memory_travels_by_handle() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let address = device.malloc(2 * MIB).unwrap();
    copy_in(&device, address, b"parent");
    let handle = device.ipc_export(address).unwrap();
    assert!(device.ipc_open(&handle).is_err(), "the driver opens no handle of the same process");

    let text: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_opens", "--nocapture"])
        .env("GPUCACHE_TEST_HANDLE", text)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("OPENED"), "{output:?}");
    assert_eq!(copy_out(&device, address, 6), b"child!");
    device.free(address).unwrap();
    fake.assert_clean();
}

#[test]
fn host_and_managed_memory() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let before = fake.alive();
    let host = device.host_malloc(3 * MIB).unwrap();
    device.host_free(host).unwrap();
    assert!(device.host_free(host).is_err());
    fake.clear();

    let own = vec![0_u8; 8192];
    device.host_register(own.as_ptr() as u64, 8192).unwrap();
    assert!(device.host_register(own.as_ptr() as u64, 8192).is_err());
    device.host_unregister(own.as_ptr() as u64).unwrap();

    let managed = device.malloc_managed(2 * MIB).unwrap();
    copy_in(&device, managed, b"both");
    // SAFETY: managed memory is the host's as well, and the copy is done.
    assert_eq!(unsafe { std::slice::from_raw_parts(managed as *const u8, 4) }, b"both");
    device.free(managed).unwrap();
    assert_eq!(fake.alive(), before);
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

/// The contexts that cudarc would find current.
fn current() -> Option<sys::CUcontext> {
    cudarc::driver::result::ctx::get_current().unwrap()
}

#[test]
fn any_thread_will_do() {
    let Some(fake) = fake() else { return };
    let device = Arc::new(CudaDevice::new(0).unwrap());
    let address = device.malloc(2 * MIB).unwrap();
    let event = device.event_create().unwrap();
    let own = device.context().cu_ctx() as usize;
    std::thread::spawn(move || {
        assert_eq!(current(), None);
        device.free(address).unwrap();
        device.event_destroy(event).unwrap();
        assert_eq!(current().map(|context| context as usize), Some(own));
        // The last owner, on a thread that is not the maker's.
        drop(device);
    })
    .join()
    .unwrap();
    fake.assert_clean();
}

#[test]
fn a_thread_gets_its_own_context_back() {
    let Some(fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    let other = CudaContext::new(1).unwrap();
    assert_eq!(current(), Some(other.cu_ctx()));
    let address = device.malloc(2 * MIB).unwrap();
    device.enable_peer_access(1).unwrap();
    device.free(address).unwrap();
    assert_eq!(current(), Some(other.cu_ctx()));
    assert_eq!(other.mem_get_info().unwrap().0 as u64, MEMORY);
    fake.assert_clean();
}

#[test]
fn an_error_of_the_programs_own_is_left_to_it() {
    let Some(_fake) = fake() else { return };
    let device = CudaDevice::new(0).unwrap();
    device
        .context()
        .record_err::<()>(Err(cudarc::driver::DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_FAILED)));
    let address = device.malloc(2 * MIB).unwrap();
    device.free(address).unwrap();
    assert!(device.context().check_err().is_err());
}
