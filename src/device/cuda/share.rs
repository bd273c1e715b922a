//! Memory that other processes and other devices reach.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::api::code;
use super::layout::IpcBytes;
use super::{CudaDevice, as_device_error, cudarc_error, probe};
use crate::device::{DeviceResult, FabricHandle, HandleType, IpcHandle, PhysicalHandle};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the manual asks for it, in case the memory lies on another device.
const LAZY_PEER_ACCESS: u32 = 1;

/// `CUmemAllocationHandleType`
pub(super) fn handle_type_bits(handle_type: HandleType) -> u32 {
    match handle_type {
        HandleType::None => 0,
        HandleType::PosixFileDescriptor => 1,
        HandleType::Fabric => 8,
    }
}

impl CudaDevice {
    pub(super) fn export_ipc(&self, address: u64) -> DeviceResult<IpcHandle> {
        let _bound = self.bind()?;
        let mut bytes = IpcBytes([0; 64]);
        // SAFETY: the driver writes 64 bytes; it checks the address.
        unsafe { self.api.ipc_get(&raw mut bytes, address) }.ok()?;
        Ok(IpcHandle(bytes.0))
    }

    pub(super) fn open_ipc(&self, handle: &IpcHandle) -> DeviceResult<u64> {
        let _bound = self.bind()?;
        let mut address = 0;
        // SAFETY: `address` is a valid place for the answer; the driver checks the handle's bytes.
        unsafe { self.api.ipc_open(&raw mut address, IpcBytes(handle.0), LAZY_PEER_ACCESS) }.ok()?;
        Ok(address)
    }

    #[cfg(unix)]
    pub(super) fn export_fd(&self, handle: PhysicalHandle) -> DeviceResult<std::os::fd::OwnedFd> {
        use std::os::fd::{FromRawFd, OwnedFd};

        let _bound = self.bind()?;
        let mut fd: std::ffi::c_int = -1;
        let kind = handle_type_bits(HandleType::PosixFileDescriptor);
        // SAFETY: for this kind the driver writes an int; it checks the handle.
        unsafe { self.api.mem_export((&raw mut fd).cast(), handle.0, kind, 0) }.ok()?;
        // SAFETY: the driver has just made this descriptor for the caller to own.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    #[cfg(unix)]
    pub(super) fn import_fd(&self, fd: std::os::fd::BorrowedFd<'_>) -> DeviceResult<PhysicalHandle> {
        use std::os::fd::AsRawFd;

        let _bound = self.bind()?;
        let mut handle = 0;
        let kind = handle_type_bits(HandleType::PosixFileDescriptor);
        // SAFETY: for this kind the pointer argument is the descriptor itself, which is open while it is borrowed.
        unsafe { self.api.mem_import(&raw mut handle, fd.as_raw_fd() as usize as *mut c_void, kind) }.ok()?;
        Ok(PhysicalHandle(handle))
    }

    pub(super) fn export_fabric(&self, handle: PhysicalHandle) -> DeviceResult<FabricHandle> {
        let _bound = self.bind()?;
        let mut fabric = FabricHandle([0; 64]);
        let kind = handle_type_bits(HandleType::Fabric);
        // SAFETY: for this kind the driver writes 64 bytes; it checks the handle.
        unsafe { self.api.mem_export((&raw mut fabric.0).cast(), handle.0, kind, 0) }.ok()?;
        Ok(fabric)
    }

    pub(super) fn import_fabric(&self, fabric: &FabricHandle) -> DeviceResult<PhysicalHandle> {
        let _bound = self.bind()?;
        let mut bytes = fabric.0;
        let mut handle = 0;
        let kind = handle_type_bits(HandleType::Fabric);
        // SAFETY: for this kind the pointer is to 64 bytes, which the driver checks.
        unsafe { self.api.mem_import(&raw mut handle, (&raw mut bytes).cast(), kind) }.ok()?;
        Ok(PhysicalHandle(handle))
    }

    pub(super) fn peer_reachable(&self, peer: u32) -> DeviceResult<bool> {
        let peer = peer_device(peer)?;
        let mut can = 0;
        // SAFETY: `can` is a valid place for the answer.
        unsafe { self.api.can_access_peer(&raw mut can, self.context.cu_device(), peer) }.ok()?;
        Ok(can != 0)
    }

    pub(super) fn reach_peer(&self, peer: u32) -> DeviceResult<()> {
        peer_device(peer)?;
        let mut peers = self.peers.lock();
        if peers.contains_key(&peer) {
            return Ok(());
        }
        let context = self.peer_context(peer)?;
        let _bound = self.bind()?;
        // SAFETY: the context is alive, and is kept so below for as long as the access lasts.
        unsafe { self.api.enable_peer_access(context.cu_ctx().cast(), 0) }
            .ok_or(code::PEER_ACCESS_ALREADY_ENABLED)?;
        peers.insert(peer, context);
        Ok(())
    }

    /// The peer's primary context. cudarc leaves it current on the thread, so the thread's own is put back.
    fn peer_context(&self, peer: u32) -> DeviceResult<Arc<CudaContext>> {
        const CALL: &str = "cuDevicePrimaryCtxRetain";
        let mut previous = std::ptr::null_mut();
        // SAFETY: `previous` is a valid place for the answer.
        unsafe { self.api.context_current(&raw mut previous) }.ok()?;
        let context = CudaContext::new(peer as usize)
            .map_err(|error| as_device_error(CALL, cudarc_error(self.api, CALL, error)));
        // SAFETY: it was current on this thread before, or is null, which means none.
        unsafe { self.api.context_set_current(previous) }.ok()?;
        context
    }
}

fn peer_device(peer: u32) -> DeviceResult<i32> {
    probe::device(peer).map(|(_, device)| device).map_err(|error| as_device_error("cuDeviceGet", error))
}
