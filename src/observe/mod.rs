//! Views: what is in the cache, what happened, and why a request failed. Plain data, filled by the engine.

mod chrome;
pub mod diagnose;
mod encode;
pub mod file;
pub mod history;
pub mod inspect;
mod json;
pub mod leaks;
pub mod oom;
mod pickle;
pub mod processes;
pub mod reconcile;
pub mod snapshot;
pub mod timeline;
