//! The specification: a model of it, the model against PyTorch's recordings, and the allocator against the model.

mod model;
mod oracle;
mod properties;
mod recordings;
mod tables;
mod traces;
