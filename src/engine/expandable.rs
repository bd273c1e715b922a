//! Expandable segments: address space reserved once, memory mapped into it page by page [spec 13].

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use super::pages::Reservation;
use super::shard::{Request, ShardState};
use super::shards::Shard;
use super::shared::Shared;
use super::{Core, Growth};
use crate::config::ReserveSize;
use crate::device::DeviceError;
use crate::error::Result;
use crate::observe::history::TraceAction;
use crate::observe::snapshot::PoolKind;
use crate::pool::block::{Block, BlockId, State};
use crate::pool::chain;
use crate::size::ceil_to;

/// What to do next for a request that needs address space.
enum Plan {
    /// Map this many bytes at the start of an unmapped block, which is held.
    Map(BlockId, u64),
    /// A free block is large enough, although the search's oversize rules refused it. It is held.
    Take(BlockId),
    /// No run of free and unmapped blocks is long enough.
    Reserve,
}

/// The outcome of an attempt to grow.
pub(super) enum Grown {
    Block(BlockId),
    NoMemory,
    /// The driver has no address space, or no virtual memory at all.
    NoAddressSpace,
}

impl ShardState {
    /// Finds address space [spec 13.4 step 1] and takes the block that is to be mapped next.
    fn plan_growth(&mut self, request: &Request) -> Plan {
        let size = request.rounded;
        let candidates: Vec<BlockId> = self.part(request.pool).set(request.kind).unmapped().collect();
        for unmapped in candidates {
            let start = chain::prev_in(&self.slab, unmapped, State::Free).unwrap_or(unmapped);
            let run = chain::walk(&self.slab, start)
                .take_while(|(_, b)| matches!(b.state, State::Free | State::Unmapped));
            let mut sum = 0;
            if !run.map(|(_, b)| b.size).any(|s| (sum += s, sum >= size).1) {
                continue;
            }
            let had = if start == unmapped { 0 } else { self.slab[start].size };
            if had >= size {
                self.remove_free(start);
                return Plan::Take(start);
            }
            let bytes = (size - had).min(self.slab[unmapped].size);
            self.part_remove_unmapped(unmapped);
            return Plan::Map(unmapped, bytes);
        }
        Plan::Reserve
    }

    fn part_remove_unmapped(&mut self, id: BlockId) {
        let (pool, kind) = (self.slab[id].pool, self.slab[id].kind);
        self.with_set(pool, kind, |set, slab| set.remove_unmapped(slab, id));
    }

    fn part_insert_unmapped(&mut self, id: BlockId) {
        let (pool, kind) = (self.slab[id].pool, self.slab[id].kind);
        self.with_set(pool, kind, |set, slab| set.insert_unmapped(slab, id));
    }

    /// Files a held block that could not be mapped as it was. What another thread freed before it meanwhile is a tail
    /// now.
    fn unhold_unmapped(&mut self, id: BlockId, shared: &Shared) {
        self.part_insert_unmapped(id);
        if let Some(before) = chain::prev_in(&self.slab, id, State::Free) {
            self.remove_free(before);
            self.insert_free(before, shared);
        }
    }

    /// The first `bytes` of a held block are mapped now: files them as free, merged with their neighbours.
    fn file_mapped(&mut self, id: BlockId, bytes: u64, shared: &Shared) -> BlockId {
        if bytes < self.slab[id].size {
            let rest = chain::split_back(&mut self.slab, id, bytes);
            self.part_insert_unmapped(rest);
        }
        self.file_free(id, shared);
        id
    }

    /// Files a held block as free, merged with its free neighbours.
    fn file_free(&mut self, id: BlockId, shared: &Shared) {
        let prev = chain::prev_in(&self.slab, id, State::Free);
        let next = chain::next_in(&self.slab, id, State::Free);
        self.merge_free(id, prev, next);
        self.insert_free(id, shared);
    }

    /// Files a held block as unmapped, merged with its unmapped neighbours.
    fn file_unmapped(&mut self, id: BlockId) {
        if let Some(prev) = chain::prev_in(&self.slab, id, State::Unmapped) {
            self.part_remove_unmapped(prev);
            chain::absorb_prev(&mut self.slab, id);
        }
        if let Some(next) = chain::next_in(&self.slab, id, State::Unmapped) {
            self.part_remove_unmapped(next);
            chain::absorb_next(&mut self.slab, id);
        }
        self.part_insert_unmapped(id);
    }
}

impl Core {
    /// Makes room for the request in a reservation [spec 13.4]. The block is held.
    pub(super) fn grow_expandable(
        &self,
        growth: &mut Growth,
        shard: &Arc<Shard>,
        request: &Request,
    ) -> Result<Grown> {
        loop {
            let plan = shard.lock().plan_growth(request);
            match plan {
                Plan::Reserve => {
                    if !self.reserve_addresses(growth, shard, request)? {
                        return Ok(Grown::NoAddressSpace);
                    }
                }
                Plan::Take(id) => return Ok(Grown::Block(id)),
                Plan::Map(id, bytes) => {
                    if !self.map_block(growth, shard, id, bytes, request)? {
                        return Ok(Grown::NoMemory);
                    }
                    let mut state = shard.lock();
                    if state.slab[id].state == State::Free && state.slab[id].size >= request.rounded {
                        state.remove_free(id);
                        return Ok(Grown::Block(id));
                    }
                }
            }
        }
    }

    /// Reserves address space for one pool on one stream [spec 13.2]. `false`: the driver has none for us.
    fn reserve_addresses(&self, growth: &mut Growth, shard: &Arc<Shard>, request: &Request) -> Result<bool> {
        let page = shard.lock().rules.page_size(request.kind);
        let total = self.properties.total_memory;
        // No device comes near the end of the address space.
        let full = total.saturating_add(total / 8).min(1 << 62);
        let wanted = match self.config.read().expandable_segments_reserve {
            None => full,
            Some(ReserveSize::Bytes(bytes)) => bytes.min(full),
            Some(ReserveSize::Fraction(f)) => ((total as f64 * f) as u64).min(full),
        };
        let bytes = ceil_to(wanted.max(page), page);
        if bytes < request.rounded && self.config.read().expandable_segments_reserve.is_some() {
            return Ok(false);
        }
        let base = match self.device.address_reserve(bytes) {
            Ok(base) => base,
            Err(DeviceError::ShuttingDown { call }) => return Err(DeviceError::ShuttingDown { call }.into()),
            Err(_) => return Ok(false),
        };
        if request.rounded > bytes {
            // Larger than the device: no amount of mapping will do [spec 23.10].
            self.device.address_free(base, bytes)?;
            return Ok(false);
        }
        let reservation = Reservation::new(base, bytes, page, request);
        growth.reservations.insert(reservation);
        let mut state = shard.lock();
        let id = state.slab.insert(Block::segment(base, bytes, request.pool, request.kind, true));
        state.part_insert_unmapped(id);
        Ok(true)
    }

    /// Maps the first `bytes` (rounded up to pages) of a held unmapped block. `false`: no memory, nothing changed.
    fn map_block(
        &self,
        growth: &mut Growth,
        shard: &Arc<Shard>,
        id: BlockId,
        bytes: u64,
        request: &Request,
    ) -> Result<bool> {
        let addr = shard.lock().slab[id].addr;
        // Always found: every expandable block lies in one.
        let index = growth.reservations.place_of(addr).unwrap_or(u32::MAX);
        let (page, site) = growth.reservations.get(index).map_or((1, request.site), |r| (r.page, r.site));
        let bytes = ceil_to(bytes, page);
        let over_cap = !self.mirror_defects() && self.beyond_cap(bytes);
        let mapped =
            if over_cap { Ok(false) } else { self.map_pages(&mut growth.reservations, index, addr, bytes) };
        let mut state = shard.lock();
        if !matches!(mapped, Ok(true)) {
            state.unhold_unmapped(id, &self.shared);
            return Ok(mapped?);
        }
        drop(state);
        self.pools.note_driver_bytes(request.pool, bytes as i64);
        self.ledger.lock().range_mapped(request.kind, bytes);
        let mut state = shard.lock();
        state.slab[id].segment_site = Some(site);
        state.record(TraceAction::SegmentMap, addr, bytes, Some(request.site));
        state.file_mapped(id, bytes, &self.shared);
        Ok(true)
    }

    /// Unmaps the whole pages inside the free expandable blocks of one pool [spec 13.6].
    pub(super) fn unmap_pool(
        &self,
        growth: &mut Growth,
        shards: &[Arc<Shard>],
        pool: u32,
        kind: PoolKind,
    ) -> Result<()> {
        for shard in shards {
            let blocks: Vec<(BlockId, u64)> = {
                let state = shard.lock();
                let free = state.free_blocks(pool, kind).into_iter();
                free.filter(|(_, b)| b.is_expandable()).map(|(id, b)| (id, b.addr)).collect()
            };
            for (id, addr) in blocks {
                self.unmap_block(growth, shard, id, addr)?;
            }
        }
        Ok(())
    }

    pub(super) fn unmap_block(
        &self,
        growth: &mut Growth,
        shard: &Arc<Shard>,
        id: BlockId,
        addr: u64,
    ) -> Result<()> {
        let (index, start, end) = {
            let mut state = shard.lock();
            // Another thread may have taken it since it was listed.
            let Some(block) = state.slab.get(id).filter(|b| b.state == State::Free && b.addr == addr) else {
                return Ok(());
            };
            let Some(index) = growth.reservations.place_of(addr) else { return Ok(()) };
            let Some(r) = growth.reservations.get(index) else { return Ok(()) };
            let start = r.base + ceil_to(block.addr - r.base, r.page);
            let end = r.base + (block.end() - r.base) / r.page * r.page;
            if start >= end {
                return Ok(());
            }
            state.remove_free(id);
            (index, start, end)
        };
        let (unmapped_to, outcome) =
            self.unmap_pages(&mut growth.reservations, index, start, end, shard.stream);
        let Some(r) = growth.reservations.get(index) else { return Ok(outcome?) };
        let (pool, kind, bytes) = (r.pool, r.kind, unmapped_to - start);
        if bytes > 0 {
            self.pools.note_driver_bytes(pool, -(bytes as i64));
            self.ledger.lock().range_unmapped(kind, bytes);
        }
        let gone = self.file_unmapped_range(shard, id, start..unmapped_to, r.site);
        if gone {
            let (base, bytes) = (r.base, r.bytes);
            growth.reservations.remove(index);
            self.device.address_free(base, bytes)?;
        }
        Ok(outcome?)
    }

    /// Files the parts of a held block of which `[start, end)` was unmapped. Whether the whole reservation is
    /// unmapped now; its block is gone then. `site` is who asked for the reservation.
    fn file_unmapped_range(
        &self,
        shard: &Shard,
        id: BlockId,
        Range { start, end }: Range<u64>,
        site: &'static Location<'static>,
    ) -> bool {
        let mut state = shard.lock();
        if start == end {
            state.file_free(id, &self.shared);
            return false;
        }
        state.record(TraceAction::SegmentUnmap, start, end - start, Some(site));
        let before = (state.slab[id].addr < start).then(|| {
            let size = start - state.slab[id].addr;
            chain::split_front(&mut state.slab, id, size)
        });
        // What is before the hole ends a run now.
        if let Some(ends) = state.slab[id].prev.some() {
            state.slab[ends].segment_site = Some(site);
        }
        let after = (state.slab[id].end() > end).then(|| chain::split_back(&mut state.slab, id, end - start));
        state.file_unmapped(id);
        for part in [before, after].into_iter().flatten() {
            state.file_free(part, &self.shared);
        }
        if state.slab[id].is_split() {
            return false;
        }
        state.part_remove_unmapped(id);
        state.slab.remove(id);
        true
    }
}
