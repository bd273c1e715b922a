//! Self-check: every invariant of the structures against each other.

use std::collections::{HashMap, HashSet};

use super::Core;
use super::counted::Counter;
use super::shard::ShardState;
use crate::observe::snapshot::PoolKind;
use crate::pool::block::{Block, BlockId, State};
use crate::pool::chain;

/// What one shard's blocks add up to, per pool kind.
#[derive(Default)]
struct Sums {
    counts: [[i64; 8]; 2],
    /// Ordinary segments, and bytes from the driver.
    segments: [i64; 2],
    reserved: [u64; 2],
}

impl Core {
    /// Checks that live + cached + pending = reserved, that blocks tile their segments and that the statistics
    /// say what the blocks say. No slow path runs meanwhile.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let _growth = self.growth.lock();
        let mut faults = Vec::new();
        let (mut kinds, mut segments) = ([0; 2], [0; 2]);
        self.shards.with_all(|states| {
            for state in states.iter_mut() {
                let sums = check_shard(state, &mut faults);
                for kind in 0..2 {
                    kinds[kind] += sums.reserved[kind];
                    segments[kind] += sums.segments[kind];
                }
            }
        });
        let ledger = self.ledger.lock();
        let reserved: u64 = kinds.iter().sum();
        if reserved != ledger.total_reserved || ledger.reserved_bytes.all.current != reserved as i64 {
            faults.push(format!(
                "blocks cover {reserved} bytes, {} are reserved (statistics: {})",
                ledger.total_reserved, ledger.reserved_bytes.all.current
            ));
        }
        let counted = [&ledger.segment, &ledger.reserved_bytes]
            .map(|array| [array.small_pool.current, array.large_pool.current]);
        if counted != [segments, kinds.map(|bytes| bytes as i64)] {
            faults.push(format!(
                "small and large: {segments:?} segments, {kinds:?} bytes; the statistics say {counted:?}"
            ));
        }
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
    }
}

fn check_shard(state: &mut ShardState, faults: &mut Vec<String>) -> Sums {
    let mut sums = Sums::default();
    let mut seen = HashSet::new();
    for (head, first) in state.slab.iter().filter(|(_, b)| b.prev.is_none()) {
        if !first.is_expandable() {
            sums.segments[usize::from(first.kind == PoolKind::Large)] += 1;
        }
        let mut before: Option<(BlockId, &Block)> = None;
        for (id, block) in chain::walk(&state.slab, head) {
            if !seen.insert(id) {
                faults.push(format!("{:?}: block {id:?} is in two places", state.stream));
                break;
            }
            check_block(state, first, before, block, faults);
            add(&mut sums, block, state.rules.max_split);
            before = Some((id, block));
        }
    }
    if seen.len() != state.slab.iter().count() {
        faults.push(format!("{:?}: some blocks are in no segment", state.stream));
    }
    compare(state, &sums, faults);
    check_best_fits(state, faults);
    sums
}

/// A search for the size of each ordinary free block must find the one of that size with the least address.
fn check_best_fits(state: &mut ShardState, faults: &mut Vec<String>) {
    let mut first: HashMap<(u32, bool, u64), u64> = HashMap::new();
    for (_, b) in state.slab.iter().filter(|(_, b)| b.state == State::Free && !b.is_expandable()) {
        let least = first.entry((b.pool, b.kind == PoolKind::Large, b.size)).or_insert(b.addr);
        *least = b.addr.min(*least);
    }
    for ((pool, large, size), addr) in first {
        let kind = if large { PoolKind::Large } else { PoolKind::Small };
        let found =
            state.with_set(pool, kind, |set, slab| Some(slab[set.candidate(slab, size, false)?].addr));
        if found != Some(addr) {
            faults.push(format!(
                "{:?}: a search for {size} bytes in pool {pool} finds {found:x?}, not {addr:#x}",
                state.stream
            ));
        }
    }
}

fn check_block(
    state: &ShardState,
    first: &Block,
    before: Option<(BlockId, &Block)>,
    block: &Block,
    faults: &mut Vec<String>,
) {
    let mut fault = |what: &str| faults.push(format!("{:?}: block {:#x}: {what}", state.stream, block.addr));
    if block.prev != before.map_or(BlockId::NONE, |(id, _)| id) {
        fault("is linked to another block than the one before it");
    }
    if let Some((_, before)) = before {
        if before.end() != block.addr {
            fault("leaves a gap to the block before it");
        }
        if before.state == block.state && matches!(block.state, State::Free | State::Unmapped) {
            fault("was not merged with the block before it");
        }
    }
    if block.size == 0 || !block.size.is_multiple_of(512) {
        fault("has an impossible size");
    }
    if (block.kind, block.pool, block.is_expandable()) != (first.kind, first.pool, first.is_expandable()) {
        fault("does not belong to its segment");
    }
    if block.state == State::Held {
        fault("is held, but no slow path runs");
    }
    if block.state == State::Allocated && block.requested > block.size {
        fault("is smaller than what was requested");
    }
}

fn add(sums: &mut Sums, block: &Block, max_split: u64) {
    let row = &mut sums.counts[usize::from(block.kind == PoolKind::Large)];
    let size = block.size as i64;
    let mut count = |counter: Counter, by: i64| row[counter as usize] += by;
    if block.state == State::Allocated {
        count(Counter::Allocation, 1);
        count(Counter::AllocatedBytes, size);
        count(Counter::OversizeAllocation, i64::from(block.size >= max_split));
    }
    if block.is_active() {
        count(Counter::Active, 1);
        count(Counter::ActiveBytes, size);
        count(Counter::RequestedBytes, block.requested as i64);
    }
    if block.state == State::Free && block.is_split() && !block.is_expandable() {
        count(Counter::InactiveSplit, 1);
        count(Counter::InactiveSplitBytes, size);
    }
    if block.state != State::Unmapped {
        sums.reserved[usize::from(block.kind == PoolKind::Large)] += block.size;
    }
}

fn compare(state: &ShardState, sums: &Sums, faults: &mut Vec<String>) {
    // Oversize counts follow the limit in force at each call, which may have changed since.
    let counters = [
        Counter::Allocation,
        Counter::AllocatedBytes,
        Counter::Active,
        Counter::ActiveBytes,
        Counter::RequestedBytes,
        Counter::InactiveSplit,
        Counter::InactiveSplitBytes,
    ];
    for kind in [PoolKind::Small, PoolKind::Large] {
        for counter in counters {
            let counted = state.counters.current(kind, counter);
            let found = sums.counts[usize::from(kind == PoolKind::Large)][counter as usize];
            if counted != found {
                faults.push(format!(
                    "{:?}: {kind:?} {counter:?}: counted {counted}, found {found}",
                    state.stream
                ));
            }
        }
    }
    let live = state.slab.iter().filter(|(_, b)| b.state == State::Allocated).count() as u64;
    if live != state.live() {
        faults.push(format!("{:?}: {live} live blocks, {} counted", state.stream, state.live()));
    }
}
