//! Which requests belong to a graph capture [spec 14.5].

use std::sync::Arc;

use super::Core;
use super::private::Activity;
use crate::device::{Device, Stream};
use crate::error::{Error, Result};
use crate::observe::snapshot::PoolId;

impl Core {
    /// Routes the requests of every stream that takes part in the capture of `origin` into the pool. The driver's
    /// capture may have begun or not.
    pub(crate) fn begin_capture(&self, origin: Stream, pool: PoolId) -> Result<()> {
        if origin == Stream::DEFAULT {
            let why = "the default stream cannot be captured; capture on a stream of your own";
            return Err(Error::Pool(why.into()));
        }
        if let Some(running) = self.device.capture_status(origin)? {
            let same = |other| matches!(self.device.capture_status(other), Ok(Some(id)) if id == running);
            if self.pools.capture_origins().into_iter().any(same) {
                let why = "the stream takes part in another stream's capture: captures cannot be nested";
                return Err(Error::Pool(why.into()));
            }
        }
        self.begin_allocate(pool, Arc::new(self.capture_filter(origin)), Activity::Capture(origin))
    }

    /// Whether a stream takes part in the capture of `origin`.
    pub(crate) fn capture_filter(&self, origin: Stream) -> impl Fn(Stream) -> bool + Send + Sync + use<> {
        let device = self.device.clone();
        move |stream| takes_part(&*device, stream, origin)
    }
}

fn takes_part(device: &dyn Device, stream: Stream, origin: Stream) -> bool {
    match device.capture_status(stream) {
        Ok(None) => false,
        Ok(Some(_)) if stream == origin => true,
        Ok(capture) => device.capture_status(origin).is_ok_and(|own| own == capture),
        // It may: memory that a graph uses must not be anyone else's, and too much in the pool does no harm.
        Err(_) => true,
    }
}
