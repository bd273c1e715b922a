//! What a request would do, without doing it; and growing ahead of need.

use super::Core;
use super::parts::DEFAULT_POOL;
use super::private::Route;
use super::shard::ShardState;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::observe::snapshot::PoolKind;
use crate::pool::block::State;
use crate::size::REQUEST_CEILING;
use std::panic::Location;

/// What a request would do. Another thread may change it a moment later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forecast {
    /// Served from the cache.
    Hit {
        /// Bytes of the block, the unsplit rest included.
        block_size: u64,
    },
    /// More memory is taken from the driver, and it fits.
    Grow {
        /// Bytes that the driver is asked for.
        segment_size: u64,
    },
    /// Cached memory goes back to the driver first.
    Release {
        /// Bytes that the driver is asked for then.
        segment_size: u64,
    },
    /// It fails.
    OutOfMemory {
        /// Bytes that the driver would be asked for.
        segment_size: u64,
    },
}

impl Core {
    #[track_caller]
    pub(crate) fn forecast(&self, bytes: u64, stream: Stream) -> Result<Forecast> {
        if bytes >= REQUEST_CEILING {
            return Err(Error::TooLarge { requested: bytes });
        }
        if bytes == 0 {
            return Ok(Forecast::Hit { block_size: 0 });
        }
        let route = if self.any_pool_active() { self.route(stream) } else { Route::default() };
        let (segment_size, hit) = {
            let mut state = self.shard(stream).lock();
            let request = state.request(bytes, route, 0, Location::caller());
            let hit = state.find_free_uncounted(&request).map(|id| {
                let size = state.slab[id].size;
                let rest = size - request.rounded;
                let split = !state.keeps_whole(request.pool)
                    && state.rules.should_split(request.kind, request.rounded, rest, request.expandable);
                if split { request.rounded } else { size }
            });
            (state.rules.segment_size(request.rounded), hit)
        };
        if let Some(block_size) = hit {
            return Ok(Forecast::Hit { block_size });
        }
        let free = self.device.mem_get_info()?.free;
        let outside = self.counted_outside();
        let allowed = self.ledger.lock().allowed_max.unwrap_or(u64::MAX).saturating_sub(outside);
        let reserved = self.reserved().0;
        let room = free.min(allowed.saturating_sub(reserved));
        if segment_size <= room {
            return Ok(Forecast::Grow { segment_size });
        }
        let own = Some(route.slot).filter(|&slot| slot != DEFAULT_POOL && self.pools.idle_may_leave(slot));
        let pools: Vec<u32> = std::iter::once(DEFAULT_POOL).chain(own).collect();
        let releasable: u64 = self.shards.by_stream().iter().map(|s| releasable(&s.lock(), &pools)).sum();
        let room = free.saturating_add(releasable);
        let room = room.min(allowed.saturating_sub(reserved.saturating_sub(releasable)));
        if segment_size <= room && self.may_release() {
            Ok(Forecast::Release { segment_size })
        } else {
            Ok(Forecast::OutOfMemory { segment_size })
        }
    }
}

/// Bytes of whole free segments of these pools.
fn releasable(state: &ShardState, pools: &[u32]) -> u64 {
    let kinds = [PoolKind::Small, PoolKind::Large];
    let both = pools.iter().flat_map(|&pool| kinds.map(|kind| (pool, kind)));
    let free = both.flat_map(|(pool, kind)| state.free_blocks(pool, kind));
    free.filter(|(_, b)| !b.is_split() && b.state == State::Free).map(|(_, b)| b.size).sum()
}
