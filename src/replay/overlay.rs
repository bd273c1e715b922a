//! A device as a replay needs it: with the recording's memory, and streams that are busy when the recording's were.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::gpu::is_deferred;
use super::observation::TraceEvent;
use crate::device::{
    CaptureId, Device, DeviceError, DeviceProperties, DeviceResult, Event, GraphNode, HandleType, MemInfo,
    PhysicalHandle, ProcessMemory, Stream,
};
use crate::observe::history::TraceAction;

/// Passes every call on to another device, but says that events of held streams are pending: a replay has no work
/// that would keep a real stream busy for exactly as long as the recording's was.
#[derive(Debug)]
pub(crate) struct OverlaidDevice {
    inner: Arc<dyn Device>,
    properties: DeviceProperties,
    busy: Mutex<Busy>,
    refuse: AtomicBool,
    ran_out: AtomicBool,
}

#[derive(Debug, Default)]
struct Busy {
    streams: HashSet<Stream>,
    /// Events that were recorded while their stream was held.
    events: HashMap<Event, Stream>,
}

impl OverlaidDevice {
    /// `total_memory`: the recording's, from which caps and reservations follow.
    pub(crate) fn new(inner: Arc<dyn Device>, total_memory: u64) -> Self {
        let properties = DeviceProperties { total_memory, ..inner.properties().clone() };
        OverlaidDevice {
            inner,
            properties,
            busy: Mutex::default(),
            refuse: AtomicBool::new(false),
            ran_out: AtomicBool::new(false),
        }
    }

    /// As [`RecordedGpu::expect`](super::gpu::RecordedGpu::expect): without a cap it was the driver that refused, for
    /// reasons outside the recording.
    pub(crate) fn expect(&self, events: &[TraceEvent], capped: bool) {
        let refused = |e: &TraceEvent| matches!(e.action, TraceAction::SegmentFree | TraceAction::Oom);
        self.refuse.store(!capped && events.iter().any(refused), Ordering::Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.refuse.store(false, Ordering::Relaxed);
    }

    /// Whether the device itself had too little memory since the last time this was asked.
    pub(crate) fn take_ran_out(&self) -> bool {
        self.ran_out.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn hold(&self, stream: Stream) {
        self.busy.lock().streams.insert(stream);
    }

    pub(crate) fn release(&self, stream: Stream) {
        let mut busy = self.busy.lock();
        busy.streams.remove(&stream);
        busy.events.retain(|_, held| *held != stream);
    }

    pub(crate) fn release_all(&self) {
        *self.busy.lock() = Busy::default();
    }

    /// Before a call that waits for what is `awaited`: if that is held, the call lasted until all streams went on.
    fn wait_for(&self, awaited: impl Fn(&Busy) -> bool) {
        let mut busy = self.busy.lock();
        if awaited(&busy) {
            *busy = Busy::default();
        }
    }

    fn noticed<T>(&self, outcome: DeviceResult<T>) -> DeviceResult<T> {
        if outcome.as_ref().is_err_and(DeviceError::is_out_of_memory) {
            self.ran_out.store(true, Ordering::Relaxed);
        }
        outcome
    }
}

/// The streams of delayed frees exist in the replay only.
fn real(stream: Stream) -> Stream {
    if is_deferred(stream) { Stream::DEFAULT } else { stream }
}

impl Device for OverlaidDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn context_handle(&self) -> Option<u64> {
        self.inner.context_handle()
    }

    fn malloc(&self, bytes: u64) -> DeviceResult<u64> {
        if self.refuse.swap(false, Ordering::Relaxed) {
            return Err(DeviceError::OutOfMemory { call: "cuMemAlloc" });
        }
        self.noticed(self.inner.malloc(bytes))
    }

    fn free(&self, address: u64) -> DeviceResult<()> {
        self.wait_for(|busy| !busy.events.is_empty());
        self.inner.free(address)
    }

    fn mem_get_info(&self) -> DeviceResult<MemInfo> {
        let info = self.inner.mem_get_info()?;
        Ok(MemInfo { free: info.free, total: self.properties.total_memory })
    }

    fn pending_error(&self) -> DeviceResult<()> {
        self.inner.pending_error()
    }

    fn event_create(&self) -> DeviceResult<Event> {
        self.inner.event_create()
    }

    fn event_destroy(&self, event: Event) -> DeviceResult<()> {
        self.busy.lock().events.remove(&event);
        self.inner.event_destroy(event)
    }

    fn event_record(&self, event: Event, stream: Stream) -> DeviceResult<()> {
        self.inner.event_record(event, real(stream))?;
        let mut busy = self.busy.lock();
        if busy.streams.contains(&stream) {
            busy.events.insert(event, stream);
        } else {
            busy.events.remove(&event);
        }
        Ok(())
    }

    /// An event of a stream that is not held is complete: the recording's were when the next request came.
    fn event_query(&self, event: Event) -> DeviceResult<bool> {
        if self.busy.lock().events.contains_key(&event) {
            return Ok(false);
        }
        self.inner.event_synchronize(event).map(|()| true)
    }

    fn event_synchronize(&self, event: Event) -> DeviceResult<()> {
        self.wait_for(|busy| busy.events.contains_key(&event));
        self.inner.event_synchronize(event)
    }

    fn stream_wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()> {
        self.inner.stream_wait_event(real(stream), event)
    }

    fn stream_synchronize(&self, stream: Stream) -> DeviceResult<()> {
        self.wait_for(|busy| busy.events.values().any(|held| *held == stream));
        self.inner.stream_synchronize(real(stream))
    }

    fn device_synchronize(&self) -> DeviceResult<()> {
        self.wait_for(|busy| !busy.events.is_empty());
        self.inner.device_synchronize()
    }

    fn capture_status(&self, stream: Stream) -> DeviceResult<Option<CaptureId>> {
        self.inner.capture_status(real(stream))
    }

    fn capture_terminals(&self, stream: Stream) -> DeviceResult<Vec<GraphNode>> {
        self.inner.capture_terminals(real(stream))
    }

    fn graph_node_dependencies(&self, node: GraphNode) -> DeviceResult<Vec<GraphNode>> {
        self.inner.graph_node_dependencies(node)
    }

    fn address_reserve(&self, bytes: u64) -> DeviceResult<u64> {
        self.inner.address_reserve(bytes)
    }

    fn address_free(&self, address: u64, bytes: u64) -> DeviceResult<()> {
        self.inner.address_free(address, bytes)
    }

    fn mem_create(&self, bytes: u64, handle_type: HandleType) -> DeviceResult<PhysicalHandle> {
        self.noticed(self.inner.mem_create(bytes, handle_type))
    }

    fn mem_release(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        self.inner.mem_release(handle)
    }

    fn mem_map(&self, address: u64, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.inner.mem_map(address, bytes, handle)
    }

    fn mem_unmap(&self, address: u64, bytes: u64) -> DeviceResult<()> {
        self.inner.mem_unmap(address, bytes)
    }

    fn mem_set_access(&self, address: u64, bytes: u64, accessor: u32) -> DeviceResult<()> {
        self.inner.mem_set_access(address, bytes, accessor)
    }

    fn host_malloc(&self, bytes: u64) -> DeviceResult<u64> {
        self.inner.host_malloc(bytes)
    }

    fn host_free(&self, address: u64) -> DeviceResult<()> {
        self.inner.host_free(address)
    }

    fn host_register(&self, address: u64, bytes: u64) -> DeviceResult<()> {
        self.inner.host_register(address, bytes)
    }

    fn host_unregister(&self, address: u64) -> DeviceResult<()> {
        self.inner.host_unregister(address)
    }

    fn processes(&self) -> Option<Vec<ProcessMemory>> {
        self.inner.processes()
    }
}
