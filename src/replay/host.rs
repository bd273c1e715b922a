//! The pinned host memory of a replay. The place to connect gpucache's own, once it is there.

use super::request::Request;
use crate::error::{Error, Result};

/// Plays `ha hf hempty hp hP` and reads the statistics that `host` notes are compared with.
#[derive(Debug, Default)]
pub(crate) struct HostSide {}

#[expect(clippy::unused_self, reason = "there is no pinned memory to keep yet")]
impl HostSide {
    /// Plays one of the five requests.
    pub(crate) fn play(&mut self, request: &Request) -> Result<()> {
        Err(Error::NotSupported(format!("pinned host memory (request '{request}')")))
    }

    /// The statistics by their flat names.
    pub(crate) fn stats(&self) -> Vec<(String, i64)> {
        Vec::new()
    }
}
