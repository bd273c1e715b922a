//! Whether there is a driver and a GPU, and what kind: answers without a panic on any machine.

use std::ffi::{CStr, c_char, c_int};

use super::api::{Api, code};
use crate::device::{DeviceProperties, DeviceResult};
use crate::error::{Error, Result};

/// Numbers of `CUdevice_attribute`, the same in all CUDA versions.
mod attribute {
    pub(super) const PCI_BUS: u32 = 33;
    pub(super) const PCI_DEVICE: u32 = 34;
    pub(super) const PCI_DOMAIN: u32 = 50;
    pub(super) const CAPABILITY_MAJOR: u32 = 75;
    pub(super) const CAPABILITY_MINOR: u32 = 76;
    pub(super) const VIRTUAL_MEMORY: u32 = 102;
    pub(super) const RDMA_WITH_VIRTUAL_MEMORY: u32 = 110;
}

/// Whether a CUDA driver and at least one GPU can be used. Never fails and never panics.
///
/// Visible devices only: `CUDA_VISIBLE_DEVICES` counts.
pub fn is_available() -> bool {
    device_count().is_ok_and(|count| count > 0)
}

/// How many GPUs are visible, at least 1.
///
/// # Errors
///
/// [`Error::NoDriver`] without a driver library (or with a toolkit's stub of it), [`Error::NoGpu`] with a driver that
/// sees no GPU, [`Error::Device`] if the driver cannot start for another reason.
pub fn device_count() -> Result<u32> {
    let api = initialized()?;
    let mut count = 0;
    // SAFETY: `count` is a valid place for the answer.
    unsafe { api.device_count(&raw mut count) }.ok()?;
    match u32::try_from(count) {
        Ok(0) | Err(_) => Err(Error::NoGpu("0 devices are visible".to_owned())),
        Ok(count) => Ok(count),
    }
}

/// What is fixed about a GPU, without making a context on it.
///
/// # Errors
///
/// Those of [`device_count`], and [`Error::InvalidOrdinal`].
pub fn device_properties(ordinal: u32) -> Result<DeviceProperties> {
    let (api, device) = device(ordinal)?;
    Ok(read_properties(api, device, ordinal)?)
}

/// The driver, loaded and started.
pub(super) fn initialized() -> Result<&'static Api> {
    let api = Api::get().map_err(Error::NoDriver)?;
    // SAFETY: `cuInit` has no preconditions, and is quick when it has run before.
    let status = unsafe { api.init(0) };
    match status.code {
        code::SUCCESS => Ok(api),
        code::STUB_LIBRARY => Err(Error::NoDriver(stub_text())),
        code::NO_DEVICE => Err(Error::NoGpu(format!("cuInit: {}", api.name_of(code::NO_DEVICE)))),
        _ => Err(status.error().into()),
    }
}

pub(super) fn stub_text() -> String {
    "the libcuda that was loaded is the toolkit's stub library; put the driver's own before it in the library path"
        .to_owned()
}

/// The started driver and the device with that ordinal.
pub(super) fn device(ordinal: u32) -> Result<(&'static Api, c_int)> {
    let count = device_count()?;
    if ordinal >= count {
        return Err(Error::InvalidOrdinal { ordinal, count });
    }
    let api = initialized()?;
    let mut device = 0;
    // SAFETY: `device` is a valid place for the answer; the ordinal was compared with the (small) count.
    unsafe { api.device_get(&raw mut device, ordinal as c_int) }.ok()?;
    Ok((api, device))
}

pub(super) fn read_properties(
    api: &'static Api,
    device: c_int,
    ordinal: u32,
) -> DeviceResult<DeviceProperties> {
    let attribute = |which| read_attribute(api, device, which);
    let mut properties = DeviceProperties {
        ordinal,
        name: read_name(api, device)?,
        compute_capability: (
            attribute(attribute::CAPABILITY_MAJOR)?,
            attribute(attribute::CAPABILITY_MINOR)?,
        ),
        pci: (
            attribute(attribute::PCI_DOMAIN)?,
            attribute(attribute::PCI_BUS)?,
            attribute(attribute::PCI_DEVICE)?,
        ),
        // A driver that does not know an attribute lacks the ability.
        supports_virtual_memory: attribute(attribute::VIRTUAL_MEMORY).unwrap_or(0) != 0,
        supports_rdma: attribute(attribute::RDMA_WITH_VIRTUAL_MEMORY).unwrap_or(0) != 0,
        ..DeviceProperties::default()
    };
    let (mut bytes, mut version) = (0_usize, 0);
    // SAFETY: `bytes` is a valid place for the answer.
    unsafe { api.device_total_memory(&raw mut bytes, device) }.ok()?;
    // SAFETY: as above, for `version`.
    unsafe { api.driver_version(&raw mut version) }.ok()?;
    // SAFETY: the driver writes 16 bytes. Without an answer the zeros stay, which mean "unknown".
    let _ = unsafe { api.device_uuid(&raw mut properties.uuid, device) };
    properties.total_memory = bytes as u64;
    properties.driver_version = u32::try_from(version).unwrap_or(0);
    Ok(properties)
}

fn read_attribute(api: &'static Api, device: c_int, attribute: u32) -> DeviceResult<u32> {
    let mut value = 0;
    // SAFETY: `value` is a valid place for the answer.
    unsafe { api.device_attribute(&raw mut value, attribute, device) }.ok()?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn read_name(api: &'static Api, device: c_int) -> DeviceResult<String> {
    const CAPACITY: usize = 256;
    let mut buffer: [c_char; CAPACITY] = [0; CAPACITY];
    // SAFETY: the driver writes at most the given length, which leaves the last byte 0.
    unsafe { api.device_name(buffer.as_mut_ptr(), CAPACITY as c_int - 1, device) }.ok()?;
    // SAFETY: the buffer ends in a 0 and outlives the borrow.
    Ok(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned())
}
