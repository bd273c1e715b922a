//! The protocol without threads: what is handed out and taken back on some shards, with purses on their way.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::super::bank::Bank;
use super::super::counted::{Counter, EVERY};
use super::super::counters::{Change, Counters, NeedCredit};
use super::{Asker, Manner, Owed, Purse};
use crate::observe::snapshot::PoolKind;

const SIZES: [i64; 8] = [512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20];

/// One shard and what a plain sum knows about it.
struct Shard {
    counters: Counters,
    /// What is in clients' hands; the last one is the youngest.
    live: Vec<(PoolKind, Change)>,
    /// The block handed out last, while nothing else has happened, and whether it has come back.
    watched: Option<(PoolKind, Change)>,
    parked: bool,
    /// Values by pool kind.
    values: [[i64; 8]; 2],
    lender: usize,
}

impl Shard {
    fn new(counters: Counters) -> Self {
        Shard { counters, live: Vec::new(), watched: None, parked: false, values: [[0; 8]; 2], lender: 0 }
    }

    /// As `ShardState::settle_lazy`.
    fn settle(&mut self) {
        if let Some((kind, change)) = self.watched.take()
            && std::mem::take(&mut self.parked)
        {
            self.counters.free(kind, &undone(&change)).unwrap();
        }
    }

    /// As `ShardState::lend`.
    fn lend(&mut self, purse: &mut Purse, manner: Manner, bank: &Bank) -> bool {
        if self.parked {
            self.settle();
        }
        let owed = self.watched.map_or(Owed::default(), |(kind, change)| {
            Owed::when(kind, &Change { split: -change.split, split_bytes: -change.split_bytes, ..change })
        });
        self.counters.lend(purse, owed, manner, bank.generation())
    }

    /// Inactive splits of a pool kind, and their bytes, if its blocks lay one after the other in segments.
    fn splits(&self, kind: PoolKind, more: i64) -> (i64, i64) {
        let segment = if kind == PoolKind::Small { 2 << 20 } else { 20 << 20 };
        let used = self.values[kind as usize][Counter::AllocatedBytes as usize] + more;
        let rest = (segment - used % segment) % segment;
        (i64::from(rest > 0), rest)
    }

    /// What handing out (or taking back, below 0) so many bytes does.
    fn change(&self, kind: PoolKind, bytes: i64, requested: i64) -> Change {
        let (before, after) = (self.splits(kind, 0), self.splits(kind, bytes));
        Change {
            bytes: bytes.abs(),
            requested,
            split: after.0 - before.0,
            split_bytes: after.1 - before.1,
            oversize: bytes.abs() > 3 << 20,
        }
    }

    fn count(&mut self, kind: PoolKind, change: &Change, sign: i64) {
        let oversize = i64::from(change.oversize);
        let block = [1, change.bytes, 1, change.bytes, change.requested, 0, 0, oversize];
        let values = &mut self.values[kind as usize];
        for (value, by) in values.iter_mut().zip(block) {
            *value += sign * by;
        }
        values[Counter::InactiveSplit as usize] += change.split;
        values[Counter::InactiveSplitBytes as usize] += change.split_bytes;
    }
}

fn undone(change: &Change) -> Change {
    Change { split: -change.split, split_bytes: -change.split_bytes, ..*change }
}

/// How often more than the own lock was needed.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    /// No single shard had enough.
    queued: u32,
    visits: u32,
    exclusive: u32,
}

struct Device {
    bank: Bank,
    shards: Vec<Shard>,
    peaks: [[i64; 8]; 3],
    /// Credit on its way, and to whom.
    purses: Vec<(usize, Purse)>,
    counts: Counts,
    /// Tag of the thread that uses a shard.
    thread_of: fn(usize) -> u64,
}

impl Device {
    fn new(shards: usize) -> Self {
        let bank = Bank::default();
        let mut first = Counters::new(true);
        bank.leave_sole(&mut first);
        let others = (1..shards).map(|_| Counters::new(false));
        let shards = std::iter::once(first).chain(others).map(Shard::new).collect();
        Device {
            bank,
            shards,
            peaks: [[0; 8]; 3],
            purses: Vec::new(),
            counts: Counts::default(),
            thread_of: |at| at as u64 + 1,
        }
    }

    fn collect(&mut self, at: usize, manner: Manner, purse: &mut Purse) {
        let count = self.shards.len();
        let start = self.shards[at].lender;
        for lender in (start..count).chain(0..start).filter(|&l| l != at) {
            if purse.is_full() {
                return;
            }
            self.counts.visits += 1;
            if self.shards[lender].lend(purse, manner, &self.bank) {
                self.shards[at].lender = lender;
            }
        }
    }

    fn deposit(&mut self, at: usize, purse: &Purse) {
        self.shards[at].counters.deposit(purse, self.bank.generation());
    }

    /// As [`Shards::with_credit`](super::super::shards::Shards::with_credit) does it.
    fn step(&mut self, at: usize, step: impl Fn(&mut Counters) -> Result<(), NeedCredit>) {
        if step(&mut self.shards[at].counters).is_ok() {
            return;
        }
        for manner in [Manner::Whole, Manner::Piecemeal] {
            self.counts.queued += u32::from(manner == Manner::Piecemeal);
            let own = &mut self.shards[at].counters;
            let asker = Asker { shard: at as u32, thread: (self.thread_of)(at) };
            let mut purse = Purse::new(std::mem::take(&mut own.lack), asker, self.bank.generation());
            own.withdraw(&mut purse);
            self.collect(at, manner, &mut purse);
            self.deposit(at, &purse);
            if step(&mut self.shards[at].counters).is_ok() {
                return;
            }
        }
        self.counts.exclusive += 1;
        self.shards.iter_mut().for_each(Shard::settle);
        let own = &mut self.shards[at].counters;
        if step(own).is_ok() {
            return;
        }
        let before = own.lift();
        assert!(step(own).is_ok(), "a lifted limit suffices");
        own.lower(&before);
        let mut counters: Vec<&mut Counters> = self.shards.iter_mut().map(|s| &mut s.counters).collect();
        self.bank.settle(&mut counters, at);
    }

    /// Credit for a block is collected, and is on its way until [`Device::arrive`].
    fn send(&mut self, at: usize, bytes: i64) {
        let change = self.shards[at].change(kind(bytes), bytes, bytes);
        // A shard without any credit lacks all that the block needs.
        let mut poor = Counters::new(false);
        if poor.hand_out(kind(bytes), &change).is_err() {
            let mut purse = Purse::new(poor.lack, Asker { shard: 1, thread: 0 }, self.bank.generation());
            self.collect(at, Manner::Piecemeal, &mut purse);
            self.purses.push((at, purse));
        }
    }

    fn arrive(&mut self) {
        if let Some((at, purse)) = self.purses.pop() {
            self.deposit(at, &purse);
        }
    }

    fn malloc(&mut self, at: usize, bytes: i64, requested: i64) {
        let kind = kind(bytes);
        let change = self.shards[at].change(kind, bytes, requested);
        let shard = &mut self.shards[at];
        let again =
            shard.watched.is_some_and(|(k, c)| k == kind && c.bytes == bytes && requested <= c.requested);
        if shard.parked && again {
            let (_, watched) = shard.watched.take().unwrap();
            shard.parked = false;
            shard.counters.repeat(kind, &watched, 1, requested, requested - watched.requested);
        } else {
            shard.settle();
            self.step(at, |counters| counters.hand_out(kind, &change));
            self.shards[at].watched = Some((kind, change));
        }
        let shard = &mut self.shards[at];
        shard.count(kind, &change, 1);
        shard.live.push((kind, change));
        self.note_peaks();
    }

    fn free(&mut self, at: usize, nth: usize) {
        let shard = &mut self.shards[at];
        let youngest = nth + 1 == shard.live.len();
        let (kind, block) = shard.live.remove(nth);
        let change = shard.change(kind, -block.bytes, block.requested);
        if youngest && shard.watched.is_some() && !shard.parked {
            shard.parked = true;
        } else {
            shard.settle();
            self.step(at, |counters| counters.free(kind, &change));
        }
        self.shards[at].count(kind, &change, -1);
        self.note_peaks();
    }

    fn sums(&self) -> [[i64; 8]; 3] {
        let mut sums = [[0; 8]; 3];
        for (row, counter) in (0..2).flat_map(|row| (0..8).map(move |counter| (row, counter))) {
            let sum: i64 = self.shards.iter().map(|s| s.values[row][counter]).sum();
            sums[row][counter] = sum;
            sums[2][counter] += sum;
        }
        sums
    }

    fn note_peaks(&mut self) {
        let sums = self.sums();
        for (peak, sum) in self.peaks.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
            *peak = (*peak).max(*sum);
        }
    }

    fn read(&self, of: impl Fn(&crate::stats::Stat) -> i64) -> [[i64; 8]; 3] {
        let counters: Vec<&Counters> = self.shards.iter().map(|s| &s.counters).collect();
        let mut rows = [[0; 8]; 3];
        for counter in EVERY {
            let stat = self.bank.read(&counters, counter);
            for (row, stat) in [stat.small_pool, stat.large_pool, stat.all].iter().enumerate() {
                rows[row][counter as usize] = of(stat);
            }
        }
        rows
    }
}

fn kind(bytes: i64) -> PoolKind {
    if bytes > 1 << 20 { PoolKind::Large } else { PoolKind::Small }
}

proptest! {
    #[test]
    fn peaks_are_those_of_a_plain_sum_at_every_step(
        shards in 2usize..17,
        several_streams_per_thread: bool,
        ops in prop::collection::vec((0usize..16, 0u8..16, 0usize..64), 1..600),
    ) {
        let mut device = Device::new(shards);
        if several_streams_per_thread {
            device.thread_of = |at| at as u64 % 3;
        }
        for (at, op, pick) in ops {
            let at = at % shards;
            let live = device.shards[at].live.len();
            let bytes = SIZES[pick % 8];
            match op {
                0 => device.send(at, bytes),
                1 => device.arrive(),
                2..8 => device.malloc(at, bytes, bytes - (pick / 8) as i64),
                8..12 if live > 0 => device.free(at, live - 1),
                12.. if live > 0 => device.free(at, pick % live),
                _ => {}
            }
            prop_assert_eq!(device.read(|s| s.peak), device.peaks);
        }
        device.shards.iter_mut().for_each(Shard::settle);
        prop_assert_eq!(device.read(|s| s.current), device.sums());
    }
}

/// Steps of 16 shards in random turn, each holding up to `held` blocks; after half of them only the first `active`
/// do something, and the last half of those is counted.
fn steady_state(active: usize, held: usize) -> Counts {
    const STEPS: u32 = 100_000;
    let mut device = Device::new(16);
    let mut random = 1u64;
    let mut next = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    for step in 0..4 * STEPS {
        if step == 3 * STEPS {
            device.counts = Counts::default();
        }
        let active = if step < 2 * STEPS { 16 } else { active };
        let (at, bytes) = (next(active), SIZES[next(8)]);
        if device.shards[at].live.len() >= held {
            device.free(at, 0);
        } else {
            device.malloc(at, bytes, bytes);
        }
    }
    println!("{active} active, {held} held, {STEPS} steps: {:?}", device.counts);
    device.counts
}

/// How often 16 streams in turn, none aware of the others, need more than their own lock.
#[test]
fn locking_everything_is_rare_in_a_steady_state() {
    for held in [1, 32] {
        let counts = steady_state(16, held);
        assert!(counts.visits < 150_000, "{held} held: {counts:?}");
        assert!(counts.queued < 20_000, "{held} held: {counts:?}");
        assert!(counts.exclusive < 500, "{held} held: {counts:?}");
    }
}

#[test]
fn what_idle_streams_do_not_use_stays_with_the_active_ones() {
    for held in [1, 32] {
        let counts = steady_state(1, held);
        assert!(counts.visits < 20, "{held} held: {counts:?}");
        let counts = steady_state(2, held);
        assert!(counts.visits < 100, "{held} held: {counts:?}");
    }
}

/// One stream's memory grows by many small steps while another's lies idle: asking for each step would be slow.
#[test]
fn an_idle_stream_is_asked_a_few_times_only() {
    let mut device = Device::new(2);
    for _ in 0..1000 {
        device.malloc(0, 512, 512);
    }
    for _ in 0..1000 {
        device.free(0, 0);
    }
    device.counts = Counts::default();
    for _ in 0..1000 {
        device.malloc(1, 512, 512);
    }
    assert!(device.counts.visits < 50, "{:?}", device.counts);
    assert_eq!(device.counts.exclusive, 0);
}

/// Who collects must not lose meanwhile what it has.
#[test]
fn what_an_asker_has_is_not_lent() {
    let mut device = Device::new(3);
    device.malloc(1, 1024, 1024);
    device.malloc(2, 512, 512);
    device.free(1, 0);
    device.free(2, 0);
    device.shards.iter_mut().for_each(Shard::settle);
    let generation = device.bank.generation();
    let more = device.shards[1].change(PoolKind::Small, 1536, 1536);
    let own = &mut device.shards[1].counters;
    assert_eq!(own.hand_out(PoolKind::Small, &more), Err(NeedCredit));
    let mut purse = Purse::new(std::mem::take(&mut own.lack), Asker { shard: 1, thread: 1 }, generation);
    own.withdraw(&mut purse);
    // Another one comes for the same.
    let other = device.shards[2].change(PoolKind::Small, 1024, 1024);
    assert_eq!(device.shards[2].counters.hand_out(PoolKind::Small, &other), Err(NeedCredit));
    let lack = std::mem::take(&mut device.shards[2].counters.lack);
    let mut rival = Purse::new(lack, Asker { shard: 2, thread: 2 }, generation);
    device.shards[1].lend(&mut rival, Manner::Piecemeal, &device.bank);
    assert!(!rival.is_full());
    device.collect(1, Manner::Piecemeal, &mut purse);
    device.deposit(1, &purse);
    assert_eq!(device.shards[1].counters.hand_out(PoolKind::Small, &more), Ok(()));
}

/// One thread uses its streams in turn: at a change, the new one fetches everything at once.
#[test]
fn streams_of_one_thread_fetch_everything_at_once() {
    const TURNS: u32 = 200;
    let mut device = Device::new(4);
    device.thread_of = |_| 7;
    for turn in 0..2 * TURNS {
        if turn == TURNS {
            device.counts = Counts::default();
        }
        let at = turn as usize % 4;
        for step in 0..100 {
            device.malloc(at, SIZES[step * 7 % 8], 100);
            if step % 3 == 2 {
                device.free(at, step % 2);
                device.free(at, 0);
            }
        }
        while !device.shards[at].live.is_empty() {
            device.free(at, 0);
        }
    }
    assert!(device.counts.visits <= 4 * TURNS, "{:?}", device.counts);
    assert_eq!(device.counts.exclusive, 0);
}
