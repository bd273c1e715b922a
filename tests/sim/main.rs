//! The simulated GPU by itself.
#![allow(clippy::unwrap_used, clippy::many_single_char_names)] // helpers of tests; s and t are streams, e is an event

mod capture;
mod faults;
mod memory;
mod streams;
mod vmm;

use gpucache::device::DeviceError;

/// The driver's error number of a call that must fail with one.
fn code<T: std::fmt::Debug>(result: Result<T, DeviceError>) -> u32 {
    match result.unwrap_err() {
        DeviceError::Driver { code, .. } => code,
        other => panic!("{other}"),
    }
}
