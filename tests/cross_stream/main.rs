//! A block that another stream still uses is never handed out early: on the simulated device, and through cudarc on a
//! real driver or the fake one (`.ci/fake-cuda.sh`). The same sequence on a naive allocator spoils the data.
#![cfg(unix)]
#![allow(clippy::unwrap_used, unreachable_pub)]

mod buffers;
mod cuda;
#[path = "../fake/mod.rs"]
mod fake;
mod faults;
mod naive;
mod simulated;
