//! Streams other than its own that use a block, and what becomes of them when it is freed [spec 6].

use smallvec::SmallVec;

use super::counters::NeedCredit;
use super::shard::ShardState;
use super::shared::Shared;
use crate::device::{Event, Stream};
use crate::pool::block::{BlockId, State};

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
    fn events(&self) -> u32 {
        (self.streams.len() + self.recorded.len()) as u32
    }
}

impl ShardState {
    /// Notes that `stream` uses a live block too.
    pub(super) fn add_use(&mut self, id: BlockId, stream: Stream, during_activity: bool) {
        self.slab[id].has_uses = true;
        let uses = self.uses.entry(id).or_default();
        if let Err(at) = uses.streams.binary_search(&stream) {
            uses.streams.insert(at, stream);
        }
        if during_activity && !uses.during_activity.contains(&stream) {
            uses.during_activity.push(stream);
        }
    }

    /// Takes a pending block's uses out, to give each an event; it counts as waiting for them from now on.
    /// `forget` drops those that were recorded while some pool was active.
    pub(super) fn take_uses(&mut self, id: BlockId, forget: bool) -> Uses {
        let mut uses = self.uses.remove(&id).unwrap_or_default();
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
        self.uses.insert(id, uses);
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
