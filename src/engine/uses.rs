//! Streams other than its own that use a block, and what becomes of them when it is freed [spec 6].

use smallvec::SmallVec;

use super::counters::NeedCredit;
use super::shard::ShardState;
use super::shared::Shared;
use crate::device::{Event, Stream};
use crate::pool::block::{BlockId, BlockMap, State};

/// Streams other than its own that use a block.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Ascending, without repeats.
    pub(crate) streams: SmallVec<[Stream; 2]>,
    /// Those that were recorded while some pool was active [spec 6.1].
    pub(crate) during_activity: SmallVec<[Stream; 2]>,
    /// Events of uses that are recorded already, and the streams that they were recorded on.
    pub(crate) recorded: Vec<(Stream, Event)>,
}

impl Uses {
    pub(super) fn of_one(stream: Stream) -> Self {
        Uses { streams: SmallVec::from_slice(&[stream]), ..Uses::default() }
    }

    fn events(&self) -> u32 {
        (self.streams.len() + self.recorded.len()) as u32
    }
}

/// The uses of a shard's blocks. A block's `has_uses` says whether it has an entry, which may be empty.
#[derive(Debug, Default)]
pub(crate) struct UseTable {
    /// By block, one stream that was recorded while no pool was active: nearly all uses are that.
    single: Vec<Option<Stream>>,
    /// All others.
    several: BlockMap<Uses>,
}

impl UseTable {
    /// Adds a stream to a block that has no entry.
    #[inline]
    fn add_first(&mut self, id: BlockId, stream: Stream) {
        let at = id.0 as usize;
        if at >= self.single.len() {
            self.single.resize(at + 1, None);
        }
        self.single[at] = Some(stream);
    }

    fn is_single(&self, id: BlockId, stream: Stream) -> bool {
        self.single.get(id.0 as usize) == Some(&Some(stream))
    }

    #[inline]
    fn take_single(&mut self, id: BlockId) -> Option<Stream> {
        self.single.get_mut(id.0 as usize)?.take()
    }

    /// What is known of a block.
    pub(super) fn of(&self, id: BlockId) -> Option<Uses> {
        let single = self.single.get(id.0 as usize).copied().flatten();
        single.map(Uses::of_one).or_else(|| self.several.get(&id).cloned())
    }

    /// A block's entry, if it has one.
    pub(super) fn known(&mut self, id: BlockId) -> Option<&mut Uses> {
        if let Some(stream) = self.take_single(id) {
            self.several.insert(id, Uses::of_one(stream));
        }
        self.several.get_mut(&id)
    }

    /// A block's entry, made if need be.
    pub(super) fn entry(&mut self, id: BlockId) -> &mut Uses {
        let single = self.take_single(id);
        self.several.entry(id).or_insert_with(|| single.map(Uses::of_one).unwrap_or_default())
    }

    pub(super) fn remove(&mut self, id: BlockId) -> Option<Uses> {
        self.take_single(id).map(Uses::of_one).or_else(|| self.several.remove(&id))
    }
}

impl ShardState {
    /// The block is `Pending` from now on, and counts as that.
    pub(super) fn count_pending(&mut self, id: BlockId) {
        let change = self.free_change(id, None, None);
        let block = &mut self.slab[id];
        block.state = State::Pending;
        self.counters.request_free(block.kind, &change);
    }

    /// Notes that `stream` uses a live block too.
    #[inline]
    pub(super) fn add_use(&mut self, id: BlockId, stream: Stream, during_activity: bool) {
        if std::mem::replace(&mut self.slab[id].has_uses, true) || during_activity {
            self.add_another_use(id, stream, during_activity);
        } else {
            self.uses.add_first(id, stream);
        }
    }

    #[cold]
    fn add_another_use(&mut self, id: BlockId, stream: Stream, during_activity: bool) {
        if !during_activity && self.uses.is_single(id, stream) {
            return;
        }
        let uses = self.uses.entry(id);
        if let Err(at) = uses.streams.binary_search(&stream) {
            uses.streams.insert(at, stream);
        }
        if during_activity && !uses.during_activity.contains(&stream) {
            uses.during_activity.push(stream);
        }
    }

    /// The same as [`take_uses`](Self::take_uses) for a block with one; `None`, and nothing is done, for others.
    #[inline]
    pub(super) fn take_single_use(&mut self, id: BlockId) -> Option<Stream> {
        let stream = self.uses.take_single(id)?;
        let block = &mut self.slab[id];
        block.has_uses = false;
        block.events += 1;
        Some(stream)
    }

    /// Takes a pending block's uses out, to give each an event; it counts as waiting for them from now on.
    /// `forget` drops those that were recorded while some pool was active.
    pub(super) fn take_uses(&mut self, id: BlockId, forget: bool) -> Uses {
        let mut uses = self.uses.remove(id).unwrap_or_default();
        if forget {
            let forgotten = std::mem::take(&mut uses.during_activity);
            uses.streams.retain(|s| !forgotten.contains(s));
        }
        let block = &mut self.slab[id];
        block.has_uses = false;
        block.events += uses.events();
        uses
    }

    /// Undoes [`take_uses`](Self::take_uses) for those after the first `done`, which have their event.
    #[cold]
    pub(super) fn put_uses_back(&mut self, id: BlockId, mut uses: Uses, done: usize) {
        uses.streams.drain(..done);
        let block = &mut self.slab[id];
        block.events -= uses.events();
        block.has_uses = true;
        *self.uses.entry(id) = uses;
    }

    /// Drops a block's uses without an event.
    pub(super) fn drop_uses(&mut self, id: BlockId) {
        self.uses.remove(id);
        self.slab[id].has_uses = false;
    }

    /// One of a block's events is done; the last one completes the free. Changes nothing where credit is missing.
    pub(super) fn event_done(&mut self, id: BlockId, shared: &Shared) -> Result<(), NeedCredit> {
        let block = &self.slab[id];
        if block.events == 1 && !block.has_uses && block.state == State::Pending {
            self.complete_free(id, shared)?;
        }
        self.slab[id].events -= 1;
        Ok(())
    }
}
