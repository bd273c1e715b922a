//! A caching GPU memory allocator with the semantics of PyTorch's.

mod allocator;
pub mod config;
pub mod device;
mod error;
#[cfg(feature = "import")]
pub mod import;
pub mod observe;
#[cfg(feature = "plot")]
pub mod plot;
#[cfg(feature = "replay")]
pub mod replay;
pub mod stats;

pub use allocator::{Allocation, Allocator, EmptyCacheReport, Forecast, KeptReason, KeptSegment};
pub use config::Config;
pub use cudarc;
pub use error::{Error, Result};
