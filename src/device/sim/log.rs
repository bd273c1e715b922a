//! What was called: counters always, full entries on request.

use crate::device::{CaptureId, DeviceResult, Event, GraphNode, HandleType, MemInfo, PhysicalHandle, Stream};

macro_rules! calls {
    ($($(#[$doc:meta])* $kind:ident $({ $($field:ident: $type:ty),+ })? = $name:literal,)+) => {
        /// A driver call with its arguments (bytes, addresses, handles).
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)] // the fields are the arguments of the method of `Device`
        pub enum SimCall { $($(#[$doc])* $kind $({ $($field: $type),+ })?,)+ }

        /// The kinds of driver calls, one for each method of [`Device`](crate::device::Device) that can fail.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum CallKind { $($(#[$doc])* $kind,)+ }

        impl CallKind {
            /// Every kind, for sweeps.
            pub const ALL: &'static [CallKind] = &[$(CallKind::$kind),+];

            /// The driver function's name.
            pub const fn name(self) -> &'static str {
                match self { $(CallKind::$kind => $name,)+ }
            }
        }

        impl SimCall {
            /// The call without its arguments.
            pub const fn kind(&self) -> CallKind {
                match self { $(SimCall::$kind { .. } => CallKind::$kind,)+ }
            }
        }
    };
}

calls! {
    /// `malloc`
    Malloc { bytes: u64 } = "cuMemAlloc",
    /// `free`
    Free { address: u64 } = "cuMemFree",
    /// `mem_get_info`
    MemGetInfo = "cuMemGetInfo",
    /// `pending_error`
    PendingError = "cudaGetLastError",
    /// `event_create`
    EventCreate = "cuEventCreate",
    /// `event_destroy`
    EventDestroy { event: Event } = "cuEventDestroy",
    /// `event_record`
    EventRecord { event: Event, stream: Stream } = "cuEventRecord",
    /// `event_query`
    EventQuery { event: Event } = "cuEventQuery",
    /// `event_synchronize`
    EventSynchronize { event: Event } = "cuEventSynchronize",
    /// `stream_wait_event`
    StreamWaitEvent { stream: Stream, event: Event } = "cuStreamWaitEvent",
    /// `stream_synchronize`
    StreamSynchronize { stream: Stream } = "cuStreamSynchronize",
    /// `device_synchronize`
    DeviceSynchronize = "cuCtxSynchronize",
    /// `capture_status`
    CaptureStatus { stream: Stream } = "cuStreamIsCapturing",
    /// `capture_terminals`
    CaptureTerminals { stream: Stream } = "cuStreamGetCaptureInfo",
    /// `graph_node_dependencies`
    GraphNodeDependencies { node: GraphNode } = "cuGraphNodeGetDependencies",
    /// `address_reserve`
    AddressReserve { bytes: u64 } = "cuMemAddressReserve",
    /// `address_free`
    AddressFree { address: u64, bytes: u64 } = "cuMemAddressFree",
    /// `mem_create`
    MemCreate { bytes: u64, handle_type: HandleType } = "cuMemCreate",
    /// `mem_release`
    MemRelease { handle: PhysicalHandle } = "cuMemRelease",
    /// `mem_map`
    MemMap { address: u64, bytes: u64, handle: PhysicalHandle } = "cuMemMap",
    /// `mem_unmap`
    MemUnmap { address: u64, bytes: u64 } = "cuMemUnmap",
    /// `mem_set_access`
    MemSetAccess { address: u64, bytes: u64, accessor: u32 } = "cuMemSetAccess",
    /// `host_malloc`
    HostMalloc { bytes: u64 } = "cuMemHostAlloc",
    /// `host_free`
    HostFree { address: u64 } = "cuMemFreeHost",
    /// `host_register`
    HostRegister { address: u64, bytes: u64 } = "cuMemHostRegister",
    /// `host_unregister`
    HostUnregister { address: u64 } = "cuMemHostUnregister",
}

/// One call and its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedCall {
    /// What was asked.
    pub call: SimCall,
    /// What was answered, as a number: the address, handle or id, 0 or 1 for a yes-or-no question, the free
    /// bytes for `mem_get_info`, how many nodes for lists, otherwise 0.
    pub result: DeviceResult<u64>,
}

/// How an answer stands in the log.
pub(super) trait Answer {
    fn number(&self) -> u64;
}

impl Answer for () {
    fn number(&self) -> u64 {
        0
    }
}

impl Answer for u64 {
    fn number(&self) -> u64 {
        *self
    }
}

impl Answer for bool {
    fn number(&self) -> u64 {
        u64::from(*self)
    }
}

impl Answer for MemInfo {
    fn number(&self) -> u64 {
        self.free
    }
}

impl Answer for Event {
    fn number(&self) -> u64 {
        self.0
    }
}

impl Answer for PhysicalHandle {
    fn number(&self) -> u64 {
        self.0
    }
}

impl Answer for Option<CaptureId> {
    fn number(&self) -> u64 {
        self.map_or(0, |id| id.0)
    }
}

impl Answer for Vec<GraphNode> {
    fn number(&self) -> u64 {
        self.len() as u64
    }
}

/// Counters and log of one process.
#[derive(Debug, Default)]
pub(super) struct Log {
    counts: [u64; CallKind::ALL.len()],
    entries: Option<Vec<LoggedCall>>,
}

impl Log {
    pub(super) fn count(&mut self, kind: CallKind) {
        self.counts[kind as usize] += 1;
    }

    pub(super) fn calls(&self, kind: CallKind) -> u64 {
        self.counts[kind as usize]
    }

    pub(super) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn reset_counts(&mut self) {
        self.counts = [0; CallKind::ALL.len()];
    }

    pub(super) fn start(&mut self) {
        self.entries = Some(Vec::new());
    }

    /// The entries so far; recording goes on if it was on.
    pub(super) fn take(&mut self) -> Vec<LoggedCall> {
        self.entries.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn stop(&mut self) {
        self.entries = None;
    }

    pub(super) fn record<T: Answer>(&mut self, call: SimCall, result: &DeviceResult<T>) {
        if let Some(entries) = &mut self.entries {
            entries
                .push(LoggedCall { call, result: result.as_ref().map(Answer::number).map_err(Clone::clone) });
        }
    }
}
