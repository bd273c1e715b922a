//! What can go wrong, as types.

use crate::config::ConfigError;
use crate::device::DeviceError;
use crate::observe::oom::OomReport;

/// The result of an allocator call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that an allocator call can answer instead of success.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request does not fit; the report says why. Its `Display` is PyTorch's sentence [spec 11.2].
    #[error(transparent)]
    OutOfMemory(Box<OomReport>),
    /// A request of 1 EiB or more, or one whose size overflows when rounded [spec 11.4].
    #[error("CUDA out of memory. Tried to allocate more than 1EB memory.")]
    TooLarge {
        /// The request in bytes.
        requested: u64,
    },
    /// The address is not the start of a live block of this allocator [spec 5.1].
    #[error("invalid device pointer: {address:#x} ({reason})")]
    InvalidPointer {
        /// The address given.
        address: u64,
        /// What is known about it.
        reason: &'static str,
    },
    /// The system has no more page-locked memory for this process, even after everything that was freed was
    /// given back.
    #[error(
        "out of pinned host memory: tried to allocate {requested} bytes (rounded to {rounded}); {active} bytes are in use, {cached} cached. Use fewer or smaller pinned buffers, or raise the limit on locked memory (ulimit -l, the container's memory limit)"
    )]
    HostOutOfMemory {
        /// The request in bytes.
        requested: u64,
        /// The block that was asked of the system, in bytes.
        rounded: u64,
        /// Bytes of blocks handed out.
        active: u64,
        /// Bytes of cached blocks that could not be given back.
        cached: u64,
    },
    /// A request for pinned memory of more than 1 EiB, or one whose size overflows.
    #[error("out of pinned host memory: {requested} bytes are more than any machine has (the limit is 2^60)")]
    HostTooLarge {
        /// The request in bytes; the largest number where it overflows.
        requested: u64,
    },
    /// The address is not the start of a live pinned block of this allocator.
    #[error("invalid pinned host pointer: {address:#x} ({reason})")]
    InvalidHostPointer {
        /// The address given.
        address: u64,
        /// What is known about it.
        reason: &'static str,
    },
    /// A memory fraction outside 0 to 1 [spec 8.1].
    #[error("invalid fraction:{fraction}. Please set within [0, 1].")]
    InvalidFraction {
        /// The fraction given.
        fraction: f64,
    },
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A driver call failed for another reason than memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No CUDA driver library can be loaded.
    #[error(
        "no CUDA driver: {0}. Install the NVIDIA driver, or use `Allocator::simulated` for a GPU in memory"
    )]
    NoDriver(String),
    /// The driver is there, but no GPU.
    #[error(
        "the CUDA driver reports no usable GPU ({0}). Check nvidia-smi, CUDA_VISIBLE_DEVICES and the container's GPU options"
    )]
    NoGpu(String),
    /// The ordinal names no visible device.
    #[error("Invalid device argument {ordinal}: there are {count} visible devices (0 to {})", count.saturating_sub(1))]
    InvalidOrdinal {
        /// The ordinal given.
        ordinal: u32,
        /// How many devices are visible.
        count: u32,
    },
    /// A private pool was used in a way that its state does not allow [spec 14].
    #[error("{0}")]
    Pool(String),
    /// A buffer, stream or length that does not fit the call.
    #[error("{0}")]
    Buffer(String),
    /// A scope's byte budget would be exceeded.
    #[error("scope '{scope}' is limited to {budget} bytes: {in_use} in use, {requested} more requested")]
    ScopeBudget {
        /// The scope's name.
        scope: String,
        /// Its budget in bytes.
        budget: u64,
        /// Bytes in use in it.
        in_use: u64,
        /// The request in bytes.
        requested: u64,
    },
    /// The allocator was made in another process (before `fork`).
    #[error(
        "this allocator was made in process {owner} and cannot be used in its forked child {child}: CUDA does not survive fork; make a new allocator in the child, or start it with spawn/exec"
    )]
    Forked {
        /// The process that made the allocator.
        owner: u32,
        /// The calling process.
        child: u32,
    },
    /// The option or ability is not there.
    #[error("not supported: {0}")]
    NotSupported(String),
}

impl Error {
    /// Whether this is an out-of-memory answer (of the device, of a cap, of a scope's budget, of pinned memory).
    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Error::OutOfMemory(_)
                | Error::TooLarge { .. }
                | Error::ScopeBudget { .. }
                | Error::HostOutOfMemory { .. }
                | Error::HostTooLarge { .. }
        )
    }
}
