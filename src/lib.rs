#![doc = include_str!("../README.md")]

mod allocator;
pub mod config;
pub mod device;
mod engine;
mod error;
#[cfg(feature = "export")]
pub mod export;
#[cfg(feature = "import")]
pub mod import;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod observe;
<<<<<<< HEAD
mod pinned;
=======
#[cfg(any(feature = "export", feature = "metrics"))]
mod periodic;
>>>>>>> 18ca3e5 (Metrics: OpenMetrics text, facade, JSON lines; figures exported in a file)
#[cfg(feature = "plot")]
pub mod plot;
mod pool;
#[cfg(feature = "replay")]
pub mod replay;
mod size;
pub mod stats;
pub mod units;

pub use allocator::{
<<<<<<< HEAD
    Allocation, AllocationParts, Allocator, Builder, EmptyCacheReport, Forecast, HistoryOptions, KeptReason, KeptSegment,
    MemPool, PinnedAllocator, Upstream,
=======
    Allocation, AllocationParts, Allocator, Builder, EmptyCacheReport, Forecast, HistoryOptions, KeptReason,
    KeptSegment, MemPool, Upstream,
>>>>>>> 18ca3e5 (Metrics: OpenMetrics text, facade, JSON lines; figures exported in a file)
};
pub use allocator::{CaptureScope, GraphPool, PoolCheckpoint, PoolRestore, PooledGraph};
pub use config::Config;
pub use cudarc;
pub use device::cuda::{device_count, device_properties, is_available};
pub use error::{Error, Result};
pub use pinned::PinnedBuffer;
