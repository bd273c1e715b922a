#![doc = include_str!("../README.md")]

mod allocator;
pub mod config;
pub mod device;
mod error;
pub mod observe;
pub mod stats;
pub mod units;

pub use allocator::{Allocation, Allocator, EmptyCacheReport, Forecast, KeptReason, KeptSegment};
pub use config::Config;
pub use cudarc;
pub use error::{Error, Result};
