//! The out-of-memory report [spec 11]: numbers for programs, PyTorch's sentence for people.

use crate::config::Config;
use crate::device::ProcessMemory;

/// Why a request failed, in numbers (bytes). `Display` is PyTorch's sentence with the product's name [spec 11.2].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OomReport {
    /// Device ordinal.
    pub device: u32,
    /// What the client asked for.
    pub requested: u64,
    /// The request rounded to a block size.
    pub rounded: u64,
    /// The segment that the driver was asked for.
    pub segment_size: u64,
    /// Raw handle of the stream of the request.
    pub stream: u64,
    /// Total memory as the driver reports it.
    pub device_total: u64,
    /// Free memory as the driver reports it.
    pub device_free: u64,
    /// The cap, if one is set.
    pub allowed: Option<u64>,
    /// `allocated_bytes.all.current`.
    pub allocated: u64,
    /// `reserved_bytes.all.current`.
    pub reserved: u64,
    /// `active_bytes.all.current`.
    pub active: u64,
    /// Free blocks of private pools.
    pub private_free: u64,
    /// Largest free block that the request could have used (its pool and stream).
    pub largest_free: u64,
    /// Processes on the device, where they can be known.
    pub processes: Option<Vec<ProcessMemory>>,
    /// The options in force.
    pub config: Config,
}

impl std::fmt::Display for OomReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CUDA out of memory.")
    }
}
