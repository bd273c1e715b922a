//! Blocks that other streams still use: events, polling, waiting [spec 6].

use std::sync::Arc;

use super::capture::{Deferred, Predecessors};
use super::lock::{DriverGuard, DriverMutex};
use super::queues::{Queues, Waiting};
use super::shards::{Locked, Shard};
use super::uses::Uses;
use super::{Core, attention};
use crate::device::{DeviceResult, Event, Stream};
use crate::pool::block::BlockId;

/// A pending block, from outside its shard's lock.
#[derive(Clone, Debug)]
pub(crate) struct BlockRef {
    pub(crate) shard: Arc<Shard>,
    pub(crate) block: BlockId,
}

/// Taken before any shard's lock.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(super) state: DriverMutex<EventState>,
}

#[derive(Debug, Default)]
pub(super) struct EventState {
    queues: Queues,
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

/// The block of the last event that was found done; its shard does not know yet. Nobody polls meanwhile.
pub(super) struct LastDone<'a> {
    shard: u32,
    block: BlockId,
    _events: DriverGuard<'a, EventState>,
}

impl Core {
    /// The second half of a free of a block that one other stream uses: it is `Pending`, and the use was taken
    /// from it.
    pub(super) fn free_used(&self, shard: &Shard, block: BlockId, stream: Stream) -> DeviceResult<()> {
        self.free_used_in(self.events.state.lock(), shard, block, stream)
    }

    /// The same with the queues of events, which may be all that keeps the core alive (see [`close`](Core::close)): they
    /// are let go last.
    #[inline]
    fn free_used_in(
        &self,
        mut events: DriverGuard<'_, EventState>,
        shard: &Shard,
        block: BlockId,
        stream: Stream,
    ) -> DeviceResult<()> {
        if self.expect_events() {
            self.defer(&mut events, shard, block, Uses::of_one(stream));
            return Ok(());
        }
        if let Err(error) = self.insert_event(&mut events, shard, block, stream) {
            self.keep_back(&mut events, shard, block, Uses::of_one(stream), 0);
            return Err(error);
        }
        Ok(())
    }

    /// [`free_used`](Self::free_used) by who has the shard's lock and no count of the core. The lock comes back, and nothing
    /// has changed, where the allocator ends or somebody else has the queues.
    ///
    /// The core lives until the shard is let go, since the allocator does not end, and then until the queues are, since
    /// closing waits for them.
    #[inline]
    pub(crate) fn free_used_locked<'a>(
        &self,
        shard: &Shard,
        state: Locked<'a>,
        block: BlockId,
        stream: Stream,
    ) -> Result<DeviceResult<()>, Locked<'a>> {
        if state.closing {
            return Err(state);
        }
        let Some(events) = self.events.state.try_lock() else { return Err(state) };
        drop(state);
        Ok(self.free_used_in(events, shard, block, stream))
    }

    /// The same for a block with several uses.
    pub(super) fn free_with_uses(&self, shard: &Shard, block: BlockId, uses: Uses) -> DeviceResult<()> {
        let mut events = self.events.state.lock();
        if self.expect_events() {
            self.defer(&mut events, shard, block, uses);
            return Ok(());
        }
        self.insert_events(&mut events, shard, block, uses)
    }

    /// Every malloc looks for events from now on. Whether some pool is active. Under the lock of the events.
    #[inline]
    fn expect_events(&self) -> bool {
        let attention = self.attention();
        if attention & attention::EVENTS == 0 {
            self.attend(attention::EVENTS);
        }
        attention & attention::POOLS != 0
    }

    /// Freed while some pool is active: its events must wait.
    #[cold]
    fn defer(&self, events: &mut EventState, shard: &Shard, block: BlockId, uses: Uses) {
        shard.lock().put_uses_back(block, uses, 0);
        let block = self.block_ref(shard, block);
        let markers = self.free_markers(&block);
        events.deferred.push(Deferred { block, markers });
    }

    /// No event could be recorded for the use after the first `done`: the block is kept for another try.
    #[cold]
    fn keep_back(&self, events: &mut EventState, shard: &Shard, block: BlockId, uses: Uses, done: usize) {
        shard.lock().put_uses_back(block, uses, done);
        events.deferred.push(Deferred { block: self.block_ref(shard, block), markers: None });
    }

    fn block_ref(&self, shard: &Shard, block: BlockId) -> BlockRef {
        BlockRef { shard: self.shard(shard.stream).clone(), block }
    }

    /// Records one event per using stream [spec 6.2]. Where that fails the block is kept for another try.
    fn insert_events(
        &self,
        events: &mut EventState,
        shard: &Shard,
        block: BlockId,
        mut uses: Uses,
    ) -> DeviceResult<()> {
        if uses.streams.is_empty() && uses.recorded.is_empty() {
            self.complete(shard, block);
            return Ok(());
        }
        for (stream, event) in uses.recorded.drain(..) {
            events.queues.push(stream, Waiting { event, shard: shard.index, block });
        }
        for (done, &stream) in uses.streams.iter().enumerate() {
            if let Err(error) = self.insert_event(events, shard, block, stream) {
                self.keep_back(events, shard, block, uses, done);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Records one event that the block waits for.
    #[inline(always)]
    fn insert_event(
        &self,
        events: &mut EventState,
        shard: &Shard,
        block: BlockId,
        stream: Stream,
    ) -> DeviceResult<()> {
        let event = self.record_event(&mut events.spare, stream)?;
        events.queues.push(stream, Waiting { event, shard: shard.index, block });
        Ok(())
    }

    #[inline]
    fn record_event(&self, spare: &mut Vec<Event>, stream: Stream) -> DeviceResult<Event> {
        let event = match spare.pop() {
            Some(event) => event,
            None => self.device.event_create()?,
        };
        match self.device.event_record(event, stream) {
            Ok(()) => Ok(event),
            Err(error) => {
                spare.push(event);
                Err(error)
            }
        }
    }

    /// Completes every pending free whose events are done [spec 6.3].
    pub(crate) fn process_events(&self) -> DeviceResult<()> {
        if let Some(done) = self.process_events_but_last()? {
            self.event_done(done.shard, done.block);
        }
        Ok(())
    }

    /// The same, but that the block of the last event found done is left to the caller, who may have its shard to lock
    /// anyway.
    #[inline]
    pub(super) fn process_events_but_last(&self) -> DeviceResult<Option<LastDone<'_>>> {
        let mut events = self.events.state.lock();
        // A capture may have begun since the caller looked; it would not survive a query.
        if self.any_pool_active() {
            return Ok(None);
        }
        // Not right after the last event is done: a program that records streams will soon have another.
        if events.is_idle() {
            self.relax(attention::EVENTS);
            return Ok(None);
        }
        if !events.deferred.is_empty() {
            self.convert_deferred(&mut events);
        }
        let mut last = None;
        let EventState { queues, spare, .. } = &mut *events;
        let outcome = queues.take_done(
            |event| self.device.event_query(event),
            |Waiting { event, shard, block }| {
                spare.push(event);
                // In the order in which the events are done.
                if let Some((shard, block)) = last.replace((shard, block)) {
                    self.event_done(shard, block);
                }
            },
        );
        let last = last.map(|(shard, block)| LastDone { shard, block, _events: events });
        if let Err(error) = outcome {
            if let Some(done) = last {
                self.event_done(done.shard, done.block);
            }
            return Err(error);
        }
        Ok(last)
    }

    /// Locks the shard, and completes what was left of [`process_events_but_last`](Self::process_events_but_last).
    #[inline]
    pub(super) fn lock_with_done<'a>(&self, shard: &'a Shard, done: &LastDone<'_>) -> Locked<'a> {
        if done.shard == shard.index {
            return self.tell_done(shard, done.block);
        }
        self.event_done(done.shard, done.block);
        shard.lock_hot()
    }

    /// Gives deferred blocks their events, now that no capture forbids it [spec 6.4]. Whose events still cannot be
    /// recorded stays deferred: whoever freed it was told, and the next request is somebody else's.
    fn convert_deferred(&self, events: &mut EventState) {
        for Deferred { block, .. } in std::mem::take(&mut events.deferred) {
            let forget = self.mirror_defects();
            let uses = block.shard.lock().take_uses(block.block, forget);
            let _ = self.insert_events(events, &block.shard, block.block, uses);
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
            state.drop_uses(block.block);
            let done = state.slab[block.block].events == 0;
            drop(state);
            if done {
                self.complete(&block.shard, block.block);
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
        let mut left = Queues::default();
        for (stream, waiting) in queues.into_waiting() {
            let of_pool = |pool| {
                self.shards.at(waiting.shard).is_some_and(|s| s.lock().slab[waiting.block].pool == pool)
            };
            let wanted = outcome.is_ok() && only.is_none_or(of_pool);
            if wanted {
                outcome = self.device.event_synchronize(waiting.event);
            }
            if wanted && outcome.is_ok() {
                spare.push(waiting.event);
                self.event_done(waiting.shard, waiting.block);
            } else {
                left.push(stream, waiting);
            }
        }
        let mut events = self.events.state.lock();
        events.waits -= 1;
        events.spare.append(&mut spare);
        events.deferred.append(&mut unrecordable);
        let newer = std::mem::replace(&mut events.queues, left);
        newer.into_waiting().for_each(|(stream, waiting)| events.queues.push(stream, waiting));
        if events.is_idle() {
            self.relax(attention::EVENTS);
        }
        outcome
    }

    /// One of the events is done that a block of a shard waits for.
    #[inline(never)]
    fn event_done(&self, shard: u32, block: BlockId) {
        if let Some(shard) = self.shards.at(shard) {
            drop(self.tell_done(shard, block));
        }
    }

    /// The same; the shard stays locked.
    #[inline(always)]
    fn tell_done<'a>(&self, shard: &'a Shard, block: BlockId) -> Locked<'a> {
        let mut state = shard.lock_hot();
        if state.park_pending(block) { state } else { self.tell_unwatched(shard, state, block) }
    }

    /// The rest of [`tell_done`](Self::tell_done): the block is not the one handed out last.
    #[inline(never)]
    fn tell_unwatched<'a>(&self, shard: &'a Shard, mut state: Locked<'a>, block: BlockId) -> Locked<'a> {
        state.settle_lazy(&self.shared);
        if state.event_done(block, &self.shared).is_ok() {
            return state;
        }
        drop(state);
        self.shards.with_credit(shard, &self.shared, false, |state| state.event_done(block, &self.shared));
        shard.lock_hot()
    }

    /// Completes a free [spec 5.2].
    pub(crate) fn complete(&self, shard: &Shard, block: BlockId) {
        self.step(shard, |state| state.complete_free(block, &self.shared));
    }

    /// Destroys cached events; the last act of an allocator.
    pub(crate) fn destroy_events(&self) {
        let mut events = self.events.state.lock();
        let spare = std::mem::take(&mut events.spare);
        let queued = std::mem::take(&mut events.queues);
        let queued = queued.into_waiting().map(|(_, waiting)| waiting.event);
        for event in spare.into_iter().chain(queued) {
            // Nobody is left to hear of a failure.
            let _ = self.device.event_destroy(event);
        }
    }

    /// Blocks that wait, each with the stream that it waits for, if that is known.
    pub(super) fn waiting_blocks(&self) -> Vec<(Option<Stream>, BlockRef)> {
        let events = self.events.state.lock();
        let queued = events.queues.iter().filter_map(|(stream, waiting)| {
            let shard = self.shards.at(waiting.shard)?;
            Some((Some(stream), self.block_ref(shard, waiting.block)))
        });
        queued.chain(events.deferred.iter().map(|d| (None, d.block.clone()))).collect()
    }
}
