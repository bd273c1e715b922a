//! The driver calls behind [`Device`].

use std::ffi::c_void;

use super::CudaDevice;
use super::api::code;
use super::binding::RelaxedCapture;
use super::layout::{AccessDesc, AllocationProp};
use super::share::handle_type_bits;
use crate::device::{
    CaptureId, Device, DeviceProperties, DeviceResult, Event, FabricHandle, GraphNode, HandleType, IpcHandle,
    MemInfo, PhysicalHandle, Stream,
};

/// `CU_EVENT_DISABLE_TIMING`: such events are the cheap ones.
const DISABLE_TIMING: u32 = 2;
/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTREGISTER_PORTABLE`: page-locked for all contexts.
const PORTABLE: u32 = 1;
/// `CU_MEM_ATTACH_GLOBAL`: reachable from any stream.
const ATTACH_GLOBAL: u32 = 1;

/// `CU_STREAM_PER_THREAD`; 0 and `CU_STREAM_LEGACY` (1) are below. Which stream these mean depends on the current
/// context.
const LAST_DEFAULT_STREAM: u64 = 2;

/// The driver takes handles and host addresses as pointers.
fn pointer(handle: u64) -> *mut c_void {
    handle as *mut c_void
}

impl Device for CudaDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn context_handle(&self) -> Option<u64> {
        Some(self.context.cu_ctx() as u64)
    }

    fn malloc(&self, bytes: u64) -> DeviceResult<u64> {
        let _bound = self.bind()?;
        let _relaxed = RelaxedCapture::enter(self.api);
        let mut address = 0;
        // SAFETY: `address` is a valid place for the answer.
        unsafe { self.api.mem_alloc(&raw mut address, bytes as usize) }.ok()?;
        Ok(address)
    }

    fn free(&self, address: u64) -> DeviceResult<()> {
        let _bound = self.bind()?;
        let _relaxed = RelaxedCapture::enter(self.api);
        // SAFETY: the driver checks the address.
        unsafe { self.api.mem_free(address) }.ok()
    }

    fn mem_get_info(&self) -> DeviceResult<MemInfo> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both are valid places for the answers.
        unsafe { self.api.mem_info(&raw mut free, &raw mut total) }.ok()?;
        Ok(MemInfo { free: free as u64, total: total as u64 })
    }

    fn event_create(&self) -> DeviceResult<Event> {
        let _bound = self.bind()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` is a valid place for the answer.
        unsafe { self.api.event_create(&raw mut event, DISABLE_TIMING) }.ok()?;
        Ok(Event(event as u64))
    }

    fn event_destroy(&self, event: Event) -> DeviceResult<()> {
        let _bound = self.bind()?;
        // SAFETY: the caller gives an event of `event_create`, once.
        unsafe { self.api.event_destroy(pointer(event.0)) }.ok()
    }

    /// Makes the context current for the default streams only: an event may be recorded on a stream of another device
    /// than the current one, if it is of the same (CUDA programming guide, "Stream and event behavior").
    fn event_record(&self, event: Event, stream: Stream) -> DeviceResult<()> {
        let record = || {
            // SAFETY: the caller gives an event of `event_create` and a live stream of this context, which is current
            // where the stream is a default one.
            unsafe { self.api.event_record(pointer(event.0), pointer(stream.raw())) }
        };
        if stream.raw() > LAST_DEFAULT_STREAM {
            let status = record();
            if !status.wants_context() {
                return status.ok();
            }
        }
        let _bound = self.bind()?;
        record().ok()
    }

    /// Leaves the thread's context as it is: an event may be asked for whatever device is current (CUDA programming
    /// guide, "Stream and event behavior").
    fn event_query(&self, event: Event) -> DeviceResult<bool> {
        // A query counts as a blocking call, which a capture of another thread forbids.
        let _relaxed = RelaxedCapture::enter(self.api);
        // SAFETY: the caller gives an event of `event_create`.
        let query = || unsafe { self.api.event_query(pointer(event.0)) };
        let mut status = query();
        if status.wants_context() {
            let _bound = self.bind()?;
            status = query();
        }
        if status.code == code::NOT_READY {
            return Ok(false);
        }
        status.ok().map(|()| true)
    }

    fn event_synchronize(&self, event: Event) -> DeviceResult<()> {
        let _bound = self.bind()?;
        // SAFETY: the caller gives an event of `event_create`.
        unsafe { self.api.event_synchronize(pointer(event.0)) }.ok()
    }

    fn stream_wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()> {
        let _bound = self.bind()?;
        // SAFETY: the caller gives a live stream of this context and an event of `event_create`.
        unsafe { self.api.stream_wait_event(pointer(stream.raw()), pointer(event.0), 0) }.ok()
    }

    /// Waits for the device, unless it is the default stream: memory may outlive the stream it was allocated on, and
    /// the driver does not bear the handle of a stream that is gone (a crash was seen, driver 580).
    fn stream_synchronize(&self, stream: Stream) -> DeviceResult<()> {
        if stream != Stream::DEFAULT {
            return self.device_synchronize();
        }
        let _bound = self.bind()?;
        // SAFETY: the default stream is always there.
        unsafe { self.api.stream_synchronize(pointer(stream.raw())) }.ok()
    }

    fn device_synchronize(&self) -> DeviceResult<()> {
        let _bound = self.bind()?;
        // SAFETY: the call takes nothing; the context is current.
        unsafe { self.api.context_synchronize() }.ok()
    }

    fn capture_status(&self, stream: Stream) -> DeviceResult<Option<CaptureId>> {
        let _bound = self.bind()?;
        Ok(self.capture_of(stream)?.map(|capture| capture.id))
    }

    fn capture_terminals(&self, stream: Stream) -> DeviceResult<Vec<GraphNode>> {
        let _bound = self.bind()?;
        Ok(self.capture_of(stream)?.map(|capture| capture.terminals).unwrap_or_default())
    }

    fn graph_node_dependencies(&self, node: GraphNode) -> DeviceResult<Vec<GraphNode>> {
        let _bound = self.bind()?;
        self.predecessors(node)
    }

    fn address_reserve(&self, bytes: u64) -> DeviceResult<u64> {
        let _bound = self.bind()?;
        let mut address = 0;
        // SAFETY: `address` is a valid place for the answer.
        unsafe { self.api.address_reserve(&raw mut address, bytes as usize, 0, 0, 0) }.ok()?;
        Ok(address)
    }

    fn address_free(&self, address: u64, bytes: u64) -> DeviceResult<()> {
        let _bound = self.bind()?;
        // SAFETY: the driver checks that this is a reservation with nothing mapped.
        unsafe { self.api.address_free(address, bytes as usize) }.ok()
    }

    fn mem_create(&self, bytes: u64, handle_type: HandleType) -> DeviceResult<PhysicalHandle> {
        let _bound = self.bind()?;
        let properties = AllocationProp::pinned(
            self.properties.ordinal as i32,
            handle_type_bits(handle_type),
            self.properties.supports_rdma,
        );
        let mut handle = 0;
        // SAFETY: `handle` is a valid place for the answer, and `properties` lives through the call.
        unsafe { self.api.mem_create(&raw mut handle, bytes as usize, &raw const properties, 0) }.ok()?;
        Ok(PhysicalHandle(handle))
    }

    fn mem_release(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        let _bound = self.bind()?;
        // SAFETY: the driver checks the handle.
        unsafe { self.api.mem_release(handle.0) }.ok()
    }

    fn mem_map(&self, address: u64, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        let _bound = self.bind()?;
        // SAFETY: the driver checks the range and the handle.
        unsafe { self.api.mem_map(address, bytes as usize, 0, handle.0, 0) }.ok()
    }

    fn mem_unmap(&self, address: u64, bytes: u64) -> DeviceResult<()> {
        let _bound = self.bind()?;
        // SAFETY: the driver checks that this is one mapping; the caller has waited for work that uses it.
        unsafe { self.api.mem_unmap(address, bytes as usize) }.ok()
    }

    fn mem_set_access(&self, address: u64, bytes: u64, accessor: u32) -> DeviceResult<()> {
        let _bound = self.bind()?;
        let access = AccessDesc::read_write(accessor as i32);
        // SAFETY: `access` is one description that lives through the call; the driver checks the range.
        unsafe { self.api.mem_set_access(address, bytes as usize, &raw const access, 1) }.ok()
    }

    fn host_malloc(&self, bytes: u64) -> DeviceResult<u64> {
        let _bound = self.bind()?;
        let _relaxed = RelaxedCapture::enter(self.api);
        let mut address = std::ptr::null_mut();
        // SAFETY: `address` is a valid place for the answer.
        unsafe { self.api.host_alloc(&raw mut address, bytes as usize, PORTABLE) }.ok()?;
        Ok(address as u64)
    }

    fn host_free(&self, address: u64) -> DeviceResult<()> {
        let _bound = self.bind()?;
        let _relaxed = RelaxedCapture::enter(self.api);
        // SAFETY: the driver checks the address; the caller no longer uses the memory.
        unsafe { self.api.host_free(pointer(address)) }.ok()
    }

    fn host_register(&self, address: u64, bytes: u64) -> DeviceResult<()> {
        let _bound = self.bind()?;
        let _relaxed = RelaxedCapture::enter(self.api);
        // SAFETY: the caller gives memory of its own that stays until `host_unregister`.
        unsafe { self.api.host_register(pointer(address), bytes as usize, PORTABLE) }.ok()
    }

    fn host_unregister(&self, address: u64) -> DeviceResult<()> {
        let _bound = self.bind()?;
        let _relaxed = RelaxedCapture::enter(self.api);
        // SAFETY: the driver checks the address.
        unsafe { self.api.host_unregister(pointer(address)) }.ok()
    }

    fn malloc_managed(&self, bytes: u64) -> DeviceResult<u64> {
        let _bound = self.bind()?;
        let _relaxed = RelaxedCapture::enter(self.api);
        let mut address = 0;
        // SAFETY: `address` is a valid place for the answer.
        unsafe { self.api.mem_alloc_managed(&raw mut address, bytes as usize, ATTACH_GLOBAL) }.ok()?;
        Ok(address)
    }

    fn address_range(&self, address: u64) -> DeviceResult<(u64, u64)> {
        let _bound = self.bind()?;
        let (mut base, mut bytes) = (0, 0_usize);
        // SAFETY: both are valid places for the answers; the driver checks the address.
        unsafe { self.api.mem_address_range(&raw mut base, &raw mut bytes, address) }.ok()?;
        Ok((base, bytes as u64))
    }

    fn ipc_export(&self, address: u64) -> DeviceResult<IpcHandle> {
        self.export_ipc(address)
    }

    fn ipc_open(&self, handle: &IpcHandle) -> DeviceResult<u64> {
        self.open_ipc(handle)
    }

    fn ipc_close(&self, address: u64) -> DeviceResult<()> {
        let _bound = self.bind()?;
        // SAFETY: the driver checks the address.
        unsafe { self.api.ipc_close(address) }.ok()
    }

    #[cfg(unix)]
    fn mem_export_fd(&self, handle: PhysicalHandle) -> DeviceResult<std::os::fd::OwnedFd> {
        self.export_fd(handle)
    }

    #[cfg(unix)]
    fn mem_import_fd(&self, fd: std::os::fd::BorrowedFd<'_>) -> DeviceResult<PhysicalHandle> {
        self.import_fd(fd)
    }

    fn mem_export_fabric(&self, handle: PhysicalHandle) -> DeviceResult<FabricHandle> {
        self.export_fabric(handle)
    }

    fn mem_import_fabric(&self, handle: &FabricHandle) -> DeviceResult<PhysicalHandle> {
        self.import_fabric(handle)
    }

    fn can_access_peer(&self, peer: u32) -> DeviceResult<bool> {
        self.peer_reachable(peer)
    }

    fn enable_peer_access(&self, peer: u32) -> DeviceResult<()> {
        self.reach_peer(peer)
    }

    #[cfg(feature = "nvml")]
    fn processes(&self) -> Option<Vec<crate::device::ProcessMemory>> {
        crate::device::nvml::processes(&self.properties.uuid)
    }

    #[cfg(feature = "nvml")]
    fn device_memory(&self) -> Option<crate::device::NvmlMemory> {
        crate::device::nvml::memory(&self.properties.uuid)
    }
}
