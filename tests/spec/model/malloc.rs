//! malloc [spec 3, 4].

use std::collections::BTreeSet;

use super::expandable::Mapping;
use super::rules::{Kind, UNLIMITED};
use super::stats::Array;
use super::{Block, BlockPool, DEFAULT_POOL, Event, Failure, Model, Segment, Stream};

/// A request on its way down the ladder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) stream: Stream,
    pub(crate) bytes: u64,
    pub(crate) rounded: u64,
    pub(crate) segment: u64,
    pub(crate) pool: BlockPool,
    pub(crate) expandable: bool,
}

impl Model {
    /// The address; 0 for 0 bytes [spec 4.1].
    pub(crate) fn alloc(&mut self, bytes: u64, stream: Stream) -> Result<u64, Failure> {
        if bytes == 0 {
            return Ok(0);
        }
        if bytes >= 1 << 60 {
            return Err(Failure::OutOfMemory);
        }
        if self.active.is_empty() {
            self.poll_events();
        }
        let rounded = self.conf.round(bytes);
        let mut request = Request {
            stream,
            bytes,
            rounded,
            segment: self.conf.segment_size(rounded),
            pool: (self.target_pool(stream), Kind::of(rounded)),
            expandable: self.conf.expandable,
        };
        if let Some(address) = self.obtain(&mut request)? {
            return Ok(self.hand_out(&request, address));
        }
        self.stats.num_ooms += 1;
        self.history.push(Event::Oom { rounded, stream });
        Err(Failure::OutOfMemory)
    }

    /// The ladder [spec 4.2, steps 3 to 5].
    fn obtain(&mut self, request: &mut Request) -> Result<Option<u64>, Failure> {
        if let Some(hit) = self.find_free(request) {
            return Ok(Some(hit));
        }
        if self.gc_armed() {
            self.collect_garbage();
        }
        if let Some(new) = self.new_segment(request, false) {
            return Ok(Some(new));
        }
        if let Some(hit) = self.find_in_overflow_pools(request) {
            return Ok(Some(hit));
        }
        if self.release_enough(request)?
            && let Some(new) = self.new_segment(request, false)
        {
            return Ok(Some(new));
        }
        if self.active.is_empty() || self.retries_in_scope() {
            self.release_for(request.pool.0);
            if let Some(new) = self.new_segment(request, true) {
                return Ok(Some(new));
            }
        }
        Ok(self.search_after_release(request))
    }

    /// [spec 3.2]
    pub(crate) fn find_free(&mut self, request: &Request) -> Option<u64> {
        if self.gc_armed() {
            *self.search_counters.entry(request.pool).or_default() += 1;
        }
        let fitting: Vec<u64> = self
            .free_set(request.pool)
            .into_iter()
            .filter(|&(stream, size, _)| stream == request.stream && size >= request.rounded)
            .map(|(.., address)| address)
            .collect();
        let mut at = 0;
        if self.is_expandable(*fitting.first()?) {
            if request.expandable {
                while self.is_expandable(fitting[at])
                    && fitting
                        .get(at + 1)
                        .is_some_and(|&next| self.potential(next) < self.potential(fitting[at]))
                {
                    at += 1;
                }
            } else {
                while self.is_expandable(*fitting.get(at)?) {
                    at += 1;
                }
            }
        }
        let candidate = *fitting.get(at)?;
        self.oversize_fit(request, self.block(candidate).size).then_some(candidate)
    }

    /// Size, plus what could be mapped right behind.
    fn potential(&self, address: u64) -> u64 {
        let unmapped = self.next(address).map(|next| self.block(next)).filter(|next| !next.mapped);
        self.block(address).size + unmapped.map_or(0, |next| next.size)
    }

    /// [spec 3.2, steps 4 and 5]
    fn oversize_fit(&self, request: &Request, size: u64) -> bool {
        let max_split = self.conf.max_split;
        if request.rounded < max_split {
            size < max_split || self.reuses_rounded_up_segment(request, size)
        } else {
            size < request.rounded.saturating_add(self.conf.non_split_rounding())
        }
    }

    /// [spec 4.4]
    fn find_in_overflow_pools(&mut self, request: &mut Request) -> Option<u64> {
        if request.pool.0 != DEFAULT_POOL {
            return None;
        }
        for id in self.use_on_oom.clone() {
            if !self.idle_may_leave(id) {
                continue;
            }
            let overflow = Request { pool: (id, request.pool.1), expandable: false, ..*request };
            if let Some(hit) = self.find_free(&overflow) {
                // What is split off follows the mode of this search too: PyTorch's allocator keeps 512 KiB of 88 MiB.
                *request = overflow;
                return Some(hit);
            }
        }
        None
    }

    /// [spec 4.3]
    fn new_segment(&mut self, request: &Request, retry: bool) -> Option<u64> {
        if retry {
            self.stats.num_alloc_retries += 1;
        }
        if self.exceeds_cap(request.segment) {
            return None;
        }
        if request.expandable {
            return match self.map_for(request) {
                Mapping::Done(address) => {
                    self.count_driver_allocation(request.pool.0);
                    Some(address)
                }
                Mapping::Failed => None,
            };
        }
        let address = self.device.malloc(request.segment)?;
        self.count_driver_allocation(request.pool.0);
        self.insert_segment(address, request);
        Some(address)
    }

    fn insert_segment(&mut self, address: u64, request: &Request) {
        let bytes = request.segment;
        self.total_reserved += bytes;
        self.segments.insert(address, Segment { page: None });
        self.blocks.insert(address, Block::new(bytes, address, request.stream, request.pool, true));
        let kind = request.pool.1;
        self.stats.add(Array::Segment, kind, 1);
        self.stats.add(Array::ReservedBytes, kind, bytes as i64);
        if bytes >= self.conf.max_split {
            self.stats.oversize_segments.add(1);
        }
        self.stats.num_device_alloc += 1;
        self.history.push(Event::SegmentAlloc { address, bytes, stream: request.stream });
    }

    /// [spec 4.5]
    fn release_enough(&mut self, request: &Request) -> Result<bool, Failure> {
        if self.conf.max_split == UNLIMITED || !self.idle_may_leave(request.pool.0) {
            return Ok(false);
        }
        let key = request.rounded.max(self.conf.max_split);
        let oversize: Vec<(u64, u64)> = self
            .free_set(request.pool)
            .into_iter()
            .filter(|&(stream, size, address)| {
                stream == request.stream && size >= self.conf.max_split && self.may_release_whole(address)
            })
            .map(|(_, size, address)| (size, address))
            .collect();
        let first = oversize.iter().find(|&&(size, _)| size >= key);
        if let Some(&(_, address)) = first.filter(|&&(_, address)| !self.is_expandable(address)) {
            self.release_block(address)?;
            return Ok(true);
        }
        let mut released = 0;
        for &(size, address) in oversize.iter().rev().filter(|&&(size, _)| size < key) {
            if released >= key {
                break;
            }
            if !self.is_expandable(address) {
                self.release_block(address)?;
                released += size;
            }
        }
        Ok(released >= key)
    }

    /// Splits, marks and counts [spec 3.3, 3.4, 4.6].
    fn hand_out(&mut self, request: &Request, address: u64) -> u64 {
        let kind = request.pool.1;
        let size = self.block(address).size;
        let had_neighbour = self.is_split(address);
        let splits = !self.no_split.contains(&request.pool.0)
            && self.conf.should_split(kind, size, request.rounded, request.expandable);
        if splits {
            self.split_front(address, request.rounded);
        }
        let block = self.block_mut(address);
        block.allocated = true;
        block.requested = request.bytes;
        let bytes = block.size as i64;
        if !self.is_expandable(address) {
            let (count, change) = match (splits, had_neighbour) {
                (true, false) => (1, size as i64 - bytes),
                (true, true) => (0, -bytes),
                (false, true) => (-1, -bytes),
                (false, false) => (0, 0),
            };
            self.stats.add(Array::InactiveSplit, kind, count);
            self.stats.add(Array::InactiveSplitBytes, kind, change);
        }
        self.stats.add(Array::Allocation, kind, 1);
        self.stats.add(Array::AllocatedBytes, kind, bytes);
        self.stats.add(Array::Active, kind, 1);
        self.stats.add(Array::ActiveBytes, kind, bytes);
        self.stats.add(Array::RequestedBytes, kind, request.bytes as i64);
        if bytes as u64 >= self.conf.max_split {
            self.stats.oversize_allocations.add(1);
        }
        address
    }

    /// The front becomes a block of its own; the rest keeps what the old one remembered.
    pub(crate) fn split_front(&mut self, address: u64, size: u64) {
        let old = self.block(address).clone();
        let gc_base = self.search_counter(old.pool);
        let front = Block::new(size, old.segment, old.stream, old.pool, old.mapped);
        self.blocks.insert(address, front);
        self.blocks.insert(address + size, Block { size: old.size - size, gc_base, ..old });
    }
}

impl Block {
    pub(crate) fn new(size: u64, segment: u64, stream: Stream, pool: BlockPool, mapped: bool) -> Self {
        Block {
            size,
            requested: 0,
            stream,
            pool,
            segment,
            mapped,
            allocated: false,
            events: 0,
            uses: BTreeSet::new(),
            uses_in_pool: BTreeSet::new(),
            gc_base: 0,
        }
    }
}
