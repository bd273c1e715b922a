//! Giving memory back [spec 7, 8.3].

use super::rules::Kind;
use super::stats::Array;
use super::{BlockPool, DEFAULT_POOL, Event, Failure, Model, PoolId};

impl Model {
    /// [spec 7.3]
    pub(crate) fn empty_cache(&mut self) {
        self.release_all(None);
    }

    /// Release-all, of everything or of one private pool [spec 7.2].
    pub(crate) fn release_all(&mut self, only: Option<PoolId>) {
        if only.is_none() && self.active.is_empty() {
            self.release_default();
        }
        self.release_freeable(only);
    }

    /// What a failing request has released: its own pool too, if no graph knows that pool's addresses.
    pub(crate) fn release_for(&mut self, pool: PoolId) {
        self.release_default();
        if pool != DEFAULT_POOL && !self.private[&pool].captured {
            self.release_pool_blocks((pool, Kind::Large));
            self.release_pool_blocks((pool, Kind::Small));
        }
        self.release_freeable(None);
    }

    fn release_default(&mut self) {
        self.wait_for_events(None);
        self.release_pool_blocks((DEFAULT_POOL, Kind::Large));
        self.release_pool_blocks((DEFAULT_POOL, Kind::Small));
    }

    fn release_freeable(&mut self, only: Option<PoolId>) {
        if self.keeps_still_for_capture() {
            return;
        }
        let freeable: Vec<PoolId> =
            self.private.iter().filter(|(_, pool)| pool.users == 0).map(|(&id, _)| id).collect();
        for id in freeable {
            if only.is_some_and(|only| only != id) {
                continue;
            }
            if only.is_some() && self.active.is_empty() {
                self.wait_for_events(only);
            }
            self.release_pool_blocks((id, Kind::Small));
            self.release_pool_blocks((id, Kind::Large));
            self.forget_if_empty(id);
        }
    }

    fn release_pool_blocks(&mut self, pool: BlockPool) {
        let (expandable, ordinary): (Vec<u64>, Vec<u64>) = self
            .free_set(pool)
            .into_iter()
            .map(|(.., address)| address)
            .partition(|&address| self.is_expandable(address));
        for address in ordinary {
            if !self.is_split(address) {
                self.release_block(address).expect("a whole segment can be freed");
            }
        }
        for address in expandable {
            self.unmap_block(address);
        }
    }

    /// One ordinary block that is a whole segment [spec 7.1].
    pub(crate) fn release_block(&mut self, address: u64) -> Result<(), Failure> {
        let block = self.block(address).clone();
        let (bytes, kind) = (block.size, block.pool.1);
        self.stats.num_device_free += 1;
        if !self.device.free(address) {
            return Err(Failure::Driver);
        }
        self.history.push(Event::SegmentFree { address, bytes, stream: block.stream });
        self.blocks.remove(&address);
        self.total_reserved -= bytes;
        self.count_driver_free(block.pool.0);
        self.stats.add(Array::Segment, kind, -1);
        self.stats.add(Array::ReservedBytes, kind, -(bytes as i64));
        if bytes >= self.conf.max_split {
            self.stats.oversize_segments.add(-1);
        }
        if !self.blocks.values().any(|other| other.segment == block.segment) {
            self.segments.remove(&block.segment);
        }
        Ok(())
    }

    /// [spec 8.3]
    pub(crate) fn collect_garbage(&mut self) {
        let Some(allowed) = self.allowed else { return };
        let limit = (self.conf.gc_threshold * allowed as f64) as u64;
        if self.total_reserved <= limit {
            return;
        }
        let target = self.total_reserved - limit;
        let pool = (DEFAULT_POOL, Kind::Large);
        let now = self.search_counter(pool);
        let mut candidates: Vec<(u64, u64)> = self
            .free_set(pool)
            .into_iter()
            .filter(|&(.., address)| !self.is_split(address))
            .map(|(.., address)| (address, now - self.block(address).gc_base))
            .collect();
        let mut reclaimed = 0;
        while reclaimed < target && !candidates.is_empty() {
            let ages: u64 = candidates.iter().map(|&(_, age)| age).sum();
            let threshold = ages as f64 / candidates.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) = candidates
                .iter()
                .partition(|&&(address, age)| age as f64 >= threshold && !self.is_expandable(address));
            if old.is_empty() {
                break;
            }
            for (address, _) in old {
                reclaimed += self.block(address).size;
                self.release_block(address).expect("a whole segment can be freed");
            }
            candidates = young;
        }
    }
}
