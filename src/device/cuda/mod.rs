//! A real GPU, through the driver that cudarc uses.
//!
//! [`CudaDevice`] shares the context of cudarc's `CudaContext`, so that its memory, streams and events are the ones
//! that the rest of a cudarc program works with. Nothing here needs a driver at build time, and a machine without one
//! gets an error, never a panic.

mod api;
mod binding;
mod capture;
mod layout;
mod ops;
mod probe;
mod share;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError};
use parking_lot::Mutex;

use self::api::{Api, code};
use crate::device::{DeviceError, DeviceProperties};
use crate::error::{Error, Result};

pub use self::probe::{device_count, device_properties, is_available};

/// A GPU, by its CUDA context. `Send + Sync`; every call makes the context current on the calling thread first.
///
/// A thread that had another context current gets it back after the call; one that had none keeps this one.
///
/// ```no_run
/// use gpucache::device::{Device, cuda::CudaDevice};
///
/// let gpu = CudaDevice::new(0)?;
/// println!("{}: {} bytes free", gpu.properties().name, gpu.mem_get_info()?.free);
/// # Ok::<(), gpucache::Error>(())
/// ```
pub struct CudaDevice {
    api: &'static Api,
    context: Arc<CudaContext>,
    properties: DeviceProperties,
    /// Primary contexts of the devices whose memory this one may reach, kept for as long as it may.
    peers: Mutex<HashMap<u32, Arc<CudaContext>>>,
}

impl CudaDevice {
    /// Opens the GPU with that ordinal among the visible ones, by its primary context, which stays current on the
    /// calling thread.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] without a driver library (or with a toolkit's stub of it), [`Error::NoGpu`] with a driver
    /// that sees no GPU, [`Error::InvalidOrdinal`], [`Error::Device`] for anything else that the driver reports.
    pub fn new(ordinal: u32) -> Result<Self> {
        let (api, _) = probe::device(ordinal)?;
        let context = CudaContext::new(ordinal as usize)
            .map_err(|error| cudarc_error(api, "cuDevicePrimaryCtxRetain", error))?;
        CudaDevice::over(api, context)
    }

    /// The GPU of a cudarc context, which need not be a primary one.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] if cudarc has loaded another driver library than this crate finds; [`Error::Device`] for
    /// an error of the driver, also an earlier one that the context still had to report.
    pub fn from_context(context: Arc<CudaContext>) -> Result<Self> {
        CudaDevice::over(probe::initialized()?, context)
    }

    /// cudarc's context: streams made from it work with this device's memory.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    fn over(api: &'static Api, context: Arc<CudaContext>) -> Result<Self> {
        context.bind_to_thread().map_err(|error| cudarc_error(api, "cuCtxSetCurrent", error))?;
        same_library(api, &context)?;
        let properties = probe::read_properties(api, context.cu_device(), context.ordinal() as u32)?;
        Ok(CudaDevice { api, context, properties, peers: Mutex::default() })
    }
}

/// Handles of one driver library mean nothing to another copy of it (say a toolkit's stub next to the real one).
fn same_library(api: &'static Api, context: &CudaContext) -> Result<()> {
    let mut current = std::ptr::null_mut();
    // SAFETY: `current` is a valid place for the answer.
    unsafe { api.context_current(&raw mut current) }.ok()?;
    if current == context.cu_ctx().cast() {
        return Ok(());
    }
    Err(Error::NoDriver(
        "cudarc has loaded another libcuda than libcuda.so.1; leave one of them in the library path"
            .to_owned(),
    ))
}

/// By number: formatting a `DriverError` calls the driver, and panics where there is none.
fn cudarc_error(api: &'static Api, call: &'static str, error: DriverError) -> Error {
    match error.0 as u32 {
        code::STUB_LIBRARY => Error::NoDriver(probe::stub_text()),
        code::NO_DEVICE | code::INVALID_DEVICE => {
            Error::NoGpu(format!("{call}: {}", api.name_of(error.0 as u32)))
        }
        number => Error::Device(api.error(call, number)),
    }
}

/// The error of a call made through cudarc, where a driver is known to be there.
pub(crate) fn call_error(call: &'static str, error: DriverError) -> Error {
    match Api::get() {
        Ok(api) => Error::Device(api.error(call, error.0 as u32)),
        Err(reason) => Error::NoDriver(reason),
    }
}

/// The device's error, where a trait method can only answer with one.
fn as_device_error(call: &'static str, error: Error) -> DeviceError {
    match error {
        Error::Device(error) => error,
        other => DeviceError::Driver { call, code: code::INVALID_DEVICE, name: other.to_string() },
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice")
            .field("ordinal", &self.properties.ordinal)
            .field("name", &self.properties.name)
            .finish_non_exhaustive()
    }
}
