//! free, record_stream and events [spec 5, 6].

use super::stats::Array;
use super::{Failure, Model, Pending, PoolId, Stream};

impl Model {
    /// [spec 5.1]
    pub(crate) fn free(&mut self, address: u64) -> Result<(), Failure> {
        if address == 0 {
            return Ok(());
        }
        let block =
            self.blocks.get_mut(&address).filter(|block| block.allocated).ok_or(Failure::InvalidPointer)?;
        block.allocated = false;
        let (size, kind, unused_elsewhere) = (block.size, block.pool.1, block.uses.is_empty());
        self.stats.add(Array::Allocation, kind, -1);
        self.stats.add(Array::AllocatedBytes, kind, -(size as i64));
        if size >= self.conf.max_split {
            self.stats.oversize_allocations.add(-1);
        }
        if unused_elsewhere {
            self.complete_free(address);
        } else if self.active.is_empty() {
            self.insert_events(address);
        } else {
            self.deferred.push(address);
        }
        Ok(())
    }

    /// [spec 6.1]
    pub(crate) fn record_stream(&mut self, address: u64, stream: Stream) {
        let in_pool = !self.active.is_empty();
        if let Some(block) =
            self.blocks.get_mut(&address).filter(|block| block.allocated && block.stream != stream)
        {
            block.uses.insert(stream);
            if in_pool {
                block.uses_in_pool.insert(stream);
            }
        }
    }

    /// [spec 5.2]
    pub(crate) fn complete_free(&mut self, address: u64) {
        let freed = self.block(address).clone();
        let kind = freed.pool.1;
        let (address, absorbed, absorbed_bytes) = self.merge(address);
        let gc_base = self.search_counter(freed.pool);
        self.block_mut(address).gc_base = gc_base;
        if !self.is_expandable(address) {
            let (mut count, mut bytes) = (-absorbed, -absorbed_bytes);
            if self.is_split(address) {
                count += 1;
                bytes += self.block(address).size as i64;
            }
            self.stats.add(Array::InactiveSplit, kind, count);
            self.stats.add(Array::InactiveSplitBytes, kind, bytes);
        }
        self.stats.add(Array::Active, kind, -1);
        self.stats.add(Array::ActiveBytes, kind, -(freed.size as i64));
        self.stats.add(Array::RequestedBytes, kind, -(freed.requested as i64));
    }

    /// Joins a block with its idle neighbours of the same state: new start, how many were absorbed, their bytes.
    pub(crate) fn merge(&mut self, address: u64) -> (u64, i64, i64) {
        let mut block = self.block(address).clone();
        let mut start = address;
        let (mut absorbed, mut bytes) = (0, 0);
        for (neighbour, before) in [(self.prev(address), true), (self.next(address), false)] {
            let Some(neighbour) = neighbour else { continue };
            let other = self.block(neighbour);
            if !other.idle() || other.mapped != block.mapped {
                continue;
            }
            absorbed += 1;
            bytes += other.size as i64;
            block.size += other.size;
            if before {
                start = neighbour;
            }
            self.blocks.remove(&neighbour);
        }
        self.blocks.remove(&address);
        block.uses_in_pool.clear();
        self.blocks.insert(start, block);
        (start, absorbed, bytes)
    }

    /// [spec 6.2]
    pub(crate) fn insert_events(&mut self, address: u64) {
        let uses = std::mem::take(&mut self.block_mut(address).uses);
        self.block_mut(address).events += uses.len();
        for stream in uses {
            let done = !self.held.contains(&stream);
            self.queues.entry(stream).or_default().push_back(Pending { block: address, done });
        }
    }

    /// [spec 6.3], streams in ascending order
    pub(crate) fn poll_events(&mut self) {
        self.convert_deferred();
        let streams: Vec<Stream> = self.queues.keys().copied().collect();
        for stream in streams {
            while self.queues[&stream].front().is_some_and(|front| front.done) {
                self.pop_event(stream, 0);
            }
        }
    }

    /// [spec 6.4]
    pub(crate) fn convert_deferred(&mut self) {
        for address in std::mem::take(&mut self.deferred) {
            self.forget_streams_recorded_in_pool(address);
            if self.block(address).uses.is_empty() {
                self.complete_free(address);
            } else {
                self.insert_events(address);
            }
        }
    }

    /// [spec 6.5], of one private pool's blocks or of all
    pub(crate) fn wait_for_events(&mut self, only: Option<PoolId>) {
        self.stats.num_sync_all_streams += 1;
        self.convert_deferred();
        let streams: Vec<Stream> = self.queues.keys().copied().collect();
        for stream in streams {
            let mut at = 0;
            while let Some(pending) = self.queues[&stream].get(at) {
                let (block, done) = (pending.block, pending.done);
                if only.is_some_and(|id| self.block(block).pool.0 != id) {
                    at += 1;
                    continue;
                }
                if !done {
                    self.release_every_stream();
                }
                self.pop_event(stream, at);
            }
        }
    }

    fn pop_event(&mut self, stream: Stream, at: usize) {
        let pending =
            self.queues.get_mut(&stream).and_then(|queue| queue.remove(at)).expect("an event is here");
        let block = self.block_mut(pending.block);
        block.events -= 1;
        if block.events == 0 {
            self.complete_free(pending.block);
        }
    }
}
