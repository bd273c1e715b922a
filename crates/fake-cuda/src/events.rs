//! Events.

use std::ffi::{c_uint, c_void};

use crate::books::Books;
use crate::capture::Joined;
use crate::errors::*;
use crate::streams::Point;
use crate::{Answer, driver, put};

pub struct EventBook {
    context: u64,
    flags: c_uint,
    recorded: Recorded,
}

#[derive(Clone)]
enum Recorded {
    Never,
    At(Point),
    InCapture(Joined),
}

impl Books {
    fn event(&mut self, call: &str, handle: *mut c_void) -> Answer<u64> {
        let handle = handle as u64;
        self.context(call)?;
        if self.events.contains_key(&handle) {
            return Ok(handle);
        }
        self.violation(INVALID_HANDLE, format!("{call}: no event {handle:#x}"))
    }

    /// An event that may be of another device than the current one ("Stream and event behavior" in the programming
    /// guide). That some context must be current is a guess, on the safe side.
    fn event_anywhere(&mut self, call: &str, handle: *mut c_void) -> Answer<u64> {
        if self.has_context() { self.event(call, handle) } else { Err(INVALID_CONTEXT) }
    }

    /// The stream for a recording: one that is no default stream may be of another device as well.
    fn stream_anywhere(&mut self, call: &str, handle: u64) -> Answer<u64> {
        if self.streams.contains_key(&handle) { Ok(handle) } else { self.stream(call, handle) }
    }
}

driver! {
    fn cuEventCreate(event: *mut *mut c_void, flags: c_uint) |books| {
        let context = books.context("cuEventCreate")?;
        let handle = books.fresh();
        books.events.insert(handle, EventBook { context, flags, recorded: Recorded::Never });
        put(event, handle as *mut c_void)
    }

    fn cuEventDestroy_v2(event: *mut c_void) |books| {
        let key = books.event("cuEventDestroy", event)?;
        books.events.remove(&key);
        Ok(())
    }

    fn cuEventRecord(event: *mut c_void, stream: *mut c_void) |books| {
        let key = books.event_anywhere("cuEventRecord", event)?;
        let stream = books.stream_anywhere("cuEventRecord", stream as u64)?;
        let recorded = match books.joined(stream) {
            Some(joined) => Recorded::InCapture(joined),
            None => Recorded::At(books.point(stream)),
        };
        let context = books.streams[&stream].context;
        match books.events.get_mut(&key) {
            Some(book) if book.context == context => book.recorded = recorded,
            _ => return books.violation(INVALID_HANDLE, "event and stream of different contexts".to_owned()),
        }
        Ok(())
    }

    fn cuEventQuery(event: *mut c_void) |books| {
        let key = books.event_anywhere("cuEventQuery", event)?;
        books.prohibit_during_capture("cuEventQuery")?;
        match books.events[&key].recorded {
            Recorded::Never => Ok(()),
            Recorded::At(point) if books.reached(point) => Ok(()),
            Recorded::At(_) => Err(NOT_READY),
            Recorded::InCapture(_) => Err(CAPTURED_EVENT),
        }
    }

    fn cuEventSynchronize(event: *mut c_void) |books| {
        let key = books.event("cuEventSynchronize", event)?;
        books.prohibit_during_capture("cuEventSynchronize")?;
        match books.events[&key].recorded {
            Recorded::Never => {}
            Recorded::At(point) if books.reached(point) => {}
            Recorded::At(point) => books.finish(point.stream),
            Recorded::InCapture(_) => return Err(CAPTURED_EVENT),
        }
        Ok(())
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, end: *mut c_void) |books| {
        /// `CU_EVENT_DISABLE_TIMING`
        const NO_TIMING: c_uint = 2;
        for event in [start, end] {
            let key = books.event("cuEventElapsedTime", event)?;
            if books.events[&key].flags & NO_TIMING != 0 {
                return Err(INVALID_HANDLE);
            }
        }
        put(milliseconds, 0.0)
    }

    fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) |books| {
        let stream = books.stream("cuStreamWaitEvent", stream as u64)?;
        let key = books.event("cuStreamWaitEvent", event)?;
        match books.events[&key].recorded.clone() {
            Recorded::Never => {}
            Recorded::At(point) => {
                if books.streams[&stream].capture.is_some() {
                    // Work outside a capture cannot be waited for inside.
                    return books.invalidate(stream, CAPTURE_UNSUPPORTED);
                }
                books.wait_for(stream, point);
            }
            Recorded::InCapture(joined) => books.join(stream, joined)?,
        }
        Ok(())
    }
}
