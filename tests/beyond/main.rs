//! What PyTorch's allocator does not have: scopes, idle decay, borrowing between streams, the cap of a process; and
//! the hooks.
#![allow(clippy::unwrap_used)]

mod borrow;
mod fraction;
mod hooks;
mod idle;
mod scopes;

use std::sync::Arc;

use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, Config};

const MIB: usize = 1 << 20;

fn allocator(device: &SimDevice, options: &str) -> Allocator {
    let config = Config::parse(options).unwrap();
    Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap()
}
