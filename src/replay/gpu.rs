//! The simulated GPU of a replay: recorded addresses, and streams that are busy when the recording's were.

use std::sync::Arc;

use crate::device::sim::{AddressPolicy, CallKind, Fault, SimDevice};
use crate::device::{Device, Stream};
use crate::observe::history::TraceAction;

use super::observation::TraceEvent;
use super::overlay::OverlaidDevice;

/// Streams that stand for the unknown ones of delayed frees (`D`) lie from here on, above all real handles.
const DEFERRED_STREAMS: u64 = 0xdef0_0000_0000_0000;
/// The driver's granularity for reservations.
const PAGE: u64 = 2 << 20;

/// A GPU that answers with the addresses of a recording. A cheap handle.
#[derive(Debug, Clone)]
pub(crate) struct RecordedGpu {
    device: SimDevice,
}

impl RecordedGpu {
    pub(crate) fn new(total_memory: u64) -> Self {
        let device =
            SimDevice::builder().total_memory(total_memory).address_policy(AddressPolicy::Scripted).build();
        RecordedGpu { device }
    }

    pub(crate) fn device(&self) -> &SimDevice {
        &self.device
    }

    /// Prepares the addresses that the next request will get: those of its `sa` events in order, and the base of
    /// a new reservation, which the first `sm` would be.
    ///
    /// `capped`: a memory limit is set, which alone explains why a request released memory or failed. Without one
    /// it was the driver that refused, for reasons outside the recording.
    pub(crate) fn expect(&self, events: &[TraceEvent], capped: bool) {
        let refused = |e: &TraceEvent| matches!(e.action, TraceAction::SegmentFree | TraceAction::Oom);
        if !capped && events.iter().any(refused) {
            self.device.fail_next(CallKind::Malloc, Fault::OutOfMemory);
        }
        for event in events.iter().filter(|e| e.action == TraceAction::SegmentAlloc) {
            self.device.push_address(event.address);
        }
        if let Some(event) = events.iter().find(|e| e.action == TraceAction::SegmentMap) {
            self.device.push_reservation(event.address);
        }
    }

    /// Drops what was prepared but not used: a refusal (an `sf` of `empty_cache`), or a base where the request
    /// mapped in an older reservation.
    pub(crate) fn forget(&self) {
        self.device.clear_faults();
        while self.device.script_remaining().1 > 0 {
            // Reserving takes the entry, whether the range is free or not.
            if let Ok(address) = self.device.address_reserve(PAGE) {
                let _ = self.device.address_free(address, PAGE);
            }
        }
    }
}

/// The stream that delays the free with this number.
pub(crate) fn deferred_stream(number: u64) -> Stream {
    Stream::from_raw(DEFERRED_STREAMS + number)
}

/// Whether it is one of those streams.
pub(crate) fn is_deferred(stream: Stream) -> bool {
    stream.raw() >= DEFERRED_STREAMS
}

/// Keeps streams busy. On a real GPU as such there is nothing to hold: events complete by themselves.
#[derive(Debug)]
pub(crate) enum StreamControl {
    Simulated(SimDevice),
    Overlaid(Arc<OverlaidDevice>),
    Real,
}

impl StreamControl {
    pub(crate) fn hold(&self, stream: Stream) {
        match self {
            StreamControl::Simulated(device) => device.hold(stream),
            StreamControl::Overlaid(device) => device.hold(stream),
            StreamControl::Real => {}
        }
    }

    pub(crate) fn release(&self, stream: Stream) {
        match self {
            StreamControl::Simulated(device) => device.release(stream),
            StreamControl::Overlaid(device) => device.release(stream),
            StreamControl::Real => {}
        }
    }

    pub(crate) fn release_all(&self) {
        match self {
            StreamControl::Simulated(device) => device.release_all(),
            StreamControl::Overlaid(device) => device.release_all(),
            StreamControl::Real => {}
        }
    }

    /// Whether streams stay busy until they are released.
    pub(crate) fn can_hold(&self) -> bool {
        !matches!(self, StreamControl::Real)
    }
}
