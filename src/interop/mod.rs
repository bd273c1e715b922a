//! Memory shared with other libraries; see `docs/interop.md`.

pub mod dlpack;
