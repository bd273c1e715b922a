//! Returning memory to the driver [spec 7].

use std::sync::Arc;

use super::parts::DEFAULT_POOL;
use super::shard::{Request, ShardState};
use super::shards::Shard;
use super::{Core, Growth};
use crate::device::{DeviceError, DeviceResult};
use crate::error::Result;
use crate::observe::history::TraceAction;
use crate::observe::snapshot::{PoolId, PoolKind};
use crate::pool::block::{Block, BlockId, State};

/// What [`empty_cache`](crate::Allocator::empty_cache) did, and what it had to leave. In bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EmptyCacheReport {
    /// Given back to the driver.
    pub freed_bytes: u64,
    /// Segments given back, and ranges unmapped.
    pub freed_segments: u64,
    /// Still reserved.
    pub kept_bytes: u64,
    /// Segments, or mapped runs of expandable ones, that stay.
    pub kept: Vec<KeptSegment>,
}

/// A segment that stays reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptSegment {
    /// Start address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes in clients' hands.
    pub live_bytes: u64,
    /// Bytes freed that another stream may still use.
    pub pending_bytes: u64,
    /// Why it stays.
    pub reason: KeptReason,
}

/// Why a segment stays reserved after `empty_cache`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeptReason {
    /// A block in it is in a client's hands.
    LiveBlock,
    /// A block in it waits for another stream.
    PendingEvent,
    /// It belongs to a private pool that is still in use.
    PrivatePool,
    /// Only whole pages of an expandable segment can be unmapped, and this rest is less than one.
    PartialPage,
    /// Some pool is active (a capture, or a pool scope), so that the cache may not be emptied.
    PoolActive,
}

/// A block on its way to the driver.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    id: BlockId,
    addr: u64,
    size: u64,
    pool: u32,
    kind: PoolKind,
}

impl ShardState {
    /// Free blocks of one pool and kind, in the order of its free set.
    pub(super) fn free_blocks(&self, pool: u32, kind: PoolKind) -> Vec<(BlockId, &Block)> {
        let mut all: Vec<_> = self
            .slab
            .iter()
            .filter(|(_, b)| b.state == State::Free && b.pool == pool && b.kind == kind)
            .collect();
        all.sort_by_key(|(_, b)| (b.size, b.addr));
        all
    }

    /// Takes whole ordinary segments that are free out of the free set, those for which `wanted` holds.
    fn take_whole(
        &mut self,
        pool: u32,
        kind: PoolKind,
        wanted: impl Fn(BlockId, &Block) -> bool,
    ) -> Vec<Leaving> {
        let whole = self.free_blocks(pool, kind).into_iter();
        let leaving: Vec<Leaving> = whole
            .filter(|(id, b)| !b.is_split() && !b.is_expandable() && wanted(*id, b))
            .map(|(id, b)| Leaving { id, addr: b.addr, size: b.size, pool, kind })
            .collect();
        for block in &leaving {
            self.remove_free(block.id);
        }
        leaving
    }
}

impl Core {
    /// Gives every cached segment back that can be, and says what stayed [spec 7.3].
    pub(crate) fn empty_cache(&self) -> Result<EmptyCacheReport> {
        let mut growth = self.growth.lock();
        let before = self.reserved_and_frees();
        self.release_all(&mut growth, None)?;
        let after = self.reserved_and_frees();
        let mut report = EmptyCacheReport {
            freed_bytes: before.0.saturating_sub(after.0),
            freed_segments: (after.1 - before.1).max(0) as u64,
            kept_bytes: after.0,
            kept: Vec::new(),
        };
        self.kept_segments(&mut report.kept);
        Ok(report)
    }

    fn reserved_and_frees(&self) -> (u64, i64) {
        let ledger = self.ledger.lock();
        (ledger.total_reserved, ledger.num_device_free)
    }

    /// Release-all [spec 7.2]; `only` names a private pool, `None` means everything.
    pub(super) fn release_all(&self, growth: &mut Growth, only: Option<PoolId>) -> Result<()> {
        if only.is_none() && !self.any_pool_active() {
            self.release_default(growth)?;
        }
        self.release_freeable(growth, only)
    }

    /// Whether a failing request may have cached memory released [spec 14.3]. PyTorch refuses that in every
    /// pool's scope; only a capture demands it.
    pub(super) fn may_release(&self) -> bool {
        !self.any_pool_active() || (!self.mirror_defects() && !self.pools.capture_active())
    }

    /// Releases what a failing request of this pool may take: everything that is cached, but for the private
    /// pools of others.
    pub(super) fn release_for(&self, growth: &mut Growth, pool: u32) -> Result<()> {
        self.release_default(growth)?;
        if pool != DEFAULT_POOL && self.pools.idle_may_leave(pool) {
            self.release_pool(growth, pool, PoolKind::Large)?;
            self.release_pool(growth, pool, PoolKind::Small)?;
        }
        self.release_freeable(growth, None)
    }

    fn release_default(&self, growth: &mut Growth) -> Result<()> {
        self.synchronize_and_free_events(None)?;
        self.release_pool(growth, DEFAULT_POOL, PoolKind::Large)?;
        self.release_pool(growth, DEFAULT_POOL, PoolKind::Small)
    }

    /// Releases pools that have no user any more, or that one of them.
    fn release_freeable(&self, growth: &mut Growth, only: Option<PoolId>) -> Result<()> {
        // Unmapping waits for a stream, which its capture would not survive. Their turn comes later.
        if self.pools.capture_active() && !self.mirror_defects() {
            return Ok(());
        }
        for pool in self.pools.freeable() {
            if only.is_some_and(|id| id != pool.id) {
                continue;
            }
            if only.is_some() && !self.any_pool_active() {
                self.synchronize_and_free_events(Some(pool.slot))?;
            }
            self.release_pool(growth, pool.slot, PoolKind::Small)?;
            self.release_pool(growth, pool.slot, PoolKind::Large)?;
            if self.pools.forget_if_empty(pool.id) {
                self.shards.with_all(|states| states.iter_mut().for_each(|s| s.drop_part(pool.slot)));
            }
        }
        Ok(())
    }

    pub(super) fn release_pool(&self, growth: &mut Growth, pool: u32, kind: PoolKind) -> Result<()> {
        let shards = self.shards.by_stream();
        for shard in &shards {
            self.release_chosen(shard, pool, kind, |_, _| true)?;
        }
        self.unmap_pool(growth, &shards, pool, kind)
    }

    /// Gives back one shard's whole segments for which `wanted` holds. Their sizes.
    pub(super) fn release_chosen(
        &self,
        shard: &Shard,
        pool: u32,
        kind: PoolKind,
        wanted: impl Fn(BlockId, &Block) -> bool,
    ) -> DeviceResult<Vec<u64>> {
        let leaving = shard.lock().take_whole(pool, kind, wanted);
        self.release_taken(shard, &leaving)?;
        Ok(leaving.iter().map(|l| l.size).collect())
    }

    /// Gives taken blocks to the driver, one by one. What fails goes back into the free set, with all that
    /// was still to go.
    fn release_taken(&self, shard: &Shard, leaving: &[Leaving]) -> DeviceResult<()> {
        for (i, block) in leaving.iter().enumerate() {
            if let Err(error) = self.release_block(shard, *block) {
                let mut state = shard.lock();
                for back in &leaving[i..] {
                    state.insert_free(back.id, &self.shared);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Releases one ordinary segment that is held [spec 7.1].
    fn release_block(&self, shard: &Shard, block: Leaving) -> DeviceResult<()> {
        let max_split = {
            let mut state = shard.lock();
            let site = state.slab[block.id].segment_site;
            state.record(TraceAction::SegmentFree, block.addr, block.size, site);
            state.rules.max_split
        };
        match self.pools.upstream(block.pool) {
            Some(upstream) => upstream.free(block.addr, block.size, shard.stream),
            None => match self.device.free(block.addr) {
                // The driver has taken everything back already.
                Ok(()) | Err(DeviceError::ShuttingDown { .. }) => {}
                Err(error) => return Err(error),
            },
        }
        self.pools.note_driver_bytes(block.pool, -(block.size as i64));
        self.ledger.lock().segment_released(block.kind, block.size, max_split);
        shard.lock().slab.remove(block.id);
        Ok(())
    }

    /// Release-enough [spec 4.5]: cached oversize blocks of the request's pool and stream, the best fit first,
    /// else from the largest down. Whether enough went.
    pub(super) fn release_enough(&self, shard: &Arc<Shard>, request: &Request) -> Result<bool> {
        // A graph may write to the idle segments of its pool; PyTorch does not look.
        if !self.pools.idle_may_leave(request.pool) && !self.mirror_defects() {
            return Ok(false);
        }
        let leaving = {
            let mut state = shard.lock();
            let max_split = state.rules.max_split;
            if max_split == u64::MAX {
                return Ok(false);
            }
            let key = request.rounded.max(max_split);
            // PyTorch does not look whether an oversize block is whole; splitting one can happen when options
            // change, and giving a part of a segment to the driver would be fatal [spec 23.13, 23.14].
            let whole = |b: &Block| !b.is_expandable() && !b.is_split();
            let free = state.free_blocks(request.pool, request.kind);
            let at = free.partition_point(|(_, b)| b.size < key);
            let mut chosen = Vec::new();
            let mut enough = false;
            if let Some((id, b)) = free.get(at).filter(|(_, b)| whole(b)) {
                chosen.push(Leaving { id: *id, addr: b.addr, size: b.size, pool: b.pool, kind: b.kind });
                enough = true;
            } else {
                let mut total = 0;
                for (id, b) in free[..at].iter().rev().take_while(|(_, b)| b.size >= max_split) {
                    if total >= key {
                        break;
                    }
                    if whole(b) {
                        chosen.push(Leaving {
                            id: *id,
                            addr: b.addr,
                            size: b.size,
                            pool: b.pool,
                            kind: b.kind,
                        });
                        total += b.size;
                    }
                }
                enough |= total >= key;
            }
            for block in &chosen {
                state.remove_free(block.id);
            }
            if chosen.is_empty() {
                return Ok(false);
            }
            (chosen, enough)
        };
        self.release_taken(shard, &leaving.0)?;
        Ok(leaving.1)
    }

    /// Garbage collection's last step: gives back the whole segments of the default large pool for which
    /// `wanted` holds, stream by stream. Returns (bytes, blocks, sum of ages) that went.
    pub(super) fn release_aged(&self, wanted: impl Fn(&Block) -> bool) -> DeviceResult<Vec<(u64, u64)>> {
        let mut gone = Vec::new();
        for shard in self.shards.by_stream() {
            let leaving = {
                let mut state = shard.lock();
                let leaving = state.take_whole(DEFAULT_POOL, PoolKind::Large, |_, b| wanted(b));
                gone.extend(leaving.iter().map(|l| (l.size, state.slab[l.id].gc_base)));
                leaving
            };
            self.release_taken(&shard, &leaving)?;
        }
        Ok(gone)
    }
}
