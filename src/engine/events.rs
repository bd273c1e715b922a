//! Blocks that other streams still use: events, polling, waiting [spec 6].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::capture::{Deferred, Predecessors};
use super::shards::Shard;
use super::{Core, attention};
use crate::device::{DeviceResult, Event, Stream};
use crate::pool::block::{BlockId, State};

/// A pending block, from outside its shard's lock.
#[derive(Clone, Debug)]
pub(crate) struct BlockRef {
    pub(crate) shard: Arc<Shard>,
    pub(crate) block: BlockId,
}

#[derive(Debug)]
struct Waiting {
    event: Event,
    block: BlockRef,
}

/// Taken before any shard's lock.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(super) state: Mutex<EventState>,
}

#[derive(Debug, Default)]
pub(super) struct EventState {
    /// By the stream that the events were recorded on; each in order of recording.
    queues: BTreeMap<Stream, VecDeque<Waiting>>,
    /// Events to use again.
    spare: Vec<Event>,
    /// Freed while some pool was active, or while an event could not be recorded.
    pub(super) deferred: Vec<Deferred>,
    /// What precedes the streams under capture, where a deferred block had to be looked at.
    pub(super) predecessors: Predecessors,
    /// Blocking waits under way: their events are in no queue meanwhile.
    waits: u32,
}

impl EventState {
    pub(super) fn is_idle(&self) -> bool {
        self.queues.is_empty() && self.deferred.is_empty() && self.waits == 0
    }
}

impl Core {
    /// The second half of a free of a block with recorded streams. The block is `Pending`.
    pub(crate) fn free_with_uses(&self, block: BlockRef) -> DeviceResult<()> {
        let mut events = self.events.state.lock();
        self.attend(attention::EVENTS);
        if self.any_pool_active() {
            let markers = self.free_markers(&block);
            events.deferred.push(Deferred { block, markers });
            return Ok(());
        }
        self.insert_events(&mut events, block)
    }

    /// Records one event per using stream [spec 6.2]. Where that fails the block is kept for another try.
    fn insert_events(&self, events: &mut EventState, block: BlockRef) -> DeviceResult<()> {
        let mut uses = {
            let mut state = block.shard.lock();
            let uses = state.uses.remove(&block.block).unwrap_or_default();
            state.slab[block.block].has_uses = false;
            state.slab[block.block].events += (uses.streams.len() + uses.recorded.len()) as u32;
            uses
        };
        if uses.streams.is_empty() && uses.recorded.is_empty() {
            self.complete(&block);
            return Ok(());
        }
        for (stream, event) in uses.recorded.drain(..) {
            events.queues.entry(stream).or_default().push_back(Waiting { event, block: block.clone() });
        }
        let mut done = 0;
        let mut record = |stream: Stream| {
            let event = match events.spare.pop() {
                Some(event) => event,
                None => self.device.event_create()?,
            };
            if let Err(error) = self.device.event_record(event, stream) {
                events.spare.push(event);
                return Err(error);
            }
            events.queues.entry(stream).or_default().push_back(Waiting { event, block: block.clone() });
            done += 1;
            Ok(())
        };
        let result = uses.streams.iter().try_for_each(|&stream| record(stream));
        if result.is_err() {
            uses.streams.drain(..done);
            let mut state = block.shard.lock();
            let record = &mut state.slab[block.block];
            record.events -= uses.streams.len() as u32;
            record.has_uses = true;
            state.uses.insert(block.block, uses);
            drop(state);
            events.deferred.push(Deferred { block, markers: None });
        }
        result
    }

    /// Completes every pending free whose events are done [spec 6.3].
    pub(crate) fn process_events(&self) -> DeviceResult<()> {
        let mut events = self.events.state.lock();
        // A capture may have begun since the caller looked; it would not survive a query.
        if self.any_pool_active() {
            return Ok(());
        }
        self.convert_deferred(&mut events);
        let streams: smallvec::SmallVec<[Stream; 16]> = events.queues.keys().copied().collect();
        for stream in streams {
            loop {
                let Some(queue) = events.queues.get_mut(&stream) else { break };
                let Some(front) = queue.front() else {
                    events.queues.remove(&stream);
                    break;
                };
                if !self.device.event_query(front.event)? {
                    break;
                }
                if let Some(waiting) = queue.pop_front() {
                    events.spare.push(waiting.event);
                    self.event_done(&waiting.block);
                }
            }
        }
        if events.is_idle() {
            self.relax(attention::EVENTS);
        }
        Ok(())
    }

    /// Gives deferred blocks their events, now that no capture forbids it [spec 6.4]. Whose events still cannot be
    /// recorded stays deferred: whoever freed it was told, and the next request is somebody else's.
    fn convert_deferred(&self, events: &mut EventState) {
        for Deferred { block, .. } in std::mem::take(&mut events.deferred) {
            if self.mirror_defects() {
                let mut state = block.shard.lock();
                if let Some(uses) = state.uses.get_mut(&block.block) {
                    let forgotten = std::mem::take(&mut uses.during_activity);
                    uses.streams.retain(|s| !forgotten.contains(s));
                }
            }
            let _ = self.insert_events(events, block);
        }
    }

    /// Deferred blocks that no event can be recorded for, perhaps because their stream was destroyed: once the whole
    /// device is idle, so are they.
    fn free_unrecordable(&self, blocks: &mut Vec<Deferred>) -> DeviceResult<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.device.device_synchronize()?;
        for Deferred { block, .. } in blocks.drain(..) {
            let mut state = block.shard.lock();
            state.uses.remove(&block.block);
            let record = &mut state.slab[block.block];
            record.has_uses = false;
            let done = record.events == 0;
            drop(state);
            if done {
                self.complete(&block);
            }
        }
        Ok(())
    }

    /// Waits for every pending event, or for those of one pool's blocks, and completes the frees [spec 6.5].
    /// No capture may be active. No lock is held while it waits.
    pub(crate) fn synchronize_and_free_events(&self, only: Option<u32>) -> DeviceResult<()> {
        self.ledger.lock().num_sync_all_streams += 1;
        let (queues, mut unrecordable) = {
            let mut events = self.events.state.lock();
            self.convert_deferred(&mut events);
            events.waits += 1;
            (std::mem::take(&mut events.queues), std::mem::take(&mut events.deferred))
        };
        let mut outcome = self.free_unrecordable(&mut unrecordable);
        let mut spare = Vec::new();
        let mut left: BTreeMap<Stream, VecDeque<Waiting>> = BTreeMap::new();
        for (stream, queue) in queues {
            for waiting in queue {
                let pool = waiting.block.shard.lock().slab[waiting.block.block].pool;
                let wanted = outcome.is_ok() && only.is_none_or(|p| p == pool);
                if wanted {
                    outcome = self.device.event_synchronize(waiting.event);
                }
                if wanted && outcome.is_ok() {
                    spare.push(waiting.event);
                    self.event_done(&waiting.block);
                } else {
                    left.entry(stream).or_default().push_back(waiting);
                }
            }
        }
        let mut events = self.events.state.lock();
        events.waits -= 1;
        events.spare.append(&mut spare);
        events.deferred.append(&mut unrecordable);
        for (stream, mut queue) in left {
            let newer = events.queues.remove(&stream).unwrap_or_default();
            queue.extend(newer);
            events.queues.insert(stream, queue);
        }
        if events.is_idle() {
            self.relax(attention::EVENTS);
        }
        outcome
    }

    fn event_done(&self, block: &BlockRef) {
        let left = {
            let mut state = block.shard.lock();
            let record = &mut state.slab[block.block];
            record.events -= 1;
            record.events == 0 && !record.has_uses && record.state == State::Pending
        };
        if left {
            self.complete(block);
        }
    }

    /// Completes a free [spec 5.2].
    pub(crate) fn complete(&self, block: &BlockRef) {
        self.step(&block.shard, |state| state.complete_free(block.block, &self.shared));
    }

    /// Destroys cached events; the last act of an allocator.
    pub(crate) fn destroy_events(&self) {
        let mut events = self.events.state.lock();
        let spare = std::mem::take(&mut events.spare);
        let queued = std::mem::take(&mut events.queues);
        let queued = queued.into_values().flatten().map(|w| w.event);
        for event in spare.into_iter().chain(queued) {
            // Nobody is left to hear of a failure.
            let _ = self.device.event_destroy(event);
        }
    }

    /// Blocks that wait, each with the stream that it waits for, if that is known.
    pub(super) fn waiting_blocks(&self) -> Vec<(Option<Stream>, BlockRef)> {
        let events = self.events.state.lock();
        let queued =
            events.queues.iter().flat_map(|(s, queue)| queue.iter().map(|w| (Some(*s), w.block.clone())));
        queued.chain(events.deferred.iter().map(|d| (None, d.block.clone()))).collect()
    }
}
