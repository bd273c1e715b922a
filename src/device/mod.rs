//! What the allocator needs from a driver.
//!
//! [`Device`] is the only door between the allocator and a GPU. [`sim`] is a GPU in memory,
//! [`cuda`] is a real one through cudarc's driver API.

pub mod cuda;
#[cfg(feature = "nvml")]
pub mod nvml;
pub mod sim;

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A stream, by its raw handle (`CUstream` as an integer). The default stream is 0.
///
/// Handles are compared as unsigned integers: free blocks are ordered by them [spec 3.1].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stream(u64);

impl Stream {
    /// The default (null) stream.
    pub const DEFAULT: Stream = Stream(0);

    /// A stream from its raw driver handle.
    pub const fn from_raw(handle: u64) -> Self {
        Stream(handle)
    }

    /// The raw driver handle.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.0)
    }
}

/// A driver event, by a handle that only the device that made it understands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event(pub u64);

/// A piece of physical memory made by [`Device::mem_create`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PhysicalHandle(pub u64);

/// Identifies one stream capture under way (unique per capture in the process).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CaptureId(pub u64);

/// A node of a graph under capture, by a handle that only its device understands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct GraphNode(pub u64);

/// The kind of shareable handle that physical memory is created for [spec 13.3].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HandleType {
    /// Not shareable.
    #[default]
    None,
    /// A POSIX file descriptor.
    PosixFileDescriptor,
    /// A fabric handle (several hosts).
    Fabric,
}

/// Names ordinary device memory to another process ([`Device::ipc_export`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpcHandle(pub [u8; 64]);

/// Names physical memory to another process, also on another host ([`Device::mem_export_fabric`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FabricHandle(pub [u8; 64]);

/// Free and total bytes as the driver reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemInfo {
    /// Bytes that the driver could still hand out.
    pub free: u64,
    /// Bytes of the whole device.
    pub total: u64,
}

/// The memory of a device as NVML, and so `nvidia-smi`, counts it. Bytes; `used + free + reserved = total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NvmlMemory {
    /// All memory of the device: more than [`MemInfo::total`] by the reserved part.
    pub total: u64,
    /// Held by processes (`memory.used`).
    pub used: u64,
    /// What the driver and the firmware keep for themselves (`memory.reserved`).
    pub reserved: u64,
    /// Held by nobody (`memory.free`).
    pub free: u64,
}

/// What is fixed about a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// Index among the visible devices.
    pub ordinal: u32,
    /// Product name, as the driver gives it.
    pub name: String,
    /// Total memory in bytes.
    pub total_memory: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Driver version as `1000 * major + 10 * minor`; 0 where there is no driver.
    pub driver_version: u32,
    /// The device's UUID; zeros where unknown.
    pub uuid: [u8; 16],
    /// PCI domain, bus and device number.
    pub pci: (u32, u32, u32),
    /// Whether virtual memory management works ([`Device::address_reserve`] and the like).
    pub supports_virtual_memory: bool,
    /// Whether memory can be created for GPUDirect RDMA with virtual memory management.
    pub supports_rdma: bool,
    /// Whether this is a simulated device.
    pub simulated: bool,
}

/// Memory that one process holds on a device, as NVML (or the simulation) tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessMemory {
    /// Process id.
    pub pid: u32,
    /// Bytes in use; `None` where the driver does not say.
    pub used: Option<u64>,
    /// Whether it is the calling process.
    pub is_self: bool,
}

/// Why a driver call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device has not enough memory for the call.
    #[error("{call}: out of memory")]
    OutOfMemory {
        /// The driver function.
        call: &'static str,
    },
    /// The device or driver cannot do this at all.
    #[error("{call}: not supported by this device or driver")]
    NotSupported {
        /// The driver function.
        call: &'static str,
    },
    /// The driver is shutting down: whatever was to be freed is gone already.
    #[error("{call}: the driver is shutting down")]
    ShuttingDown {
        /// The driver function.
        call: &'static str,
    },
    /// Any other error.
    #[error("{call} failed: {name} ({code})")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// The driver's error number.
        code: u32,
        /// The driver's name for it, such as `CUDA_ERROR_INVALID_VALUE`.
        name: String,
    },
}

impl DeviceError {
    /// Whether the call failed for lack of memory, so that releasing some may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, DeviceError::OutOfMemory { .. })
    }
}

/// The result of a driver call.
pub type DeviceResult<T> = Result<T, DeviceError>;

/// What the allocator needs from a driver. All calls may come from any thread.
///
/// Sizes and addresses are in bytes. An implementation makes the right context current in every call and
/// leaves no sticky error behind. Calls with a default body are optional abilities.
///
/// # Errors
///
/// Every call fails in the same ways: [`DeviceError::OutOfMemory`] when it would need memory that the device (or the
/// host, for pinned memory) cannot give, [`DeviceError::NotSupported`] for an ability that the device or its driver
/// lacks, [`DeviceError::ShuttingDown`] once the driver is being unloaded, and [`DeviceError::Driver`] with the driver's
/// own code for the rest, such as an address or a handle that it does not know. A call that fails has changed nothing.
#[allow(clippy::missing_errors_doc, reason = "said once above: each call forwards the driver's answer")]
pub trait Device: Send + Sync + fmt::Debug + 'static {
    /// What is fixed about the device.
    fn properties(&self) -> &DeviceProperties;

    /// The driver's handle (`CUcontext`) of the context that the memory belongs to; `None` where there is no driver.
    fn context_handle(&self) -> Option<u64> {
        None
    }

    /// Allocates device memory (`cuMemAlloc`). During a stream capture of the calling thread the capture mode
    /// is relaxed around the call [spec 4.3].
    fn malloc(&self, bytes: u64) -> DeviceResult<u64>;

    /// Frees what [`malloc`](Device::malloc) gave (`cuMemFree`). Waits for the device.
    fn free(&self, address: u64) -> DeviceResult<()>;

    /// Free and total memory (`cuMemGetInfo`).
    fn mem_get_info(&self) -> DeviceResult<MemInfo>;

    /// Reports a pending asynchronous error, if there is one.
    fn pending_error(&self) -> DeviceResult<()> {
        Ok(())
    }

    /// Creates an event without timing.
    fn event_create(&self) -> DeviceResult<Event>;
    /// Destroys an event.
    fn event_destroy(&self, event: Event) -> DeviceResult<()>;
    /// Records the event on a stream.
    fn event_record(&self, event: Event, stream: Stream) -> DeviceResult<()>;
    /// Whether everything before the event has run.
    fn event_query(&self, event: Event) -> DeviceResult<bool>;
    /// Blocks until everything before the event has run.
    fn event_synchronize(&self, event: Event) -> DeviceResult<()>;
    /// Makes later work on `stream` wait for the event, without blocking the caller.
    fn stream_wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()>;
    /// Blocks until the stream is idle. The stream may have been destroyed: then an error, or a wait for the device.
    fn stream_synchronize(&self, stream: Stream) -> DeviceResult<()>;
    /// Blocks until the device is idle.
    fn device_synchronize(&self) -> DeviceResult<()>;

    /// The capture that the stream takes part in, if any.
    fn capture_status(&self, _stream: Stream) -> DeviceResult<Option<CaptureId>> {
        Ok(None)
    }

    /// The nodes that the next work captured on `stream` would depend on (the stream's terminals).
    fn capture_terminals(&self, _stream: Stream) -> DeviceResult<Vec<GraphNode>> {
        Err(DeviceError::NotSupported { call: "cuStreamGetCaptureInfo" })
    }

    /// The direct predecessors of a node under capture.
    fn graph_node_dependencies(&self, _node: GraphNode) -> DeviceResult<Vec<GraphNode>> {
        Err(DeviceError::NotSupported { call: "cuGraphNodeGetDependencies" })
    }

    /// Reserves address space (`cuMemAddressReserve`, no alignment or address hint).
    fn address_reserve(&self, _bytes: u64) -> DeviceResult<u64> {
        Err(DeviceError::NotSupported { call: "cuMemAddressReserve" })
    }
    /// Gives address space back. Nothing may be mapped in it.
    fn address_free(&self, _address: u64, _bytes: u64) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuMemAddressFree" })
    }
    /// Creates physical memory.
    fn mem_create(&self, _bytes: u64, _handle_type: HandleType) -> DeviceResult<PhysicalHandle> {
        Err(DeviceError::NotSupported { call: "cuMemCreate" })
    }
    /// Releases physical memory (its mappings keep it alive).
    fn mem_release(&self, _handle: PhysicalHandle) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuMemRelease" })
    }
    /// Maps physical memory at an address inside a reservation.
    fn mem_map(&self, _address: u64, _bytes: u64, _handle: PhysicalHandle) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuMemMap" })
    }
    /// Unmaps exactly one earlier mapping.
    fn mem_unmap(&self, _address: u64, _bytes: u64) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuMemUnmap" })
    }
    /// Gives device `accessor` (an ordinal) read and write access to a mapped range.
    fn mem_set_access(&self, _address: u64, _bytes: u64, _accessor: u32) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuMemSetAccess" })
    }

    /// Whether [`host_malloc`](Device::host_malloc) gives memory of this process that may be read and written until it
    /// is freed: [`PinnedBuffer`](crate::PinnedBuffer) relies on the answer. A simulation may give bare addresses;
    /// there are no buffers then.
    fn host_memory_is_real(&self) -> bool {
        true
    }
    /// Allocates page-locked host memory (`cuMemHostAlloc`).
    fn host_malloc(&self, _bytes: u64) -> DeviceResult<u64> {
        Err(DeviceError::NotSupported { call: "cuMemHostAlloc" })
    }
    /// Frees what [`host_malloc`](Device::host_malloc) gave.
    fn host_free(&self, _address: u64) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuMemFreeHost" })
    }
    /// Page-locks ordinary host memory (`cuMemHostRegister`).
    fn host_register(&self, _address: u64, _bytes: u64) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuMemHostRegister" })
    }
    /// Undoes [`host_register`](Device::host_register).
    fn host_unregister(&self, _address: u64) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuMemHostUnregister" })
    }

    /// Allocates managed memory (`cuMemAllocManaged`, reachable from every device and the host): it may exceed the
    /// device's memory, at the price of page faults and transfers whenever it does. [`free`](Device::free) frees it.
    fn malloc_managed(&self, _bytes: u64) -> DeviceResult<u64> {
        Err(DeviceError::NotSupported { call: "cuMemAllocManaged" })
    }
    /// Base and size in bytes of the allocation or mapping that contains an address (`cuMemGetAddressRange`).
    fn address_range(&self, _address: u64) -> DeviceResult<(u64, u64)> {
        Err(DeviceError::NotSupported { call: "cuMemGetAddressRange" })
    }

    /// A handle by which another process on this host can open memory of [`malloc`](Device::malloc). It names the
    /// whole allocation that `address` lies in [spec 13.7].
    fn ipc_export(&self, _address: u64) -> DeviceResult<IpcHandle> {
        Err(DeviceError::NotSupported { call: "cuIpcGetMemHandle" })
    }
    /// Opens another process's memory; the address is that of the allocation's base. The exporter must not free it
    /// before [`ipc_close`](Device::ipc_close).
    fn ipc_open(&self, _handle: &IpcHandle) -> DeviceResult<u64> {
        Err(DeviceError::NotSupported { call: "cuIpcOpenMemHandle" })
    }
    /// Closes what [`ipc_open`](Device::ipc_open) gave.
    fn ipc_close(&self, _address: u64) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuIpcCloseMemHandle" })
    }
    /// A file descriptor for physical memory that was created for [`HandleType::PosixFileDescriptor`].
    #[cfg(unix)]
    fn mem_export_fd(&self, _handle: PhysicalHandle) -> DeviceResult<std::os::fd::OwnedFd> {
        Err(DeviceError::NotSupported { call: "cuMemExportToShareableHandle" })
    }
    /// Physical memory from such a descriptor, which may be closed afterwards. To be released by
    /// [`mem_release`](Device::mem_release), like memory of one's own.
    #[cfg(unix)]
    fn mem_import_fd(&self, _fd: std::os::fd::BorrowedFd<'_>) -> DeviceResult<PhysicalHandle> {
        Err(DeviceError::NotSupported { call: "cuMemImportFromShareableHandle" })
    }
    /// A fabric handle for physical memory that was created for [`HandleType::Fabric`].
    fn mem_export_fabric(&self, _handle: PhysicalHandle) -> DeviceResult<FabricHandle> {
        Err(DeviceError::NotSupported { call: "cuMemExportToShareableHandle" })
    }
    /// Physical memory from a fabric handle.
    fn mem_import_fabric(&self, _handle: &FabricHandle) -> DeviceResult<PhysicalHandle> {
        Err(DeviceError::NotSupported { call: "cuMemImportFromShareableHandle" })
    }

    /// Whether this device can reach the memory of device `peer` (an ordinal) directly.
    fn can_access_peer(&self, _peer: u32) -> DeviceResult<bool> {
        Ok(false)
    }
    /// Lets this device reach memory of [`malloc`](Device::malloc) on device `peer`, now and later. Enabling it twice
    /// is no error. Mapped memory needs [`mem_set_access`](Device::mem_set_access) instead.
    fn enable_peer_access(&self, _peer: u32) -> DeviceResult<()> {
        Err(DeviceError::NotSupported { call: "cuCtxEnablePeerAccess" })
    }

    /// Time since some moment in the past; never goes back. Not a driver call: `release_idle_after` reads it where
    /// a request has missed the cache.
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    /// The processes that hold memory on the device, in the order of the system's tool; `None` where that
    /// cannot be known (no NVML, or a container that hides them).
    fn processes(&self) -> Option<Vec<ProcessMemory>> {
        None
    }

    /// The device's memory as `nvidia-smi` shows it; `None` without NVML.
    fn device_memory(&self) -> Option<NvmlMemory> {
        None
    }
}
