//! Error numbers and their names.

use std::ffi::{CStr, c_char};

use crate::{driver, put};

pub const SUCCESS: u32 = 0;
pub const INVALID_VALUE: u32 = 1;
pub const OUT_OF_MEMORY: u32 = 2;
pub const NOT_INITIALIZED: u32 = 3;
pub const NO_DEVICE: u32 = 100;
pub const INVALID_DEVICE: u32 = 101;
pub const INVALID_CONTEXT: u32 = 201;
pub const PEER_ACCESS_UNSUPPORTED: u32 = 217;
pub const INVALID_HANDLE: u32 = 400;
pub const NOT_FOUND: u32 = 500;
pub const NOT_READY: u32 = 600;
pub const ILLEGAL_ADDRESS: u32 = 700;
pub const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
pub const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;
pub const HOST_MEMORY_NOT_REGISTERED: u32 = 713;
pub const NOT_SUPPORTED: u32 = 801;
pub const CAPTURE_UNSUPPORTED: u32 = 900;
pub const CAPTURE_INVALIDATED: u32 = 901;
pub const CAPTURE_WRONG_STREAM: u32 = 905;
pub const CAPTURE_IMPLICIT: u32 = 906;
pub const CAPTURED_EVENT: u32 = 907;

fn name_of(error: u32) -> Option<&'static CStr> {
    Some(match error {
        SUCCESS => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NOT_INITIALIZED => c"CUDA_ERROR_NOT_INITIALIZED",
        4 => c"CUDA_ERROR_DEINITIALIZED",
        34 => c"CUDA_ERROR_STUB_LIBRARY",
        NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        PEER_ACCESS_UNSUPPORTED => c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        NOT_READY => c"CUDA_ERROR_NOT_READY",
        ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        PEER_ACCESS_ALREADY_ENABLED => c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        709 => c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        HOST_MEMORY_ALREADY_REGISTERED => c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        HOST_MEMORY_NOT_REGISTERED => c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        CAPTURE_INVALIDATED => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        CAPTURE_WRONG_STREAM => c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        CAPTURE_IMPLICIT => c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        CAPTURED_EVENT => c"CUDA_ERROR_CAPTURED_EVENT",
        _ => return None,
    })
}

driver! {
    fn cuGetErrorName(error: u32, text: *mut *const c_char) |_books| {
        put(text, name_of(error).map_or(std::ptr::null(), CStr::as_ptr))?;
        name_of(error).map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuGetErrorString(error: u32, text: *mut *const c_char) |_books| {
        put(text, name_of(error).map_or(std::ptr::null(), CStr::as_ptr))?;
        name_of(error).map(|_| ()).ok_or(INVALID_VALUE)
    }
}
