//! Every place where gpucache, by default, does better than PyTorch. With `mirror` each answers as PyTorch does.

use super::malloc::Request;
use super::pools::Filter;
use super::{Model, PoolId};

impl Model {
    /// [spec 23.5] A segment that was rounded up to `max_split` may serve the request that it was made for.
    pub(crate) fn reuses_rounded_up_segment(&self, request: &Request, size: u64) -> bool {
        !self.mirror && size <= request.segment
    }

    /// [spec 23.13, 23.14] Only a whole segment may go back to the driver.
    pub(crate) fn may_release_whole(&self, address: u64) -> bool {
        self.mirror || self.is_expandable(address) || !self.is_split(address)
    }

    /// A block that came back during the release serves the request; PyTorch fails with it in the pool.
    pub(crate) fn search_after_release(&mut self, request: &Request) -> Option<u64> {
        if self.mirror { None } else { self.find_free(request) }
    }

    /// [spec 23.6] The cap holds for whole pages too.
    pub(crate) fn mapping_exceeds_cap(&self, bytes: u64) -> bool {
        !self.mirror && self.exceeds_cap(bytes)
    }

    /// [spec 23.2] PyTorch forgets streams that were recorded while a pool was active.
    pub(crate) fn forget_streams_recorded_in_pool(&mut self, address: u64) {
        let mirror = self.mirror;
        let block = self.block_mut(address);
        let recorded = std::mem::take(&mut block.uses_in_pool);
        if mirror {
            block.uses.retain(|stream| !recorded.contains(stream));
        }
    }

    fn capture_active(&self) -> bool {
        self.active.iter().any(|(_, filter)| !matches!(filter, Filter::Thread))
    }

    /// A scope of a private pool is no capture: a request that fails in it has cached memory released.
    pub(crate) fn retries_in_scope(&self) -> bool {
        !self.mirror && !self.capture_active()
    }

    /// Unmapping waits for a stream, which spoils its capture.
    pub(crate) fn keeps_still_for_capture(&self) -> bool {
        !self.mirror && self.capture_active()
    }

    /// Idle memory of a pool whose addresses a graph knows is still the graph's.
    pub(crate) fn idle_may_leave(&self, id: PoolId) -> bool {
        self.mirror || self.private.get(&id).is_none_or(|pool| !pool.captured)
    }

    /// [spec 23.7]
    pub(crate) fn leaks_use_of_failed_begin(&self) -> bool {
        self.mirror
    }

    /// [spec 23.3] PyTorch's counter of an expandable pool goes wrong, so that it may never be forgotten.
    pub(crate) fn holds_nothing(&self, id: PoolId) -> bool {
        if self.mirror {
            self.private[&id].driver_allocations == 0
        } else {
            !self.blocks.values().any(|block| block.pool.0 == id && block.mapped)
        }
    }
}
