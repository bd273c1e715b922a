//! Without a driver every entry point answers with an error that says so.
#![allow(clippy::unwrap_used)]

use gpucache::device::cuda::CudaDevice;
use gpucache::{Error, device_count, device_properties, is_available};

fn driver_is_here() -> bool {
    // SAFETY: the driver's initialisers have no preconditions.
    let found = ["libcuda.so.1", "libcuda.so"]
        .into_iter()
        .any(|name| unsafe { libloading::Library::new(name) }.is_ok());
    if found {
        println!("skipped: this machine has a CUDA driver");
    }
    found
}

#[test]
fn every_entry_point_says_that_there_is_no_driver() {
    if driver_is_here() {
        return;
    }
    assert!(!is_available());
    for error in
        [device_count().unwrap_err(), device_properties(0).unwrap_err(), CudaDevice::new(0).unwrap_err()]
    {
        assert!(matches!(error, Error::NoDriver(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("libcuda.so.1") && text.contains("Install the NVIDIA driver"), "{text}");
    }
}

#[test]
fn asking_again_gives_the_same_answer() {
    if driver_is_here() {
        return;
    }
    let texts: Vec<String> = (0..3).map(|_| CudaDevice::new(7).unwrap_err().to_string()).collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}
