//! Expandable segments [spec 13].

use super::malloc::Request;
use super::rules::{Kind, SMALL_SEGMENT};
use super::stats::Array;
use super::{Block, Event, Model, Segment};

#[derive(Debug)]
pub(crate) enum Mapping {
    Done(u64),
    Failed,
}

impl Model {
    /// [spec 13.4]
    pub(crate) fn map_for(&mut self, request: &Request) -> Mapping {
        let needed = request.rounded;
        let mut at = match self.find_address_space(request) {
            Some(start) => start,
            None => self.reserve(request),
        };
        if !self.block(at).mapped {
            match self.map_block(at, needed.min(self.block(at).size)) {
                Some(mapped) => at = mapped,
                None => return Mapping::Failed,
            }
        }
        while self.block(at).size < needed {
            let rest = self.next(at).expect("the walk found enough space");
            let bytes = (needed - self.block(at).size).min(self.block(rest).size);
            match self.map_block(rest, bytes) {
                Some(mapped) => at = mapped,
                None => return Mapping::Failed,
            }
        }
        Mapping::Done(at)
    }

    fn find_address_space(&self, request: &Request) -> Option<u64> {
        let unmapped = self.blocks.iter().filter(|(_, block)| {
            !block.mapped && block.pool == request.pool && block.stream == request.stream
        });
        for (&address, _) in unmapped {
            let start = self.prev(address).filter(|&prev| self.block(prev).idle()).unwrap_or(address);
            let mut sum = 0;
            let mut at = Some(start);
            while let Some(here) = at.filter(|&here| self.block(here).idle()) {
                sum += self.block(here).size;
                at = self.next(here);
            }
            if sum >= request.rounded {
                return Some(start);
            }
        }
        None
    }

    /// [spec 13.2]
    fn reserve(&mut self, request: &Request) -> u64 {
        let page = if request.pool.1 == Kind::Small { SMALL_SEGMENT } else { self.conf.large_segment };
        let size = (self.device.total + self.device.total / 8).next_multiple_of(page);
        let base = self.device.reserve(size);
        self.segments.insert(base, Segment { page: Some(page) });
        self.blocks.insert(base, Block::new(size, base, request.stream, request.pool, false));
        base
    }

    /// Maps the first `bytes` of an unmapped block, rounded up to pages; the start of the merged free block.
    fn map_block(&mut self, address: u64, bytes: u64) -> Option<u64> {
        let block = self.block(address).clone();
        let page = self.page(address);
        let bytes = bytes.next_multiple_of(page);
        if self.mapping_exceeds_cap(bytes) || !self.device.map(address, bytes, page) {
            return None;
        }
        if bytes < block.size {
            self.split_front(address, bytes);
        }
        self.block_mut(address).mapped = true;
        let (merged, ..) = self.merge(address);
        self.total_reserved += bytes;
        self.stats.add(Array::ReservedBytes, block.pool.1, bytes as i64);
        self.stats.num_device_alloc += 1;
        self.history.push(Event::SegmentMap { address, bytes, stream: block.stream });
        Some(merged)
    }

    fn page(&self, address: u64) -> u64 {
        self.segments[&self.block(address).segment].page.expect("an expandable segment")
    }

    /// Unmaps the pages that lie completely inside a free block [spec 13.6].
    pub(crate) fn unmap_block(&mut self, address: u64) {
        let block = self.block(address).clone();
        let (base, page) = (block.segment, self.page(address));
        let from = base + (address - base).next_multiple_of(page);
        let to = base + (address + block.size - base) / page * page;
        if from >= to {
            return;
        }
        let bytes = to - from;
        if self.held.contains(&block.stream) {
            // The stream is synchronised before its pages go.
            self.release_every_stream();
        }
        self.device.unmap(from, bytes, page);
        self.history.push(Event::SegmentUnmap { address: from, bytes, stream: block.stream });
        let part = |size, mapped| Block::new(size, base, block.stream, block.pool, mapped);
        self.blocks.remove(&address);
        if from > address {
            self.blocks.insert(address, part(from - address, true));
        }
        if to < address + block.size {
            self.blocks.insert(to, part(address + block.size - to, true));
        }
        self.blocks.insert(from, part(bytes, false));
        let (unmapped, ..) = self.merge(from);
        self.total_reserved -= bytes;
        self.stats.add(Array::ReservedBytes, block.pool.1, -(bytes as i64));
        self.stats.num_device_free += 1;
        self.count_driver_free(block.pool.0);
        if !self.is_split(unmapped) {
            self.blocks.remove(&unmapped);
            self.segments.remove(&base);
            self.device.unreserve(base);
        }
    }
}
