//! The CUDA device over whatever driver is there: a real GPU's, or the fake one (`.ci/fake-cuda.sh`).
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::format_collect)]

mod fake;

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};
use fake::driver::{copy_in, copy_out, driver, free_bytes, raw};
use gpucache::cudarc;
use gpucache::device::cuda::CudaDevice;
use gpucache::device::{Device, HandleType, Stream};

const MIB: u64 = 1 << 20;

#[test]
fn allocates_and_frees() {
    let Some((driver, device)) = driver() else { return };
    let before = free_bytes(&device);
    let a = device.malloc(2 * MIB).unwrap();
    let b = device.malloc(20 * MIB).unwrap();
    assert!(free_bytes(&device) <= before - 22 * MIB);
    assert_eq!(device.address_range(b + 5).unwrap(), (b, 20 * MIB));
    copy_in(&device, a, b"hello");
    assert_eq!(copy_out(&device, a, 5), b"hello");
    device.free(a).unwrap();
    device.free(b).unwrap();
    driver.assert_all_back(&device, before);
}

#[test]
fn a_capture_survives_the_allocators_calls() {
    let Some((_driver, device)) = driver() else { return };
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
}

#[test]
fn a_spoilt_capture_is_an_error() {
    let Some((driver, device)) = driver() else { return };
    let stream = device.context().new_stream().unwrap();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    // What the allocator must never do: a blocking call in the strict mode.
    assert!(stream.synchronize().is_err());
    let error = device.capture_status(raw(&stream)).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)"), "{error}");
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    assert!(stream.end_capture(flags).is_err());
    driver.forgive();
}

#[test]
fn maps_physical_memory() {
    let Some((driver, device)) = driver() else { return };
    let before = free_bytes(&device);
    let base = device.address_reserve(8 * MIB).unwrap();
    let page = device.mem_create(2 * MIB, HandleType::PosixFileDescriptor).unwrap();
    assert!(free_bytes(&device) <= before - 2 * MIB);
    device.mem_map(base + 4 * MIB, 2 * MIB, page).unwrap();
    device.mem_set_access(base + 4 * MIB, 2 * MIB, 0).unwrap();
    copy_in(&device, base + 4 * MIB, b"page");

    // The handle may go first: the mapping keeps the memory.
    device.mem_release(page).unwrap();
    assert_eq!(copy_out(&device, base + 4 * MIB, 4), b"page");
    device.mem_unmap(base + 4 * MIB, 2 * MIB).unwrap();
    driver.assert_all_back(&device, before);
    device.address_free(base, 8 * MIB).unwrap();
}

#[test]
fn physical_memory_travels_by_descriptor() {
    let Some((_driver, device)) = driver() else { return };
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
    let Some((_driver, device)) = driver() else { return };
    let address = device.malloc(2 * MIB).unwrap();
    copy_in(&device, address, b"parent");
    let handle = device.ipc_export(address).unwrap();

    let text: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_opens", "--nocapture"])
        .env("GPUCACHE_TEST_HANDLE", text)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("OPENED"), "{output:?}");
    assert_eq!(copy_out(&device, address, 6), b"child!");
    device.free(address).unwrap();
}

#[test]
fn host_and_managed_memory() {
    let Some((driver, device)) = driver() else { return };
    let host = device.host_malloc(3 * MIB).unwrap();
    device.host_free(host).unwrap();
    assert!(device.host_free(host).is_err());
    driver.forgive();

    let own = vec![0_u8; 8192];
    device.host_register(own.as_ptr() as u64, 8192).unwrap();
    assert!(device.host_register(own.as_ptr() as u64, 8192).is_err());
    device.host_unregister(own.as_ptr() as u64).unwrap();

    let managed = device.malloc_managed(2 * MIB).unwrap();
    copy_in(&device, managed, b"both");
    // SAFETY: managed memory is the host's as well, and the copy is done.
    assert_eq!(unsafe { std::slice::from_raw_parts(managed as *const u8, 4) }, b"both");
    device.free(managed).unwrap();
}

/// The contexts that cudarc would find current.
fn current() -> Option<sys::CUcontext> {
    cudarc::driver::result::ctx::get_current().unwrap()
}

#[test]
fn any_thread_will_do() {
    let Some((_driver, device)) = driver() else { return };
    let device = Arc::new(device);
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
}

/// On its own stream an event is recorded and asked for whatever context the thread has; on the default stream too, which
/// is another one in each context.
#[test]
fn events_do_without_the_context() {
    let Some((_driver, device)) = driver() else { return };
    let stream = device.context().new_stream().unwrap();
    let event = device.event_create().unwrap();
    let use_it = || {
        for stream in [raw(&stream), Stream::DEFAULT] {
            device.event_record(event, stream).unwrap();
            device.event_synchronize(event).unwrap();
            assert!(device.event_query(event).unwrap());
        }
    };
    use_it();
    let apart = |f: &(dyn Fn() + Sync)| std::thread::scope(|scope| scope.spawn(f).join().unwrap());
    apart(&|| {
        assert_eq!(current(), None);
        device.event_record(event, raw(&stream)).unwrap();
        use_it();
    });
    apart(&|| {
        assert_eq!(current(), None);
        assert!(device.event_query(event).unwrap());
    });
    apart(&|| match CudaContext::new(1) {
        Ok(other) => {
            use_it();
            assert_eq!(current(), Some(other.cu_ctx()));
        }
        Err(_) => println!("skipped in part: needs two devices"),
    });
    device.event_destroy(event).unwrap();
}

#[test]
fn a_thread_gets_its_own_context_back() {
    let Some((_driver, device)) = driver() else { return };
    let Ok(other) = CudaContext::new(1) else {
        println!("skipped: needs two devices");
        return;
    };
    assert_eq!(current(), Some(other.cu_ctx()));
    let address = device.malloc(2 * MIB).unwrap();
    if device.can_access_peer(1).unwrap() {
        device.enable_peer_access(1).unwrap();
    }
    device.free(address).unwrap();
    assert_eq!(current(), Some(other.cu_ctx()));
}

#[test]
fn an_error_of_the_programs_own_is_left_to_it() {
    let Some((_driver, device)) = driver() else { return };
    device
        .context()
        .record_err::<()>(Err(cudarc::driver::DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_FAILED)));
    let address = device.malloc(2 * MIB).unwrap();
    device.free(address).unwrap();
    assert!(device.context().check_err().is_err());
}
