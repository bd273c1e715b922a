//! The sums that the causes are judged by.

use std::collections::BTreeMap;

use super::evidence::{Evidence, Wanted};
use crate::observe::snapshot::{BlockInfo, BlockState, PoolId, SegmentInfo};

/// What a context with its modules takes at most, on all drivers seen so far; more has another reason.
pub(super) const NORMAL_CONTEXT: u64 = 1 << 30;

/// Idle bytes of one stream or pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Idle {
    pub(super) bytes: u64,
    pub(super) largest: u64,
    pub(super) blocks: u64,
}

impl Idle {
    fn add(&mut self, block: &BlockInfo) {
        self.bytes += block.size;
        self.largest = self.largest.max(block.size);
        self.blocks += 1;
    }
}

/// A segment that live blocks pin, with what is idle in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pinned<'a> {
    pub(super) segment: &'a SegmentInfo,
    pub(super) idle: u64,
}

/// Every idle byte stands in exactly one of `cached`, `fragments`, `other_streams`, `other_pools`.
#[derive(Debug, Default)]
pub(super) struct Measure<'a> {
    pub(super) reserved: u64,
    pub(super) live: u64,
    pub(super) pending: u64,
    pub(super) pending_blocks: u64,
    /// Could go back to the driver at once, by the stream that it was cached for.
    pub(super) cached: BTreeMap<u64, Idle>,
    /// Idle beside live blocks, and of no use to the request.
    pub(super) fragments: Idle,
    pub(super) pinned: Vec<Pinned<'a>>,
    /// Idle blocks that would serve the request, were they not another stream's.
    pub(super) other_streams: BTreeMap<u64, Idle>,
    /// Idle in pools that the request has no part in.
    pub(super) other_pools: BTreeMap<PoolId, Idle>,
    /// Largest block that the request may use.
    pub(super) largest_usable: u64,
    /// Held by other processes.
    pub(super) others: Option<u64>,
    /// Held by this process outside the allocator.
    pub(super) outside: Option<u64>,
    /// Held by somebody outside the allocator, where processes cannot be seen.
    pub(super) unattributed: u64,
    /// In use on the device.
    pub(super) device_used: Option<u64>,
}

impl<'a> Measure<'a> {
    pub(super) fn new(evidence: &'a Evidence) -> Self {
        let mut measure = Measure::default();
        for segment in &evidence.segments {
            measure.add(segment, evidence);
        }
        measure.pinned.sort_by_key(|p| (std::cmp::Reverse(p.idle), p.segment.address));
        measure.outside_of_it(evidence);
        measure
    }

    fn add(&mut self, segment: &'a SegmentInfo, evidence: &Evidence) {
        self.reserved += segment.total_size;
        let active = segment.blocks.iter().any(|b| b.state != BlockState::Inactive);
        let mut idle = 0;
        for block in &segment.blocks {
            match block.state {
                BlockState::ActiveAllocated => self.live += block.size,
                BlockState::ActivePendingFree => {
                    self.pending += block.size;
                    self.pending_blocks += 1;
                }
                BlockState::Inactive => {
                    idle += block.size;
                    self.add_idle(segment, block, active, evidence);
                }
            }
        }
        if active && idle > 0 {
            self.pinned.push(Pinned { segment, idle });
        }
    }

    fn add_idle(&mut self, segment: &SegmentInfo, block: &BlockInfo, active: bool, evidence: &Evidence) {
        let request = evidence.request.as_ref();
        let pool = request.map_or(PoolId::DEFAULT, |r| r.pool);
        if let Some(r) = request
            && usable(r, segment, segment.stream)
        {
            self.largest_usable = self.largest_usable.max(block.size);
        }
        // Idle pages of an expandable segment can be unmapped, beside live ones too; before a request fails they
        // have been.
        let goes = !active || (segment.is_expandable && (request.is_none() || evidence.pool_active));
        if segment.segment_pool_id != PoolId::DEFAULT && segment.segment_pool_id != pool {
            self.other_pools.entry(segment.segment_pool_id).or_default().add(block);
        } else if goes {
            self.cached.entry(segment.stream).or_default().add(block);
        } else if segment.segment_pool_id != pool {
            self.other_pools.entry(segment.segment_pool_id).or_default().add(block);
        } else if request.is_some_and(|r| {
            segment.stream != r.stream && usable(r, segment, r.stream) && block.size >= r.rounded
        }) {
            self.other_streams.entry(segment.stream).or_default().add(block);
        } else {
            self.fragments.add(block);
        }
    }

    fn outside_of_it(&mut self, evidence: &Evidence) {
        // A total of 0 stands for "not known".
        let memory = evidence.memory.filter(|m| m.total > 0);
        self.device_used = memory.map(|m| m.total.saturating_sub(m.free));
        match &evidence.processes {
            Some(all) => {
                let own = all.iter().find(|p| p.is_self).and_then(|p| p.used);
                self.outside = own.map(|own| own.saturating_sub(self.reserved));
                let others = all.iter().filter(|p| !p.is_self);
                self.others = Some(others.filter_map(|p| p.used).fold(0, u64::saturating_add));
            }
            None => {
                self.unattributed = self.device_used.map_or(0, |used| used.saturating_sub(self.reserved));
            }
        }
    }

    pub(super) fn cached_bytes(&self) -> u64 {
        self.cached.values().map(|i| i.bytes).sum()
    }

    pub(super) fn other_stream_bytes(&self) -> u64 {
        self.other_streams.values().map(|i| i.bytes).sum()
    }

    pub(super) fn other_pool_bytes(&self) -> u64 {
        self.other_pools.values().map(|i| i.bytes).sum()
    }
}

/// Whether the request, were it on `stream`'s side, could take blocks of the segment.
fn usable(request: &Wanted, segment: &SegmentInfo, stream: u64) -> bool {
    request.stream == stream
        && segment.segment_pool_id == request.pool
        && segment.segment_type == request.kind
}

/// What stands between a request and success.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Bytes that the driver could give, the cache returned.
    pub(super) device: u64,
    /// Bytes that the cap leaves, the cache returned.
    pub(super) cap: u64,
    /// Bytes asked of the driver.
    pub(super) need: u64,
}

impl Room {
    pub(super) fn new(evidence: &Evidence, measure: &Measure<'_>, request: &Wanted) -> Self {
        let released = if evidence.pool_active { 0 } else { measure.cached_bytes() };
        let device = evidence.memory.map_or(u64::MAX, |m| m.free);
        let cap = evidence.allowed.map_or(u64::MAX, |a| a.saturating_sub(measure.reserved));
        Room {
            device: device.saturating_add(released),
            cap: cap.saturating_add(released),
            need: request.segment_size,
        }
    }

    pub(super) fn deficit(&self) -> u64 {
        self.need.saturating_sub(self.device.min(self.cap))
    }

    /// Whether the request fits with so much more.
    pub(super) fn fits_with(&self, gain: Gain) -> bool {
        let device = self.device.saturating_add(gain.device);
        let cap = self.cap.saturating_add(gain.cap);
        self.need <= device.min(cap)
    }
}

/// What the end of a cause would bring.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gain {
    pub(super) device: u64,
    pub(super) cap: u64,
}

impl Gain {
    /// Bytes of the allocator's own.
    pub(super) fn own(bytes: u64) -> Self {
        Gain { device: bytes, cap: bytes }
    }

    /// Bytes that others hold.
    pub(super) fn device(bytes: u64) -> Self {
        Gain { device: bytes, cap: 0 }
    }

    pub(super) fn and(self, other: Gain) -> Self {
        Gain { device: self.device.saturating_add(other.device), cap: self.cap.saturating_add(other.cap) }
    }
}
