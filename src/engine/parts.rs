//! A shard's free sets, by pool.

use std::collections::HashMap;

use super::shard::ShardState;
use crate::observe::snapshot::PoolKind;
use crate::pool::block::Slab;
use crate::pool::set::FreeSet;

/// Slot of the default pool.
pub(crate) const DEFAULT_POOL: u32 = 0;

/// The two free sets of one pool on one stream.
#[derive(Debug)]
pub(crate) struct PoolPart {
    /// By kind.
    sets: [FreeSet; 2],
    /// Every request takes a whole segment [spec 14.4].
    pub(crate) no_split: bool,
}

impl PoolPart {
    pub(crate) fn new() -> Self {
        PoolPart { sets: [FreeSet::new(), FreeSet::new()], no_split: false }
    }

    #[inline]
    pub(crate) fn set(&mut self, kind: PoolKind) -> &mut FreeSet {
        &mut self.sets[kind as usize]
    }
}

#[inline]
fn part_of<'a>(
    default: &'a mut PoolPart,
    private: &'a mut HashMap<u32, PoolPart>,
    pool: u32,
) -> &'a mut PoolPart {
    if pool == DEFAULT_POOL { default } else { private_part(private, pool) }
}

#[cold]
fn private_part(private: &mut HashMap<u32, PoolPart>, pool: u32) -> &mut PoolPart {
    private.entry(pool).or_insert_with(PoolPart::new)
}

impl ShardState {
    /// The pool's part on this stream; made when it is first needed.
    #[inline]
    pub(crate) fn part(&mut self, pool: u32) -> &mut PoolPart {
        part_of(&mut self.default, &mut self.private, pool)
    }

    /// Works on one free set and the block records together.
    #[inline]
    pub(super) fn with_set<R>(
        &mut self,
        pool: u32,
        kind: PoolKind,
        f: impl FnOnce(&mut FreeSet, &mut Slab) -> R,
    ) -> R {
        let part = part_of(&mut self.default, &mut self.private, pool);
        f(part.set(kind), &mut self.slab)
    }

    /// Forgets a private pool's part, which is empty.
    pub(crate) fn drop_part(&mut self, pool: u32) {
        self.private.remove(&pool);
    }
}
