//! Reuse of freed blocks while a graph is being captured [spec 14.6].

use super::Core;
use crate::device::Stream;
use crate::error::Result;

impl Core {
    pub(super) fn reuse_during_capture(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }
}
