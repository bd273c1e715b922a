//! Figures for monitoring: OpenMetrics text, the `metrics` facade, JSON lines.
//!
//! [`Figures`] is what is measured, [`families`] gives it names, the rest are ways out. The names follow one rule:
//! PyTorch's key `allocated_bytes.all.peak` becomes `gpucache_allocated_bytes_peak{device="0",pool="all"}`. As in
//! PyTorch, `pool="all"` is the sum of the others (with a peak of its own), so that sums over pools must leave it out.
//!
//! Nothing here runs by itself: each scrape or line is made when it is asked for.

mod collector;
#[cfg(feature = "metrics-facade")]
mod facade;
mod families;
mod figures;
mod histogram;
mod json_lines;

pub use collector::{AllocatorCollector, openmetrics_text};
#[cfg(feature = "metrics-facade")]
pub use facade::publish;
pub use families::{Family, Kind, Number, Sample, families};
pub use figures::{Blocks, Figures, PoolFigures, PrivatePool};
pub use histogram::Histogram;
pub use json_lines::{JsonLogger, PeriodicLogger};
