#![doc = include_str!("../README.md")]

mod allocator;
pub mod buffer;
pub mod config;
pub mod device;
mod engine;
mod error;
#[cfg(feature = "export")]
pub mod export;
#[cfg(feature = "import")]
pub mod import;
#[cfg(feature = "dlpack")]
pub mod interop;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod observe;
#[cfg(any(feature = "export", feature = "metrics"))]
mod periodic;
mod pinned;
#[cfg(feature = "plot")]
pub mod plot;
mod pool;
#[cfg(feature = "replay")]
pub mod replay;
mod size;
pub mod stats;
pub mod units;

pub use allocator::{
    Allocation, AllocationParts, Allocator, Builder, EmptyCacheReport, Forecast, HistoryOptions, KeptReason,
    KeptSegment, ManagedUpstream, MemPool, PinnedAllocator, Scope, ScopeGuard, ScopeStats, Upstream,
};
pub use allocator::{CaptureScope, GraphPool, PoolCheckpoint, PoolRestore, PooledGraph};
#[cfg(unix)]
pub use allocator::{OpenedBlock, SharedBlock};
pub use buffer::{DeviceBuffer, TypedAllocation};
pub use config::Config;
pub use cudarc;
pub use device::cuda::{device_count, device_properties, is_available};
pub use error::{Error, Result};
pub use pinned::PinnedBuffer;
