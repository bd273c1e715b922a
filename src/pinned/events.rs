//! Blocks that streams still use after they were freed [spec 17.2, 17.3].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;

use super::HostState;
use super::block::{Block, Origin, Pool};
use super::counters::Return;
use super::live::{Live, Uses};
use crate::device::{DeviceResult, Event, Stream};

/// A freed block with events that are not done.
#[derive(Debug)]
struct Waiting {
    block: Block,
    events: AtomicUsize,
}

/// What waits in one pool.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// The newest in front.
    queue: VecDeque<(Event, Arc<Waiting>)>,
    /// Their events could not be recorded yet: the stream is being captured, or the driver failed.
    deferred: Vec<(Block, Uses)>,
}

type Events = SmallVec<[Event; 2]>;

impl HostState {
    /// Gives back a block, at once or when its streams are done with it.
    pub(super) fn give_back(&self, live: Live) -> DeviceResult<()> {
        if live.uses.is_empty() {
            return self.recycle(&live.pool, live.block, Return::Direct);
        }
        if live.captured {
            // Every launch of the graph uses it again, so nobody else may ever have it [spec 17.2].
            self.retained.lock().push(live.block);
            return Ok(());
        }
        let outcome = self.insert_events(&live.pool, live.block, live.uses);
        self.worker.wake();
        outcome
    }

    /// Records one event per stream. Where that cannot be, the block is kept for another try.
    fn insert_events(&self, pool: &Pool, block: Block, uses: Uses) -> DeviceResult<()> {
        let recorded = self.record_events(&uses);
        let mut pending = pool.pending.lock();
        if let Ok(Some(events)) = recorded {
            pool.waiting.fetch_add(events.len(), Ordering::AcqRel);
            let waiting = Arc::new(Waiting { block, events: AtomicUsize::new(events.len()) });
            for event in events {
                pending.queue.push_front((event, waiting.clone()));
            }
            return Ok(());
        }
        pool.waiting.fetch_add(1, Ordering::AcqRel);
        pending.deferred.push((block, uses));
        recorded.map(drop)
    }

    /// `None` while one of the streams is being captured: an event would become part of the graph.
    fn record_events(&self, streams: &[Stream]) -> DeviceResult<Option<Events>> {
        for &stream in streams {
            if self.device.capture_status(stream)?.is_some() {
                return Ok(None);
            }
        }
        let mut events = Events::new();
        let outcome = streams.iter().try_for_each(|&stream| {
            let spare = self.spare_events.lock().pop();
            let event = spare.map_or_else(|| self.device.event_create(), Ok)?;
            events.push(event);
            self.device.event_record(event, stream)
        });
        if outcome.is_err() {
            self.spare_events.lock().append(&mut events.to_vec());
        }
        outcome.map(|()| Some(events))
    }

    /// Takes up what the streams are done with, the oldest first, up to the first event that is not complete.
    pub(super) fn process_events(&self, pool: &Pool) -> DeviceResult<()> {
        self.take_up(pool, |event| self.device.event_query(event))
    }

    /// Waits until the streams are done with all of it, and takes it up.
    pub(super) fn wait_for_events(&self, pool: &Pool) -> DeviceResult<()> {
        self.take_up(pool, |event| self.device.event_synchronize(event).map(|()| true))
    }

    fn take_up(&self, pool: &Pool, is_done: impl Fn(Event) -> DeviceResult<bool>) -> DeviceResult<()> {
        if pool.waiting.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.retry_deferred(pool);
        loop {
            let Some((event, waiting)) = pool.pending.lock().queue.pop_back() else { return Ok(()) };
            let done = is_done(event);
            if !matches!(done, Ok(true)) {
                pool.pending.lock().queue.push_back((event, waiting));
                return done.map(drop);
            }
            self.spare_events.lock().push(event);
            pool.waiting.fetch_sub(1, Ordering::AcqRel);
            if waiting.events.fetch_sub(1, Ordering::AcqRel) == 1 {
                // A block that is too large to be kept but cannot be released is cached: no reason to refuse a request.
                let _ = self.recycle(pool, waiting.block, Return::AfterEvents);
            }
        }
    }

    /// Another try for blocks without events. Failures were reported when the block was freed.
    fn retry_deferred(&self, pool: &Pool) {
        let deferred = std::mem::take(&mut pool.pending.lock().deferred);
        for (block, uses) in deferred {
            let _ = self.insert_events(pool, block, uses);
            // Afterwards, so that the count is never 0 while something waits.
            pool.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Makes a block ready for the next request, or releases it if it is too large to be kept.
    fn recycle(&self, pool: &Pool, block: Block, how: Return) -> DeviceResult<()> {
        let (max_cached, mirror) = {
            let options = self.options.read();
            (options.pinned.max_cached_size, options.mirror_defects)
        };
        self.counters.came_back(block.size, how, mirror);
        // The reserve segment's memory cannot go back to the system.
        if block.origin != Origin::Reserve && max_cached.is_some_and(|max| block.size > max) {
            return self.release(pool, block);
        }
        pool.put(block);
        Ok(())
    }

    /// Waits for everything under way and returns its blocks; the allocator's last act.
    pub(super) fn drain_pending(&self, pool: &Pool) -> Vec<Block> {
        let Pending { queue, deferred } = std::mem::take(&mut *pool.pending.lock());
        let mut blocks = Vec::new();
        for (event, waiting) in queue.into_iter().rev() {
            // After a failure the block's count stays up: memory that may be in use is better lost.
            let done = self.device.event_synchronize(event).is_ok();
            if done && waiting.events.fetch_sub(1, Ordering::AcqRel) == 1 {
                blocks.push(waiting.block);
            }
            let _ = self.device.event_destroy(event);
        }
        if !deferred.is_empty() && self.device.device_synchronize().is_ok() {
            blocks.extend(deferred.into_iter().map(|(block, _)| block));
        }
        blocks
    }
}
