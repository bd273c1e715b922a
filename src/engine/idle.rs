//! `release_idle_after`: cached segments that nobody used for a while go back to the driver.
//!
//! No hit reads a clock. Time is looked at where a request has missed the cache, and when the program asks for it.
//! Such a *look* notes which segments are wholly free. Whenever any part of a segment is handed out, the block that
//! covers it afterwards has another record or generation; one that is seen again unchanged was not used between.
//! So what was used within the time stays, and with it the most that was in use at any moment of that time.
//!
//! A segment that is asked for again soon after it went was given up too early: the patience doubles then, up to
//! [`MOST_PATIENCE`] times the configured time, and wears off while nothing of the kind happens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::parts::DEFAULT_POOL;
use super::shard::Request;
use super::shards::Shard;
use super::{Core, Growth};
use crate::config::Config;
use crate::error::Result;
use crate::observe::snapshot::PoolKind;
use crate::pool::block::{Block, BlockId};

const MOST_PATIENCE: u32 = 8;
/// Misses look this many times within the configured time, at most.
const LOOKS: u32 = 8;

type Key = (u32, BlockId);

/// What the looks have seen; guarded by `growth`.
#[derive(Debug)]
pub(crate) struct Idle {
    /// Free blocks by shard and record: their generation, and when they were first seen.
    seen: HashMap<Key, (u32, Duration)>,
    looked: Duration,
    /// Factor of the configured time.
    patience: u32,
    /// When the patience last changed.
    changed: Duration,
    gone: Vec<Gone>,
}

/// A segment that was given back.
#[derive(Debug)]
struct Gone {
    shard: u32,
    kind: PoolKind,
    bytes: u64,
    at: Duration,
}

impl Default for Idle {
    fn default() -> Self {
        let (looked, changed) = Default::default();
        Idle { seen: HashMap::new(), looked, patience: 1, changed, gone: Vec::new() }
    }
}

impl Idle {
    /// A request found nothing in the cache: would something have served it that is gone since a short time?
    fn missed(&mut self, shard: u32, kind: PoolKind, bytes: u64, now: Duration, after: Duration) {
        let memory = after.saturating_mul(MOST_PATIENCE);
        self.gone.retain(|g| now.saturating_sub(g.at) < memory);
        let early = self.gone.iter().position(|g| (g.shard, g.kind) == (shard, kind) && g.bytes >= bytes);
        if let Some(early) = early {
            self.gone.swap_remove(early);
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
            self.changed = now;
        } else if self.patience > 1 && now.saturating_sub(self.changed) >= memory.saturating_mul(2) {
            self.patience /= 2;
            self.changed = now;
        }
    }

    /// Notes what is free now; answers what has been free for the whole time, with its generation.
    fn look(&mut self, free: &[(Key, u32)], now: Duration, after: Duration) -> HashMap<Key, u32> {
        self.looked = now;
        let before = std::mem::take(&mut self.seen);
        let since = |key: &Key, generation: u32| {
            before.get(key).filter(|(g, _)| *g == generation).map_or(now, |&(_, since)| since)
        };
        self.seen =
            free.iter().map(|(key, generation)| (*key, (*generation, since(key, *generation)))).collect();
        let limit = after.saturating_mul(self.patience);
        let aged = self.seen.iter().filter(|(_, (_, since))| now.saturating_sub(*since) >= limit);
        aged.map(|(key, (generation, _))| (*key, *generation)).collect()
    }
}

impl Core {
    /// The program's own look; bytes given back.
    pub(crate) fn release_idle(&self) -> Result<u64> {
        let Some(after) = self.config.read().release_idle_after else { return Ok(0) };
        if !self.any_pool_active() {
            self.process_events()?;
        }
        let mut growth = self.growth.lock();
        let before = self.ledger.lock().total_reserved;
        self.look_for_idle(&mut growth, self.device.now(), after)?;
        Ok(before - self.ledger.lock().total_reserved)
    }

    /// The look of a request that missed the cache.
    pub(super) fn release_idle_at_miss(
        &self,
        growth: &mut Growth,
        config: &Config,
        shard: &Shard,
        request: &Request,
    ) -> Result<()> {
        let Some(after) = config.release_idle_after else { return Ok(()) };
        let now = self.device.now();
        growth.idle.missed(shard.index, request.kind, request.rounded, now, after);
        if now.saturating_sub(growth.idle.looked) < after / LOOKS {
            return Ok(());
        }
        self.look_for_idle(growth, now, after)
    }

    fn look_for_idle(&self, growth: &mut Growth, now: Duration, after: Duration) -> Result<()> {
        // Nothing may be freed during a capture, and only default pools decay.
        if self.any_pool_active() {
            return Ok(());
        }
        let shards = self.shards.by_stream();
        let free: Vec<(Key, u32)> = shards.iter().flat_map(|shard| idle_blocks(shard)).collect();
        let aged = growth.idle.look(&free, now, after);
        for shard in &shards {
            // Another thread may have used it since.
            let is_aged = |id: BlockId, b: &Block| aged.get(&(shard.index, id)) == Some(&b.generation);
            for kind in [PoolKind::Large, PoolKind::Small] {
                let gone = self.release_chosen(shard, DEFAULT_POOL, kind, is_aged)?;
                let gone = gone.into_iter().map(|bytes| Gone { shard: shard.index, kind, bytes, at: now });
                growth.idle.gone.extend(gone);
            }
            self.unmap_idle(growth, shard, &is_aged)?;
        }
        Ok(())
    }

    /// Whole pages of free blocks in expandable segments.
    fn unmap_idle(
        &self,
        growth: &mut Growth,
        shard: &Arc<Shard>,
        is_aged: &dyn Fn(BlockId, &Block) -> bool,
    ) -> Result<()> {
        for kind in [PoolKind::Large, PoolKind::Small] {
            let blocks: Vec<(BlockId, u64)> = {
                let state = shard.lock();
                let free = state.free_blocks(DEFAULT_POOL, kind).into_iter();
                free.filter(|(id, b)| b.is_expandable() && is_aged(*id, b))
                    .map(|(id, b)| (id, b.addr))
                    .collect()
            };
            for (id, addr) in blocks {
                self.unmap_block(growth, shard, id, addr)?;
            }
        }
        Ok(())
    }
}

/// What could go back: whole segments, and free blocks of expandable ones.
fn idle_blocks(shard: &Shard) -> Vec<(Key, u32)> {
    let state = shard.lock();
    let free = [PoolKind::Large, PoolKind::Small].map(|kind| state.free_blocks(DEFAULT_POOL, kind));
    let could_go = |b: &Block| b.is_expandable() || !b.is_split();
    free.into_iter()
        .flatten()
        .filter(|(_, b)| could_go(b))
        .map(|(id, b)| ((shard.index, id), b.generation))
        .collect()
}
