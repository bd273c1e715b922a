//! The driver's entry points, looked up by name at run time.
//!
//! cudarc's `sys` functions are not called here, for three reasons: they panic where a driver lacks a symbol;
//! they return an enum, so that an error number newer than the chosen bindings is undefined behaviour; and which of
//! them exist depends on the CUDA version that the *user* of this crate chose. The table below has none of the three,
//! and is the same library that cudarc uses (checked in [`super::CudaDevice`]).

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::layout::{AccessDesc, AllocationProp, EdgeData, IpcBytes};
use crate::device::{DeviceError, DeviceResult};

/// Error numbers of the driver that are told apart (`cuda.h`, `CUresult`).
pub(super) mod code {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const DEINITIALIZED: u32 = 4;
    pub(crate) const STUB_LIBRARY: u32 = 34;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const INVALID_CONTEXT: u32 = 201;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
    pub(crate) const CONTEXT_IS_DESTROYED: u32 = 709;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
    pub(crate) const STREAM_CAPTURE_INVALIDATED: u32 = 901;
    pub(crate) const STREAM_CAPTURE_IMPLICIT: u32 = 906;
    /// Not the driver's: the driver has no such function.
    pub(crate) const MISSING_SYMBOL: u32 = u32::MAX;
}

/// What a driver function answered.
#[must_use]
#[derive(Clone, Copy)]
pub(super) struct Status {
    api: &'static Api,
    call: &'static str,
    pub(super) code: u32,
}

impl Status {
    /// The answer as a result.
    #[inline]
    pub(super) fn ok(self) -> DeviceResult<()> {
        if self.code == code::SUCCESS { Ok(()) } else { Err(self.error()) }
    }

    /// The answer as a result, where one error number is as good as success.
    pub(super) fn ok_or(self, accepted: u32) -> DeviceResult<()> {
        if self.code == accepted { Ok(()) } else { self.ok() }
    }

    /// Whether the call, which was made with whatever context the thread had, wants the right one.
    #[inline]
    pub(super) fn wants_context(self) -> bool {
        matches!(self.code, code::INVALID_CONTEXT | code::CONTEXT_IS_DESTROYED)
    }

    /// The answer as an error, whatever the number.
    #[cold]
    pub(super) fn error(self) -> DeviceError {
        self.api.error(self.call, self.code)
    }
}

macro_rules! driver_functions {
    ($( $(#[$doc:meta])* fn $method:ident = $name:literal / $symbol:literal ($($arg:ident: $ty:ty),* $(,)?); )*) => {
        /// The driver's functions. `None`: this driver has no such symbol.
        pub(super) struct Api {
            // Keeps the library loaded; the table lives as long as the process.
            library: Library,
            $( $method: Option<unsafe extern "C" fn($($ty),*) -> u32>, )*
        }

        impl Api {
            fn resolve(library: Library) -> Api {
                Api {
                    $(
                        // SAFETY: `cuda.h` gives the symbol this signature; a `CUresult` is a 32-bit integer.
                        $method: unsafe { library.get($symbol.as_bytes()) }.ok().map(|found| *found),
                    )*
                    library,
                }
            }

            $(
                $(#[$doc])*
                #[doc = concat!("`", $symbol, "`.")]
                ///
                /// # Safety
                ///
                /// Pointers must be valid for what the CUDA manual says the function does with them.
                #[inline]
                #[allow(clippy::too_many_arguments)] // the driver's own
                pub(super) unsafe fn $method(&'static self, $($arg: $ty),*) -> Status {
                    let code = match self.$method {
                        // SAFETY: the signature is the driver's (see `resolve`); the caller vouches for the arguments.
                        Some(function) => unsafe { function($($arg),*) },
                        None => code::MISSING_SYMBOL,
                    };
                    Status { api: self, call: $name, code }
                }
            )*
        }
    };
}

driver_functions! {
    fn init = "cuInit" / "cuInit" (flags: c_uint);
    fn driver_version = "cuDriverGetVersion" / "cuDriverGetVersion" (version: *mut c_int);
    fn error_name = "cuGetErrorName" / "cuGetErrorName" (error: u32, name: *mut *const c_char);

    fn device_count = "cuDeviceGetCount" / "cuDeviceGetCount" (count: *mut c_int);
    fn device_get = "cuDeviceGet" / "cuDeviceGet" (device: *mut c_int, ordinal: c_int);
    fn device_name = "cuDeviceGetName" / "cuDeviceGetName" (name: *mut c_char, len: c_int, device: c_int);
    fn device_total_memory = "cuDeviceTotalMem" / "cuDeviceTotalMem_v2" (bytes: *mut usize, device: c_int);
    fn device_uuid = "cuDeviceGetUuid" / "cuDeviceGetUuid_v2" (uuid: *mut [u8; 16], device: c_int);
    fn device_attribute = "cuDeviceGetAttribute" / "cuDeviceGetAttribute"
        (value: *mut c_int, attribute: c_uint, device: c_int);
    fn can_access_peer = "cuDeviceCanAccessPeer" / "cuDeviceCanAccessPeer"
        (can: *mut c_int, device: c_int, peer: c_int);

    fn context_current = "cuCtxGetCurrent" / "cuCtxGetCurrent" (context: *mut *mut c_void);
    fn context_set_current = "cuCtxSetCurrent" / "cuCtxSetCurrent" (context: *mut c_void);
    fn context_synchronize = "cuCtxSynchronize" / "cuCtxSynchronize" ();
    fn enable_peer_access = "cuCtxEnablePeerAccess" / "cuCtxEnablePeerAccess" (peer: *mut c_void, flags: c_uint);

    fn mem_alloc = "cuMemAlloc" / "cuMemAlloc_v2" (address: *mut u64, bytes: usize);
    fn mem_alloc_managed = "cuMemAllocManaged" / "cuMemAllocManaged" (address: *mut u64, bytes: usize, flags: c_uint);
    fn mem_free = "cuMemFree" / "cuMemFree_v2" (address: u64);
    fn mem_info = "cuMemGetInfo" / "cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    fn mem_address_range = "cuMemGetAddressRange" / "cuMemGetAddressRange_v2"
        (base: *mut u64, bytes: *mut usize, address: u64);

    fn host_alloc = "cuMemHostAlloc" / "cuMemHostAlloc" (address: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn host_free = "cuMemFreeHost" / "cuMemFreeHost" (address: *mut c_void);
    fn host_register = "cuMemHostRegister" / "cuMemHostRegister_v2"
        (address: *mut c_void, bytes: usize, flags: c_uint);
    fn host_unregister = "cuMemHostUnregister" / "cuMemHostUnregister" (address: *mut c_void);

    fn event_create = "cuEventCreate" / "cuEventCreate" (event: *mut *mut c_void, flags: c_uint);
    fn event_destroy = "cuEventDestroy" / "cuEventDestroy_v2" (event: *mut c_void);
    fn event_record = "cuEventRecord" / "cuEventRecord" (event: *mut c_void, stream: *mut c_void);
    fn event_query = "cuEventQuery" / "cuEventQuery" (event: *mut c_void);
    fn event_synchronize = "cuEventSynchronize" / "cuEventSynchronize" (event: *mut c_void);
    fn stream_wait_event = "cuStreamWaitEvent" / "cuStreamWaitEvent"
        (stream: *mut c_void, event: *mut c_void, flags: c_uint);
    fn stream_synchronize = "cuStreamSynchronize" / "cuStreamSynchronize" (stream: *mut c_void);

    fn exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" / "cuThreadExchangeStreamCaptureMode"
        (mode: *mut c_uint);
    /// Drivers of CUDA 12.3 and later.
    fn capture_info_v3 = "cuStreamGetCaptureInfo" / "cuStreamGetCaptureInfo_v3"
        (stream: *mut c_void, status: *mut c_uint, id: *mut u64, graph: *mut *mut c_void,
         nodes: *mut *const *mut c_void, edges: *mut *const EdgeData, count: *mut usize);
    /// All drivers since CUDA 11.3.
    fn capture_info_v2 = "cuStreamGetCaptureInfo" / "cuStreamGetCaptureInfo_v2"
        (stream: *mut c_void, status: *mut c_uint, id: *mut u64, graph: *mut *mut c_void,
         nodes: *mut *const *mut c_void, count: *mut usize);
    /// Drivers of CUDA 12.3 and later.
    fn node_dependencies_v2 = "cuGraphNodeGetDependencies" / "cuGraphNodeGetDependencies_v2"
        (node: *mut c_void, nodes: *mut *mut c_void, edges: *mut EdgeData, count: *mut usize);
    /// All drivers.
    fn node_dependencies_v1 = "cuGraphNodeGetDependencies" / "cuGraphNodeGetDependencies"
        (node: *mut c_void, nodes: *mut *mut c_void, count: *mut usize);

    fn address_reserve = "cuMemAddressReserve" / "cuMemAddressReserve"
        (address: *mut u64, bytes: usize, alignment: usize, hint: u64, flags: u64);
    fn address_free = "cuMemAddressFree" / "cuMemAddressFree" (address: u64, bytes: usize);
    fn mem_create = "cuMemCreate" / "cuMemCreate"
        (handle: *mut u64, bytes: usize, properties: *const AllocationProp, flags: u64);
    fn mem_release = "cuMemRelease" / "cuMemRelease" (handle: u64);
    fn mem_map = "cuMemMap" / "cuMemMap" (address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    fn mem_unmap = "cuMemUnmap" / "cuMemUnmap" (address: u64, bytes: usize);
    fn mem_set_access = "cuMemSetAccess" / "cuMemSetAccess"
        (address: u64, bytes: usize, access: *const AccessDesc, count: usize);
    fn mem_export = "cuMemExportToShareableHandle" / "cuMemExportToShareableHandle"
        (shareable: *mut c_void, handle: u64, kind: c_uint, flags: u64);
    fn mem_import = "cuMemImportFromShareableHandle" / "cuMemImportFromShareableHandle"
        (handle: *mut u64, shareable: *mut c_void, kind: c_uint);

    fn ipc_get = "cuIpcGetMemHandle" / "cuIpcGetMemHandle" (handle: *mut IpcBytes, address: u64);
    fn ipc_open = "cuIpcOpenMemHandle" / "cuIpcOpenMemHandle_v2"
        (address: *mut u64, handle: IpcBytes, flags: c_uint);
    fn ipc_close = "cuIpcCloseMemHandle" / "cuIpcCloseMemHandle" (address: u64);
}

/// What `CudaContext::new` and its drop call: cudarc panics where one of these is missing.
const NEEDED_BY_CUDARC: [&str; 7] = [
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
];

#[cfg(windows)]
const LIBRARY_NAMES: [&str; 1] = ["nvcuda.dll"];
#[cfg(not(windows))]
const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

impl Api {
    /// The table of this process, loaded on the first call; the text says why there is none.
    pub(super) fn get() -> Result<&'static Api, String> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        API.get_or_init(Api::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Api, String> {
        let mut reasons = Vec::new();
        for name in LIBRARY_NAMES {
            // SAFETY: the driver library's initialisers have no preconditions.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    let api = Api::resolve(library);
                    return match api.missing_symbol() {
                        Some(symbol) => {
                            Err(format!("{name} lacks {symbol}; it is too old or no CUDA driver"))
                        }
                        None => Ok(api),
                    };
                }
                // The error only names the function; what the loader said is behind it.
                Err(error) => {
                    let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                    reasons.push(cause);
                }
            }
        }
        Err(reasons.join("; "))
    }

    fn missing_symbol(&self) -> Option<&'static str> {
        NEEDED_BY_CUDARC.into_iter().find(|symbol| {
            // SAFETY: the symbol is only looked for, never called.
            unsafe { self.library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_err()
        })
    }

    /// The typed error for a number that `call` answered.
    #[cold]
    pub(super) fn error(&'static self, call: &'static str, code: u32) -> DeviceError {
        match code {
            code::OUT_OF_MEMORY => DeviceError::OutOfMemory { call },
            code::NOT_SUPPORTED | code::MISSING_SYMBOL => DeviceError::NotSupported { call },
            code::DEINITIALIZED | code::CONTEXT_IS_DESTROYED => DeviceError::ShuttingDown { call },
            _ => DeviceError::Driver { call, code, name: self.name_of(code) },
        }
    }

    /// The driver's name for an error number, such as `CUDA_ERROR_INVALID_VALUE`.
    pub(super) fn name_of(&'static self, code: u32) -> String {
        let mut name = std::ptr::null();
        // SAFETY: `name` is a valid place for a pointer.
        let status = unsafe { self.error_name(code, &raw mut name) };
        if status.code != code::SUCCESS || name.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: on success the driver gives a null-terminated string that is never freed.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}
