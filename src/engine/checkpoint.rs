//! Saving and restoring the layout of a private pool, and who is live in it [spec 14.7, 14.8].

use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::Arc;

use super::shard::{Request, ShardState};
use super::shards::Shard;
use super::{Core, Place};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::observe::snapshot::{PoolId, PoolKind};
use crate::pool::block::{Block, BlockId, State};
use crate::pool::chain;

/// The layout of a private pool at one moment: which blocks tile its segments, and which of them were live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolCheckpoint {
    pool: PoolId,
    segments: Vec<SavedSegment>,
}

/// What [`restore_pool`](crate::Allocator::restore_pool) did, by addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PoolRestore {
    /// Blocks that were live before and were freed. Some of them may be live again, with other contents.
    pub freed: Vec<u64>,
    /// Blocks that are live now, to be freed with [`free_raw`](crate::Allocator::free_raw).
    pub live: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SavedSegment {
    stream: Stream,
    kind: PoolKind,
    blocks: Vec<SavedBlock>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SavedBlock {
    addr: u64,
    size: u64,
    live: bool,
    uses: Vec<Stream>,
}

/// A live block of the pool, as a restore finds it.
struct Live {
    shard: Arc<Shard>,
    block: BlockId,
    addr: u64,
}

impl PoolCheckpoint {
    /// The pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Addresses of the blocks that were live, ascending per stream.
    pub fn live_addresses(&self) -> impl Iterator<Item = u64> {
        self.segments.iter().flat_map(|s| &s.blocks).filter(|b| b.live).map(|b| b.addr)
    }
}

impl SavedSegment {
    fn start(&self) -> u64 {
        self.blocks.first().map_or(0, |b| b.addr)
    }

    fn bytes(&self) -> u64 {
        self.blocks.iter().map(|b| b.size).sum()
    }
}

fn invalid_structure() -> Error {
    Error::Pool("Invalid expandable segment structure during checkpoint restore".into())
}

/// The mapped blocks of a segment in address order: only a last one may be unmapped.
fn mapped_blocks(state: &ShardState, head: BlockId) -> Result<Vec<(BlockId, &Block)>> {
    let mut blocks: Vec<_> = chain::walk(&state.slab, head).collect();
    blocks.pop_if(|(_, b)| b.state == State::Unmapped);
    if blocks.iter().any(|(_, b)| b.state == State::Unmapped) {
        return Err(invalid_structure());
    }
    Ok(blocks)
}

/// First blocks of a pool's segments, by address.
fn heads(state: &ShardState, slot: u32) -> Vec<BlockId> {
    let mut heads: Vec<_> = state
        .slab
        .iter()
        .filter(|(_, b)| b.pool == slot && b.prev.is_none())
        .map(|(id, b)| (b.addr, id))
        .collect();
    heads.sort_unstable();
    heads.into_iter().map(|(_, id)| id).collect()
}

fn save_segment(state: &ShardState, head: BlockId) -> Result<Option<SavedSegment>> {
    let blocks = mapped_blocks(state, head)?;
    let Some((_, first)) = blocks.first() else { return Ok(None) };
    let kind = first.kind;
    let save = |(id, b): &(BlockId, &Block)| SavedBlock {
        addr: b.addr,
        size: b.size,
        live: b.state == State::Allocated,
        uses: state.uses.of(*id).map_or_else(Vec::new, |u| u.streams.to_vec()),
    };
    Ok(Some(SavedSegment { stream: state.stream, kind, blocks: blocks.iter().map(save).collect() }))
}

impl Core {
    pub(crate) fn checkpoint_pool(&self, id: PoolId) -> Result<PoolCheckpoint> {
        let _growth = self.growth.lock();
        let slot = self.pools.remember_addresses(id)?;
        self.nothing_pending(slot)?;
        let mut segments = Vec::new();
        for shard in self.shards.by_stream() {
            let state = shard.lock();
            for head in heads(&state, slot) {
                segments.extend(save_segment(&state, head)?);
            }
        }
        Ok(PoolCheckpoint { pool: id, segments })
    }

    /// Brings a saved layout back. Everything that can be refused is, before anything is changed.
    #[track_caller]
    pub(crate) fn restore_pool(&self, saved: &PoolCheckpoint) -> Result<PoolRestore> {
        let site = Location::caller();
        let _growth = self.growth.lock();
        let slot = self.pools.remember_addresses(saved.pool)?;
        self.nothing_pending(slot)?;
        for segment in &saved.segments {
            let state = self.shard(segment.stream).lock();
            find_segment(&state, slot, segment)?;
        }
        let freed = self.free_live(slot)?;
        let mut live = Vec::new();
        for segment in &saved.segments {
            self.restore_segment(slot, segment, site, &mut live)?;
        }
        Ok(PoolRestore { freed, live })
    }

    /// Hands all blocks of a segment out, and frees those that were not live [spec 14.7 steps 2 and 3].
    fn restore_segment(
        &self,
        slot: u32,
        segment: &SavedSegment,
        site: &'static Location<'static>,
        live: &mut Vec<u64>,
    ) -> Result<()> {
        let shard = self.shard(segment.stream);
        for (block, saved) in self.place_segment(shard, slot, segment, site)? {
            if !saved.live {
                self.free(shard, block, saved.addr)?;
                continue;
            }
            if !saved.uses.is_empty() {
                let mut state = shard.lock();
                state.slab[block].has_uses = true;
                state.uses.entry(block).streams = saved.uses.iter().copied().collect();
            }
            self.note_address(saved.addr, Place { shard: shard.index, block });
            live.push(saved.addr);
        }
        Ok(())
    }

    /// Whether exactly these addresses are live in the pool [spec 14.8].
    pub(crate) fn pool_live_is(&self, id: PoolId, addresses: &[u64]) -> Result<bool> {
        let Some(slot) = self.pools.slot_of(id) else {
            return Err(Error::Pool(format!("Could not find pool of id ({}, {})", id.0, id.1)));
        };
        let live: BTreeSet<u64> = self.live_in_pool(slot).iter().map(|l| l.addr).collect();
        Ok(live == addresses.iter().copied().collect())
    }

    /// By stream and address.
    fn live_in_pool(&self, slot: u32) -> Vec<Live> {
        let mut live = Vec::new();
        for shard in self.shards.by_stream() {
            let state = shard.lock();
            let blocks = state.slab.iter().filter(|(_, b)| b.pool == slot && b.state == State::Allocated);
            let of_shard = blocks.map(|(block, b)| Live { shard: shard.clone(), block, addr: b.addr });
            let from = live.len();
            live.extend(of_shard);
            live[from..].sort_unstable_by_key(|l| l.addr);
        }
        live
    }

    /// Completes the frees that can be, and refuses while others wait for a stream.
    fn nothing_pending(&self, slot: u32) -> Result<()> {
        self.process_events()?;
        let pending = |b: &Block| b.pool == slot && b.state == State::Pending;
        for shard in self.shards.by_stream() {
            if let Some((_, b)) = shard.lock().slab.iter().find(|(_, b)| pending(b)) {
                return Err(Error::Pool(format!(
                    "block {:#x} of the pool has outstanding events: another stream still uses it. Synchronize that \
                     stream, and be outside of captures and pool scopes",
                    b.addr
                )));
            }
        }
        Ok(())
    }

    /// Frees every live block of the pool; only blocks that were given out by address, whose owners can be told.
    fn free_live(&self, slot: u32) -> Result<Vec<u64>> {
        let live = self.live_in_pool(slot);
        for l in &live {
            if self.find_address(l.addr) != Some(Place { shard: l.shard.index, block: l.block }) {
                return Err(Error::Pool(format!(
                    "block {:#x} of the pool belongs to an Allocation; drop it, or turn it into an address with \
                     Allocation::into_raw, before the pool is restored",
                    l.addr
                )));
            }
            if self.any_pool_active() && l.shard.lock().slab[l.block].has_uses {
                return Err(Error::Pool(format!(
                    "block {:#x} of the pool is used by another stream, and cannot be waited for inside a capture or \
                     pool scope",
                    l.addr
                )));
            }
        }
        let mut freed = Vec::new();
        for l in &live {
            if self.free_address(l.addr)? {
                freed.push(l.addr);
            }
        }
        let waits = |shard: &Arc<Shard>| {
            shard.lock().slab.iter().any(|(_, b)| b.pool == slot && b.state == State::Pending)
        };
        if self.shards.by_stream().iter().any(waits) {
            self.synchronize_and_free_events(Some(slot))?;
        }
        Ok(freed)
    }

    /// Cuts the free block that covers a segment into the saved blocks, all of them handed out.
    fn place_segment<'a>(
        &self,
        shard: &Shard,
        slot: u32,
        segment: &'a SavedSegment,
        site: &'static Location<'static>,
    ) -> Result<Vec<(BlockId, &'a SavedBlock)>> {
        let mut placed = Vec::new();
        let at = find_segment(&shard.lock(), slot, segment)?;
        for saved in &segment.blocks {
            let size = saved.size;
            let request = Request {
                bytes: size,
                rounded: size,
                kind: segment.kind,
                pool: slot,
                expandable: false,
                scope: 0,
                site,
            };
            // The record keeps what is behind the block that is cut off.
            let grant = self.step(shard, |state| {
                let free = state.slab.get(at).is_some_and(|b| {
                    b.state == State::Free && b.addr == saved.addr && b.size >= size && b.pool == slot
                });
                if free {
                    state.carve(at, size, &request, &self.shared).map(|(grant, _)| Some(grant))
                } else {
                    Ok(None)
                }
            });
            let Some(grant) = grant.flatten() else {
                return Err(Error::Pool(format!(
                    "another thread used the pool during its restore (at {:#x})",
                    saved.addr
                )));
            };
            placed.push((grant.block, saved));
        }
        Ok(placed)
    }
}

/// The first block of a saved segment, which must cover what was saved.
fn find_segment(state: &ShardState, slot: u32, segment: &SavedSegment) -> Result<BlockId> {
    let start = segment.start();
    let head = heads(state, slot).into_iter().find(|&id| state.slab[id].addr == start);
    let Some(head) = head else {
        return Err(Error::Pool(format!("segment {start:#x} of the checkpoint is not in the pool any more")));
    };
    let bytes: u64 = mapped_blocks(state, head)?.iter().map(|(_, b)| b.size).sum();
    match (state.slab[head].is_expandable(), bytes.cmp(&segment.bytes())) {
        (_, std::cmp::Ordering::Equal) | (true, std::cmp::Ordering::Greater) => Ok(head),
        (true, std::cmp::Ordering::Less) => Err(invalid_structure()),
        (false, _) => Err(Error::Pool(format!("segment {start:#x} has another size than in the checkpoint"))),
    }
}
