//! Recorded request streams: read, write, run, compare.
//!
//! A recording is a pair of text files: `NAME.req` is what a program asked its allocator for, `NAME.obs` is what
//! the allocator answered (`docs/trace-format.md`). [`verify_case`] runs the requests on a simulated GPU and
//! compares every answer; [`Workload`] plays them for time and peaks. Both use the public API of
//! [`Allocator`](crate::Allocator) only, so that what they check and measure is what users get.

mod compare;
mod device;
mod error;
mod events;
mod fields;
mod freedom;
mod gpu;
mod header;
mod host;
mod lines;
mod notes;
mod observation;
mod ordinals;
mod overlay;
mod reader;
mod request;
mod run;
mod scale;
mod timing;
mod verify;
mod writer;

pub use device::{Agreement, DeviceReplay, DriverUse, verify_on_device};
pub use error::{TraceError, TraceResult};
pub use header::{EventSet, FORMAT, Header, VERSION};
pub use observation::{COLUMNS, Note, Observation, Outcome, TraceEvent};
pub use reader::{ObservationReader, RequestReader};
pub use request::Request;
pub use scale::{BatchModel, Growth};
pub use timing::{PassReport, PeakReport, PlayError, ReplayReport, SteadyReport, Workload};
pub use verify::{Divergence, verify_case};
pub use writer::TraceWriter;
