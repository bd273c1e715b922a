//! What a diagnosis is made from: plain data, from a running allocator or from a snapshot file.

use crate::device::MemInfo;
use crate::observe::file::SnapshotFile;
use crate::observe::history::{TraceAction, TraceEntry};
use crate::observe::processes::ProcessLine;
use crate::observe::snapshot::{PoolId, PoolKind, SegmentInfo};
use crate::size::{Rules, pool_kind};

/// Everything that is known when memory is to be explained. Bytes throughout.
///
/// What is not known is left empty; the findings that need it are left out then.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Evidence {
    /// Device ordinal.
    pub device: u32,
    /// Segments with their blocks.
    pub segments: Vec<SegmentInfo>,
    /// The history, oldest first; empty if none was recorded.
    pub trace: Vec<TraceEntry>,
    /// The request to explain; `None` asks where the memory is.
    pub request: Option<Wanted>,
    /// Free and total memory as the driver reports them.
    pub memory: Option<MemInfo>,
    /// The program's own cap.
    pub allowed: Option<u64>,
    /// Who holds memory on the device.
    pub processes: Option<Vec<ProcessLine>>,
    /// Streams that freed blocks wait for.
    pub waits: Vec<StreamWait>,
    /// Whether a capture is under way, so that nothing cached may be given back.
    pub pool_active: bool,
}

/// A request to explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wanted {
    /// Bytes asked for.
    pub bytes: u64,
    /// Rounded to a block size.
    pub rounded: u64,
    /// The segment that the driver is asked for.
    pub segment_size: u64,
    /// Raw stream handle.
    pub stream: u64,
    /// The pool that has to serve it.
    pub pool: PoolId,
    /// Small or large.
    pub kind: PoolKind,
    /// Whether it failed, or is known to fail; `None`: to be worked out.
    pub fails: Option<bool>,
}

/// Blocks that were freed and wait for one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamWait {
    /// Raw handle of the stream that has not come to the end of their use; `None`: they were freed during a capture
    /// or a pool scope, and wait for its end.
    pub stream: Option<u64>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Wanted {
    /// A request of `bytes` on a stream, to the default pool, under the default rules of size.
    pub fn new(bytes: u64, stream: u64) -> Self {
        let rules = Rules::new(&crate::Config::default());
        let rounded = rules.round_size(bytes);
        Wanted {
            bytes,
            rounded,
            segment_size: rules.segment_size(rounded),
            stream,
            pool: PoolId::DEFAULT,
            kind: pool_kind(rounded),
            fails: None,
        }
    }
}

impl Evidence {
    /// What a snapshot file tells about one device.
    ///
    /// If its history ends in an out-of-memory event, or has one anywhere, the last such request is the one to
    /// explain, with the free memory of that moment.
    pub fn from_file(file: &SnapshotFile, device: u32) -> Self {
        let trace = file.trace(device).to_vec();
        let oom = trace.iter().rev().find(|e| e.action == TraceAction::Oom);
        let request = oom.map(|e| Wanted { fails: Some(true), ..Wanted::new(e.size, e.stream) });
        let segments: Vec<SegmentInfo> = file.segments_of(device).cloned().collect();
        let memory = oom.map(|e| MemInfo { free: e.addr, total: 0 });
        Evidence { device, segments, trace, request, memory, ..Evidence::default() }
    }

    /// Bytes that a snapshot holds from the driver.
    pub fn reserved(&self) -> u64 {
        self.segments.iter().map(|s| s.total_size).sum()
    }

    /// Says how large the device is that a snapshot was taken on; nothing else used it.
    #[must_use]
    pub fn with_capacity(mut self, total: u64) -> Self {
        let free = total.saturating_sub(self.reserved());
        self.memory = Some(MemInfo { free, total });
        self
    }

    /// Asks about another request, whose outcome is to be worked out.
    #[must_use]
    pub fn with_request(mut self, request: Wanted) -> Self {
        self.request = Some(request);
        self
    }
}
