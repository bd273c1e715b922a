//! Views: what is in the cache, what happened, and why a request failed. Plain data, filled by the engine.

pub mod history;
pub mod oom;
pub mod snapshot;
