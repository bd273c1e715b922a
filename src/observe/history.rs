//! Entries of the event history [spec 12.3].

use std::panic::Location;
use std::sync::Arc;

/// What happened [spec 12.3].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TraceAction {
    /// A block was handed out; `size` is the requested size.
    Alloc,
    /// Free was called; `size` is the requested size.
    FreeRequested,
    /// The block became reusable; `size` is the requested size.
    FreeCompleted,
    /// The driver gave a segment.
    SegmentAlloc,
    /// A segment is given back to the driver.
    SegmentFree,
    /// A range of an expandable segment was mapped.
    SegmentMap,
    /// A range of an expandable segment was unmapped.
    SegmentUnmap,
    /// A snapshot was taken; `size` is the device's active bytes.
    Snapshot,
    /// A request failed; `addr` is the device's free bytes, `size` the rounded request.
    Oom,
}

impl TraceAction {
    /// PyTorch's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            TraceAction::Alloc => "alloc",
            TraceAction::FreeRequested => "free_requested",
            TraceAction::FreeCompleted => "free_completed",
            TraceAction::SegmentAlloc => "segment_alloc",
            TraceAction::SegmentFree => "segment_free",
            TraceAction::SegmentMap => "segment_map",
            TraceAction::SegmentUnmap => "segment_unmap",
            TraceAction::Snapshot => "snapshot",
            TraceAction::Oom => "oom",
        }
    }

    /// The action that PyTorch calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        use TraceAction as A;
        let all = [
            A::Alloc,
            A::FreeRequested,
            A::FreeCompleted,
            A::SegmentAlloc,
            A::SegmentFree,
            A::SegmentMap,
            A::SegmentUnmap,
            A::Snapshot,
            A::Oom,
        ];
        all.into_iter().find(|action| action.name() == name)
    }
}

/// One entry of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEntry {
    /// What happened.
    pub action: TraceAction,
    /// Address; the device's free bytes for [`TraceAction::Oom`].
    pub addr: u64,
    /// Bytes; see [`TraceAction`] for which.
    pub size: u64,
    /// Raw stream handle.
    pub stream: u64,
    /// Wall clock, microseconds since the epoch.
    pub time_us: u64,
    /// The calling thread's metadata string.
    pub user_metadata: Arc<str>,
    /// Where in the program.
    pub frames: Frames,
}

/// A call site or a stack.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Frames {
    /// Not recorded.
    #[default]
    None,
    /// The caller of the allocator, from `#[track_caller]`.
    Site(&'static Location<'static>),
    /// A captured stack, innermost frame first.
    Stack(Arc<[Frame]>),
}

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Function. Shared text: stacks repeat the same few frames.
    pub name: Arc<str>,
    /// Source file.
    pub filename: Arc<str>,
    /// Line.
    pub line: u32,
}
