//! The shards of one device: found by stream without a lock, made on first use, never removed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::Core;
use super::counters::{Counters, NeedCredit};
use super::fork::Birth;
use super::lending::Queue;
use super::lock::{ShardGuard, ShardMutex, ask, lock_asked};
use super::shard::ShardState;
use super::shared::Shared;
use crate::device::Stream;

const BUCKETS: usize = 64;
const INDEXED: usize = 64;

/// One stream's lock and what it guards. Aligned so that two shards never share a cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Shard {
    pub(crate) stream: Stream,
    /// Place in the order of creation.
    pub(crate) index: u32,
    pub(super) birth: Birth,
    /// Whose shard it is.
    pub(crate) core: Weak<Core>,
    shared: Arc<Shared>,
    /// Index of the shard that had credit to lend last.
    pub(super) lender: AtomicU32,
    state: ShardMutex<ShardState>,
}

impl Shard {
    /// Locks the shard and brings it up to date.
    pub(crate) fn lock(&self) -> Locked<'_> {
        let mut state = self.state.lock();
        state.settle_lazy(&self.shared);
        state
    }

    /// [`lock_hot`](Shard::lock_hot), before others who come.
    pub(super) fn lock_hot_asked(&self) -> Locked<'_> {
        lock_asked(&self.state)
    }

    /// [`lock`](Shard::lock), before others who come.
    fn lock_asked(&self) -> Locked<'_> {
        let mut state = lock_asked(&self.state);
        state.settle_lazy(&self.shared);
        state
    }

    #[inline]
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Locks the shard as it is: a block may be parked, or pending and still watched. Only for the short ways: malloc's,
    /// free's, `record_stream`'s, and that of an event that is done.
    #[inline]
    pub(crate) fn lock_hot(&self) -> Locked<'_> {
        self.state.lock()
    }

    /// [`lock_hot`](Shard::lock_hot), unless somebody has the lock.
    pub(super) fn try_lock_hot(&self) -> Option<Locked<'_>> {
        self.state.try_lock()
    }
}

#[derive(Debug)]
struct Node {
    shard: Arc<Shard>,
    next: OnceLock<Box<Node>>,
}

/// A shard's lock, and what it guards.
pub(crate) type Locked<'a> = ShardGuard<'a, ShardState>;

/// All locked states of a device, in the order in which they are locked.
pub(crate) type AllStates<'a> = SmallVec<[Locked<'a>; 16]>;

#[derive(Debug)]
pub(crate) struct Shards {
    buckets: [OnceLock<Box<Node>>; BUCKETS],
    /// In order of creation, which is the order of locking.
    list: RwLock<Vec<Arc<Shard>>>,
    /// Those whom no single shard can lend.
    pub(super) queue: Queue,
    /// How many there are.
    count: AtomicU32,
    /// The first shards by index, without a lock.
    indexed: [OnceLock<Arc<Shard>>; INDEXED],
}

fn bucket(stream: Stream) -> usize {
    (stream.raw().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % BUCKETS
}

impl Shards {
    pub(crate) fn new() -> Self {
        Shards {
            buckets: [const { OnceLock::new() }; BUCKETS],
            list: RwLock::new(Vec::new()),
            queue: Queue::default(),
            count: AtomicU32::new(0),
            indexed: [const { OnceLock::new() }; INDEXED],
        }
    }

    /// The stream's shard, if it has one yet.
    #[inline]
    pub(crate) fn get(&self, stream: Stream) -> Option<&Arc<Shard>> {
        let mut at = self.buckets[bucket(stream)].get();
        while let Some(node) = at {
            if node.shard.stream == stream {
                return Some(&node.shard);
            }
            at = node.next.get();
        }
        None
    }

    /// The stream's shard; `fresh` makes the state of a new one from the state of the oldest.
    pub(crate) fn get_or_create(
        &self,
        stream: Stream,
        shared: &Arc<Shared>,
        core: Weak<Core>,
        fresh: impl FnOnce(Counters) -> ShardState,
    ) -> &Arc<Shard> {
        if let Some(shard) = self.get(stream) {
            return shard;
        }
        let mut list = self.list.write();
        if let Some(shard) = self.get(stream) {
            return shard;
        }
        if let [only] = list.as_slice() {
            shared.bank.leave_sole(&mut only.lock().counters);
        }
        let state = fresh(Counters::new(list.is_empty()));
        let index = list.len() as u32;
        let shard = Arc::new(Shard {
            stream,
            index,
            birth: shared.birth.clone(),
            core,
            shared: shared.clone(),
            lender: AtomicU32::new(0),
            state: ShardMutex::new(state),
        });
        list.push(shard.clone());
        if let Some(slot) = self.indexed.get(index as usize) {
            slot.get_or_init(|| shard.clone());
        }
        let mut cell = &self.buckets[bucket(stream)];
        while let Some(node) = cell.get() {
            cell = &node.next;
        }
        self.count.store(index + 1, Ordering::Release);
        &cell.get_or_init(|| Box::new(Node { shard, next: OnceLock::new() })).shard
    }

    /// How many shards there are.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// The shard at a place in the order of creation.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&Shard> {
        if let Some(slot) = self.indexed.get(index as usize) {
            return slot.get().map(|s| &**s);
        }
        let stream = self.list.read().get(index as usize)?.stream;
        self.get(stream).map(|s| &**s)
    }

    /// All shards by ascending stream handle: the order of PyTorch's free sets [spec 3.1].
    pub(crate) fn by_stream(&self) -> Vec<Arc<Shard>> {
        let mut all = self.list.read().clone();
        all.sort_by_key(|s| s.stream);
        all
    }

    /// Locks every shard.
    pub(crate) fn with_all<R>(&self, f: impl FnOnce(&mut AllStates<'_>) -> R) -> R {
        let list = self.list.read();
        list.iter().for_each(|s| ask(&s.state));
        let mut states: AllStates<'_> = list.iter().map(|s| s.lock_asked()).collect();
        f(&mut states)
    }
}

/// Runs a step under the shard's lock, or with more credit where its own does not suffice.
///
/// # Panics
/// Never: the last run cannot lack credit.
#[inline]
pub(crate) fn step<R>(
    shards: &Shards,
    shard: &Shard,
    shared: &Shared,
    mut step: impl FnMut(&mut ShardState) -> Result<R, NeedCredit>,
) -> Option<R> {
    let outcome = step(&mut shard.lock());
    match outcome {
        Ok(result) => Some(result),
        Err(NeedCredit) => shards.with_credit(shard, shared, false, step),
    }
}
