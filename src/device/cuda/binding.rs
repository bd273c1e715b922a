//! What has to hold on the calling thread around a driver call: the context, and the capture mode.

use std::ffi::c_void;

use super::CudaDevice;
use super::api::Api;
use crate::device::DeviceResult;

/// The device's context is current on this thread while this lives.
pub(super) struct Bound {
    api: &'static Api,
    /// The thread's own context, if it had another one.
    previous: *mut c_void,
}

impl CudaDevice {
    /// Makes the context current. cudarc's `bind_to_thread` would do, but it also takes (and so hides) an error that
    /// the user's own code has yet to see.
    pub(super) fn bind(&self) -> DeviceResult<Bound> {
        let own: *mut c_void = self.context.cu_ctx().cast();
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` is a valid place for the answer.
        unsafe { self.api.context_current(&raw mut current) }.ok()?;
        if current == own {
            return Ok(Bound { api: self.api, previous: std::ptr::null_mut() });
        }
        // SAFETY: `self.context` keeps the context alive.
        unsafe { self.api.context_set_current(own) }.ok()?;
        Ok(Bound { api: self.api, previous: current })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if !self.previous.is_null() {
            // SAFETY: it was current on this thread before. If its owner has destroyed it meanwhile the driver says
            // so, and there is nothing to go back to.
            let _ = unsafe { self.api.context_set_current(self.previous) };
        }
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: u32 = 2;

/// While this lives, calls that may not happen during a stream capture are let through on this thread, and do not
/// invalidate the capture [spec 4.3].
pub(super) struct RelaxedCapture {
    api: &'static Api,
    /// The mode to go back to; `None` if it could not be changed.
    previous: Option<u32>,
}

impl RelaxedCapture {
    pub(super) fn enter(api: &'static Api) -> Self {
        let mut mode = RELAXED;
        // SAFETY: `mode` is a valid place to read the new and write the old mode.
        let changed = unsafe { api.exchange_capture_mode(&raw mut mode) }.ok().is_ok();
        // Without the change, a call that needed it reports that itself.
        RelaxedCapture { api, previous: changed.then_some(mode) }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(mode) = &mut self.previous {
            // SAFETY: as in `enter`.
            let _ = unsafe { self.api.exchange_capture_mode(&raw mut *mode) };
        }
    }
}
