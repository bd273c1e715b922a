//! Structures of `cuda.h` that cross the driver's interface.
//!
//! Their layout is frozen by the driver's binary interface, while cudarc's declarations of them change shape with the
//! CUDA version that the user chose (`CUmemLocation.id` is a field up to 13.1 and a union from 13.2 on). The tests
//! below compare the sizes with cudarc's.

use std::ffi::c_void;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const ALLOCATION_PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const ACCESS_READ_WRITE: u32 = 3;

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: u32,
    id: i32,
}

/// `CUmemAllocationProp`
#[repr(C)]
pub(super) struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32_metadata: *mut c_void,
    compression: u8,
    rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl AllocationProp {
    /// Pinned memory of a device [spec 13.3].
    pub(super) fn pinned(device: i32, handle_types: u32, rdma: bool) -> Self {
        AllocationProp {
            kind: ALLOCATION_PINNED,
            handle_types,
            location: Location { kind: LOCATION_DEVICE, id: device },
            win32_metadata: std::ptr::null_mut(),
            compression: 0,
            rdma_capable: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// `CUmemAccessDesc`
#[repr(C)]
pub(super) struct AccessDesc {
    location: Location,
    flags: u32,
}

impl AccessDesc {
    /// Reading and writing by a device.
    pub(super) fn read_write(device: i32) -> Self {
        AccessDesc { location: Location { kind: LOCATION_DEVICE, id: device }, flags: ACCESS_READ_WRITE }
    }
}

/// `CUgraphEdgeData`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct EdgeData([u8; 8]);

/// `CUipcMemHandle`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcBytes(pub(super) [u8; 64]);

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::*;
    use cudarc::driver::sys;

    #[test]
    fn sizes_are_those_of_cudarcs_bindings() {
        assert_eq!(size_of::<Location>(), size_of::<sys::CUmemLocation>());
        assert_eq!(size_of::<AllocationProp>(), size_of::<sys::CUmemAllocationProp>());
        assert_eq!(align_of::<AllocationProp>(), align_of::<sys::CUmemAllocationProp>());
        assert_eq!(size_of::<AccessDesc>(), size_of::<sys::CUmemAccessDesc>());
        assert_eq!(size_of::<IpcBytes>(), size_of::<sys::CUipcMemHandle>());
    }

    #[test]
    fn fields_stand_where_cudarc_has_them() {
        assert_eq!(
            offset_of!(AllocationProp, handle_types),
            offset_of!(sys::CUmemAllocationProp, requestedHandleTypes)
        );
        assert_eq!(offset_of!(AllocationProp, location), offset_of!(sys::CUmemAllocationProp, location));
        assert_eq!(
            offset_of!(AllocationProp, win32_metadata),
            offset_of!(sys::CUmemAllocationProp, win32HandleMetaData)
        );
        assert_eq!(offset_of!(AllocationProp, compression), offset_of!(sys::CUmemAllocationProp, allocFlags));
        assert_eq!(offset_of!(AccessDesc, flags), offset_of!(sys::CUmemAccessDesc, flags));
    }
}
