//! The state of the cache as plain data [spec 12.1, 12.4].

use super::history::{Frames, TraceEntry};
use crate::config::Config;

/// Which pool: `(0, 0)` is the default pool, `(0, n)` a user's, `(n, 0)` a capture's [spec 14.1].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PoolId(pub u64, pub u64);

impl PoolId {
    /// The default pool.
    pub const DEFAULT: PoolId = PoolId(0, 0);
}

/// Small or large [spec 2.4].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolKind {
    /// Blocks of 1 MiB or less, in 2 MiB segments.
    Small,
    /// Everything above.
    Large,
}

/// State of a block in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// In a client's hands.
    ActiveAllocated,
    /// Freed, but another stream may still use it.
    ActivePendingFree,
    /// Cached.
    Inactive,
}

impl BlockState {
    /// PyTorch's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            BlockState::ActiveAllocated => "active_allocated",
            BlockState::ActivePendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        }
    }
}

/// One block of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockInfo {
    /// Start address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that were requested; stale in an inactive block [spec 3.4].
    pub requested_size: u64,
    /// State.
    pub state: BlockState,
    /// Where it was allocated, if recorded.
    pub frames: Frames,
}

/// One segment: a driver allocation, or one contiguous mapped run of an expandable reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Device ordinal.
    pub device: u32,
    /// Start address.
    pub address: u64,
    /// Bytes.
    pub total_size: u64,
    /// Bytes of allocated blocks.
    pub allocated_size: u64,
    /// Bytes of active blocks.
    pub active_size: u64,
    /// Requested bytes of active blocks.
    pub requested_size: u64,
    /// Raw stream handle.
    pub stream: u64,
    /// Small or large.
    pub segment_type: PoolKind,
    /// The pool it belongs to.
    pub segment_pool_id: PoolId,
    /// Whether it is part of an expandable reservation.
    pub is_expandable: bool,
    /// Where the segment was obtained, if recorded.
    pub frames: Frames,
    /// Its blocks in address order, without gaps.
    pub blocks: Vec<BlockInfo>,
}

/// Everything `memory_snapshot` knows about one device.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Device ordinal.
    pub device: u32,
    /// Segments by ascending address.
    pub segments: Vec<SegmentInfo>,
    /// The history, oldest first.
    pub trace: Vec<TraceEntry>,
    /// The options in force.
    pub config: Config,
}
