//! A simulated GPU: public, so that programs can test how they behave when memory runs out or a driver call
//! fails, on any machine.
//!
//! [`SimDevice`] is a cheap handle. Keep one clone to control the device and give another to the allocator:
//!
//! ```
//! use gpucache::device::sim::{CallKind, Fault, SimDevice};
//! use gpucache::device::Device;
//!
//! let gpu = SimDevice::builder().total_memory(1 << 30).build();
//! let driver = gpu.clone();
//!
//! let address = driver.malloc(64 << 20)?;
//! gpu.fail_next(CallKind::Malloc, Fault::OutOfMemory);
//! assert!(driver.malloc(512).is_err_and(|e| e.is_out_of_memory()));
//! driver.free(address)?;
//!
//! gpu.assert_clean(); // no rule of the driver was broken, nothing leaked
//! assert_eq!(gpu.calls(CallKind::Malloc), 2);
//! # Ok::<(), gpucache::device::DeviceError>(())
//! ```
//!
//! What it models: capacity, addresses, streams and events, virtual memory, stream capture, page-locked memory,
//! other processes, the time that driver calls take. What it does not: kernels other than
//! [`write`](SimDevice::write) and [`expect`](SimDevice::expect), the implicit order between the default stream
//! and others, peer access, memory that a real driver loses to fragmentation.
//!
//! Nothing runs by itself. Work on a stream is done when it is submitted, unless the stream is
//! [held](SimDevice::hold); then it waits for [`release`](SimDevice::release) or for a call that blocks.

mod builder;
mod capture;
mod clock;
mod content;
mod control;
mod driver;
mod faults;
mod host;
mod log;
mod memory;
mod process;
mod streams;
mod vmm;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

pub use builder::{AddressPolicy, SimDeviceBuilder};
pub use capture::SimGraph;
pub use faults::{Fault, code};
pub use log::{CallKind, LoggedCall, SimCall};

use super::{DeviceProperties, ProcessMemory};
use builder::Settings;
use memory::Physical;
use process::Process;

/// A handle on a simulated GPU, as one process sees it. Clones are the same process on the same GPU;
/// [`another_process`](SimDevice::another_process) shares the GPU only.
///
/// All methods may be called from any thread. Each is one short critical section that runs no user code.
#[derive(Clone)]
pub struct SimDevice {
    shared: Arc<Shared>,
}

struct Shared {
    properties: DeviceProperties,
    /// Which process of the GPU this is.
    index: usize,
    gpu: Arc<Gpu>,
}

struct Gpu {
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    physical: Physical,
    processes: Vec<Process>,
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice")
            .field("properties", &self.shared.properties)
            .field("process", &self.shared.index)
            .finish_non_exhaustive()
    }
}
