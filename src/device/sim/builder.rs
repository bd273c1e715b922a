//! What a simulated GPU is like, and how processes start on it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::capture::Captures;
use super::clock::Clock;
use super::content::Content;
use super::faults::Faults;
use super::log::Log;
use super::memory::{AddressSpace, Physical};
use super::process::Process;
use super::streams::Streams;
use super::vmm::{Vmm, VmmAbilities};
use super::{Gpu, Shared, SimDevice, State, host::Host};
use crate::device::{DeviceProperties, NvmlMemory, ProcessMemory};

const MALLOC_BASE: u64 = 0x1000_0000_0000;
const RESERVATION_BASE: u64 = 0x6000_0000_0000;
/// Devices of one process have addresses of their own: this far apart, by ordinal.
const DEVICE_STRIDE: u64 = 0x0100_0000_0000;
const FIRST_PID: u32 = 1000;

/// Where `malloc` places memory. Addresses are multiples of 2 MiB unless they are scripted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AddressPolicy {
    /// Always above everything before; a freed address never comes back.
    #[default]
    Ascending,
    /// The lowest free range that is large enough.
    FirstFit,
    /// Only where [`SimDevice::push_address`] says; out of memory when nothing is left of the script.
    Scripted,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    properties: DeviceProperties,
    context_overhead: u64,
    granularity: u64,
    policy: AddressPolicy,
    posix_handles: bool,
    fabric_handles: bool,
    peers: Vec<u32>,
    real_host_memory: bool,
    host_memory: u64,
    deadlock_on_wait: bool,
    free_waits: bool,
    strict_streams: bool,
    pub(super) processes_visible: bool,
    driver_reserved: u64,
}

/// Builds a [`SimDevice`]. See the methods for the defaults.
#[derive(Clone, Debug)]
#[must_use = "call build()"]
pub struct SimDeviceBuilder {
    settings: Settings,
    pid: u32,
}

impl Default for SimDeviceBuilder {
    fn default() -> Self {
        let properties = DeviceProperties {
            name: "Simulated GPU".to_owned(),
            total_memory: 80 << 30,
            compute_capability: (9, 0),
            supports_virtual_memory: true,
            simulated: true,
            ..DeviceProperties::default()
        };
        let settings = Settings {
            properties,
            context_overhead: 0,
            granularity: 1,
            policy: AddressPolicy::default(),
            posix_handles: true,
            fabric_handles: false,
            peers: Vec::new(),
            real_host_memory: true,
            host_memory: u64::MAX,
            deadlock_on_wait: false,
            free_waits: true,
            strict_streams: false,
            processes_visible: true,
            driver_reserved: 0,
        };
        SimDeviceBuilder { settings, pid: FIRST_PID }
    }
}

impl SimDeviceBuilder {
    /// Index among the visible devices. Default 0. Devices with different ordinals have different addresses.
    pub fn ordinal(mut self, ordinal: u32) -> Self {
        self.settings.properties.ordinal = ordinal;
        self
    }

    /// Product name. Default "Simulated GPU".
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.properties.name = name.into();
        self
    }

    /// Memory of the whole device in bytes. Default 80 GiB.
    pub fn total_memory(mut self, bytes: u64) -> Self {
        self.settings.properties.total_memory = bytes;
        self
    }

    /// Bytes that the context of each process takes from its start. Default 0.
    pub fn context_overhead(mut self, bytes: u64) -> Self {
        self.settings.context_overhead = bytes;
        self
    }

    /// Each driver allocation takes a multiple of this many bytes. Default 1: an allocation succeeds exactly
    /// when the sum of live bytes stays within the total. A real driver takes 2 MiB.
    pub fn granularity(mut self, bytes: u64) -> Self {
        self.settings.granularity = bytes;
        self
    }

    /// Where `malloc` places memory. Default [`AddressPolicy::Ascending`].
    pub fn address_policy(mut self, policy: AddressPolicy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// Process id of the first process. Default 1000.
    pub fn pid(mut self, pid: u32) -> Self {
        self.pid = pid;
        self
    }

    /// Compute capability, major and minor. Default 9.0.
    pub fn compute_capability(mut self, major: u32, minor: u32) -> Self {
        self.settings.properties.compute_capability = (major, minor);
        self
    }

    /// Driver version as `1000 * major + 10 * minor`. Default 0: there is no driver.
    pub fn driver_version(mut self, version: u32) -> Self {
        self.settings.properties.driver_version = version;
        self
    }

    /// Whether virtual memory management works. Default yes.
    pub fn supports_virtual_memory(mut self, yes: bool) -> Self {
        self.settings.properties.supports_virtual_memory = yes;
        self
    }

    /// Whether physical memory can serve GPUDirect RDMA. Default no.
    pub fn supports_rdma(mut self, yes: bool) -> Self {
        self.settings.properties.supports_rdma = yes;
        self
    }

    /// Whether physical memory may have POSIX file descriptor handles. Default yes. If not, creation fails
    /// with `CUDA_ERROR_NOT_PERMITTED`.
    pub fn posix_handles(mut self, yes: bool) -> Self {
        self.settings.posix_handles = yes;
        self
    }

    /// Whether physical memory may have fabric handles. Default no, as on ordinary machines: creation fails
    /// with `CUDA_ERROR_NOT_PERMITTED`.
    pub fn fabric_handles(mut self, yes: bool) -> Self {
        self.settings.fabric_handles = yes;
        self
    }

    /// Ordinals of further devices that may be given access to mapped memory. Default none.
    pub fn peers(mut self, ordinals: impl IntoIterator<Item = u32>) -> Self {
        self.settings.peers = ordinals.into_iter().collect();
        self
    }

    /// Whether page-locked host memory can be read and written. Default yes; without, addresses mean nothing
    /// and any size costs nothing.
    pub fn real_host_memory(mut self, yes: bool) -> Self {
        self.settings.real_host_memory = yes;
        self
    }

    /// Bytes of host memory that each process may page-lock. Default without limit.
    pub fn host_memory(mut self, bytes: u64) -> Self {
        self.settings.host_memory = bytes;
        self
    }

    /// A call that would wait for a held stream fails with `CUDA_ERROR_LAUNCH_TIMEOUT`. Default no: all held
    /// streams finish, and the wait is counted ([`SimDevice::blocked_waits`]).
    pub fn deadlock_on_wait(mut self, yes: bool) -> Self {
        self.settings.deadlock_on_wait = yes;
        self
    }

    /// Whether `free` waits for the device, as `cuMemFree` does. Default yes.
    pub fn free_waits(mut self, yes: bool) -> Self {
        self.settings.free_waits = yes;
        self
    }

    /// Whether only streams of [`SimDevice::create_stream`] exist. Default no: any handle is a stream, so that
    /// recordings with foreign handles can run.
    pub fn strict_streams(mut self, yes: bool) -> Self {
        self.settings.strict_streams = yes;
        self
    }

    /// Bytes that the driver keeps for itself, beside the total memory; only
    /// [`device_memory`](crate::device::Device::device_memory) shows them. Default 0.
    pub fn driver_reserved(mut self, bytes: u64) -> Self {
        self.settings.driver_reserved = bytes;
        self
    }

    /// Whether `processes()` and `device_memory()` tell who holds memory. Default yes; no is a machine without NVML.
    pub fn processes_visible(mut self, yes: bool) -> Self {
        self.settings.processes_visible = yes;
        self
    }

    /// A GPU with these properties and one process on it.
    pub fn build(self) -> SimDevice {
        let SimDeviceBuilder { mut settings, pid } = self;
        let properties = &mut settings.properties;
        properties.pci = (0, properties.ordinal + 1, 0);
        properties.uuid[12..].copy_from_slice(&(properties.ordinal + 1).to_be_bytes());
        let physical = Physical::new(properties.total_memory, settings.granularity);
        let state = Mutex::new(State { physical, processes: Vec::new() });
        SimDevice::start(Arc::new(Gpu { settings, state }), Some(pid))
    }
}

impl Default for SimDevice {
    fn default() -> Self {
        SimDevice::builder().build()
    }
}

impl SimDevice {
    /// Starts describing a device.
    pub fn builder() -> SimDeviceBuilder {
        SimDeviceBuilder::default()
    }

    /// A device with this much memory and otherwise the defaults of [`SimDeviceBuilder`].
    pub fn new(total_memory: u64) -> Self {
        Self::builder().total_memory(total_memory).build()
    }

    /// Another process on the same GPU: own addresses, handles, streams, faults and books; shared memory. Its
    /// process id is the lowest above all others.
    #[must_use]
    pub fn another_process(&self) -> SimDevice {
        SimDevice::start(Arc::clone(&self.shared.gpu), None)
    }

    fn start(gpu: Arc<Gpu>, pid: Option<u32>) -> SimDevice {
        let settings = &gpu.settings;
        let mut state = gpu.state.lock();
        let pid = pid.unwrap_or_else(|| state.physical.next_pid());
        let index = state.physical.add_process(pid, settings.context_overhead);
        state.processes.push(settings.process(index));
        drop(state);
        let properties = settings.properties.clone();
        SimDevice { shared: Arc::new(Shared { properties, index, gpu }) }
    }

    /// What the process holds, if the machine tells.
    pub(super) fn visible_processes(&self) -> Option<Vec<ProcessMemory>> {
        let gpu = &self.shared.gpu;
        gpu.settings.processes_visible.then(|| gpu.state.lock().physical.processes(self.shared.index))
    }

    /// The device as NVML would count it, if the machine has NVML.
    pub(super) fn visible_memory(&self) -> Option<NvmlMemory> {
        let gpu = &self.shared.gpu;
        let reserved = gpu.settings.driver_reserved;
        gpu.settings.processes_visible.then(|| {
            let state = gpu.state.lock();
            let (total, free) = (state.physical.total(), state.physical.free());
            NvmlMemory { total: total + reserved, used: total - free, reserved, free }
        })
    }
}

impl Settings {
    fn process(&self, index: usize) -> Process {
        let ordinal = self.properties.ordinal;
        let shift = u64::from(ordinal % 16) * DEVICE_STRIDE;
        let accessors = std::iter::once(ordinal).chain(self.peers.iter().copied()).collect();
        let abilities = VmmAbilities {
            supported: self.properties.supports_virtual_memory,
            posix: self.posix_handles,
            fabric: self.fabric_handles,
            accessors,
        };
        Process {
            index,
            ordinal,
            free_waits: self.free_waits,
            memory: AddressSpace::new(MALLOC_BASE + shift, self.policy),
            vmm: Vmm::new(abilities, RESERVATION_BASE + shift),
            host: Host::new(self.real_host_memory, self.host_memory),
            streams: Streams::new(self.deadlock_on_wait, self.strict_streams),
            captures: Captures::default(),
            content: Content::default(),
            faults: Faults::default(),
            clock: Clock::default(),
            log: Log::default(),
            misuses: Vec::new(),
            mismatches: Vec::new(),
        }
    }
}
