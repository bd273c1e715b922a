//! The cache's state as plain data [spec 12.1], and what `empty_cache` had to leave.

use super::Core;
use super::parts::DEFAULT_POOL;
use super::release::{KeptReason, KeptSegment};
use super::shard::ShardState;
use super::trace::Recorded;
use crate::observe::history::{Frames, TraceAction};
use crate::observe::snapshot::{BlockInfo, BlockState, SegmentInfo, Snapshot};
use crate::pool::block::{Block, BlockId, State};
use crate::pool::chain;

impl ShardState {
    /// First blocks of all segments and reservations.
    fn heads(&self) -> impl Iterator<Item = BlockId> {
        self.slab.iter().filter(|(_, b)| b.prev.is_none()).map(|(id, _)| id)
    }

    /// Runs of mapped blocks: an ordinary segment is one, a reservation may have several.
    fn runs(&self) -> Vec<Vec<&Block>> {
        let mut runs = Vec::new();
        for head in self.heads() {
            let mut run: Vec<&Block> = Vec::new();
            for (_, block) in chain::walk(&self.slab, head) {
                if block.state == State::Unmapped {
                    runs.push(std::mem::take(&mut run));
                } else {
                    run.push(block);
                }
            }
            runs.push(run);
        }
        runs.retain(|run| !run.is_empty());
        runs
    }
}

fn frames(site: Option<&'static std::panic::Location<'static>>) -> Frames {
    site.map_or(Frames::None, Frames::Site)
}

fn block_info(block: &Block) -> BlockInfo {
    let state = match block.state {
        State::Allocated => BlockState::ActiveAllocated,
        State::Pending => BlockState::ActivePendingFree,
        _ => BlockState::Inactive,
    };
    BlockInfo {
        address: block.addr,
        size: block.size,
        requested_size: block.requested,
        state,
        frames: if block.is_active() { frames(block.site) } else { Frames::None },
    }
}

fn sum<'a>(run: &[&'a Block], wanted: impl Fn(&'a Block) -> bool, of: impl Fn(&'a Block) -> u64) -> u64 {
    run.iter().filter(|b| wanted(b)).map(|b| of(b)).sum()
}

impl Core {
    /// Segments by ascending address.
    pub(crate) fn segments(&self) -> Vec<SegmentInfo> {
        let device = self.properties.ordinal;
        let mut segments = Vec::new();
        for shard in self.shards.by_stream() {
            let state = shard.lock();
            for run in state.runs() {
                let (first, last) = (run[0], run[run.len() - 1]);
                segments.push(SegmentInfo {
                    device,
                    address: first.addr,
                    total_size: sum(&run, |_| true, |b| b.size),
                    allocated_size: sum(&run, |b| b.state == State::Allocated, |b| b.size),
                    active_size: sum(&run, Block::is_active, |b| b.size),
                    requested_size: sum(&run, Block::is_active, |b| b.requested),
                    stream: shard.stream.raw(),
                    segment_type: first.kind,
                    segment_pool_id: self.pools.id_of(first.pool),
                    is_expandable: first.is_expandable(),
                    frames: frames(last.segment_site),
                    blocks: run.iter().map(|b| block_info(b)).collect(),
                });
            }
        }
        segments.sort_by_key(|s| s.address);
        segments
    }

    pub(crate) fn snapshot(&self, with_trace: bool) -> Snapshot {
        let segments = self.segments();
        let trace = if with_trace { self.history(false) } else { Vec::new() };
        let active = segments.iter().map(|s| s.active_size).sum();
        if let Some(ring) = self.history.lock().as_mut() {
            // Under every lock, as numbers are given out.
            self.shards.with_all(|_| ring.push(Recorded::One(TraceAction::Snapshot), 0, active, None, false));
        }
        Snapshot { device: self.properties.ordinal, segments, trace, config: self.config() }
    }

    /// The size of the block at an address, if a client has it.
    pub(super) fn kept_segments(&self, kept: &mut Vec<KeptSegment>) {
        let active = self.any_pool_active();
        for shard in self.shards.by_stream() {
            let state = shard.lock();
            for run in state.runs() {
                let live_bytes = sum(&run, |b| b.state == State::Allocated, |b| b.size);
                let pending_bytes = sum(&run, |b| b.state == State::Pending, |b| b.size);
                let reason = if live_bytes > 0 {
                    KeptReason::LiveBlock
                } else if pending_bytes > 0 {
                    KeptReason::PendingEvent
                } else if run[0].pool != DEFAULT_POOL {
                    KeptReason::PrivatePool
                } else if active {
                    KeptReason::PoolActive
                } else {
                    KeptReason::PartialPage
                };
                let bytes = sum(&run, |_| true, |b| b.size);
                kept.push(KeptSegment { address: run[0].addr, bytes, live_bytes, pending_bytes, reason });
            }
        }
        kept.sort_by_key(|k| k.address);
    }
}
