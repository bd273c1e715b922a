//! malloc: the short way, and the ladder behind it [spec 4].

use std::panic::Location;
use std::sync::Arc;

use super::counters::NeedCredit;
use super::expandable::Grown;
use super::parts::DEFAULT_POOL;
use super::private::Route;
use super::shard::{Grant, Request, ShardState};
use super::shards::Shard;
use super::{Core, Growth, attention};
use crate::device::{DeviceResult, Stream};
use crate::error::{Error, Result};
use crate::observe::history::TraceAction;
use crate::pool::block::{Block, BlockId};
use crate::size::{REQUEST_CEILING, pool_kind};

type Site = &'static Location<'static>;

impl ShardState {
    /// A client's wish as this shard's rules see it.
    #[inline]
    pub(super) fn request(&self, bytes: u64, route: Route, scope: u32, site: Site) -> Request {
        let rounded = self.rules.round_size(bytes);
        let expandable = self.rules.expandable && !route.has_upstream;
        Request { bytes, rounded, kind: pool_kind(rounded), pool: route.slot, expandable, scope, site }
    }
}

impl Core {
    /// Hands out a block that is at hand, for no scope. `None`: there is none, or it is not so simple, and nothing has
    /// changed; [`malloc`](Core::malloc) knows.
    #[inline]
    pub(crate) fn hit(&self, bytes: u64, stream: Stream, site: Site) -> Option<(&Arc<Shard>, Grant)> {
        let ordinary = bytes.wrapping_sub(1) < REQUEST_CEILING - 1 && self.attention() == 0;
        let shard = if ordinary { self.shards.get(stream)? } else { return None };
        shard.hit(bytes, site).grant().map(|grant| (shard, grant))
    }

    /// Hands out a block of at least `bytes` (not 0) on `stream`. `scope` is the tag that it counts for; 0: none
    /// but what the thread has entered. Inlined, since what matters is short and its callers know the scope.
    #[inline(always)]
    pub(crate) fn malloc(
        &self,
        bytes: u64,
        stream: Stream,
        scope: u32,
        site: Site,
    ) -> Result<(&Arc<Shard>, Grant)> {
        if bytes >= REQUEST_CEILING {
            return Err(Error::TooLarge { requested: bytes });
        }
        self.check_process()?;
        let mut route = Route::default();
        let attention = self.attention();
        if attention != 0 {
            if attention & attention::NO_CACHING != 0 {
                return self.malloc_uncached(bytes, stream, site);
            }
            if scope == 0 && attention & attention::SCOPES != 0 {
                let entered = self.entered_tag();
                if entered != 0 {
                    return self.malloc_scoped(bytes, stream, entered, site);
                }
            }
            if attention & attention::POOLS != 0 {
                route = self.route_now(stream);
            }
        }
        let shard = self.shard(stream);
        // Without attention, a hit was tried already.
        let mut hit = None;
        if attention & (attention::POOLS | attention::EVENTS) == attention::EVENTS {
            hit = self.hit_beside_events(shard, bytes, scope, site)?;
        } else if attention != 0 && scope == 0 && route == Route::default() {
            hit = shard.hit(bytes, site).grant();
        }
        let grant = match hit {
            Some(grant) => grant,
            None => self.malloc_generally(shard, bytes, route, scope, site)?,
        };
        Ok((shard, grant))
    }

    /// Polls the events and looks for a block at hand. `None`: as for [`hit`](Core::hit), but that events were polled.
    #[inline(never)]
    fn hit_beside_events(
        &self,
        shard: &Shard,
        bytes: u64,
        scope: u32,
        site: Site,
    ) -> DeviceResult<Option<Grant>> {
        let Some(done) = self.process_events_but_last()? else {
            return Ok(if scope == 0 { shard.hit(bytes, site).grant() } else { None });
        };
        let mut state = self.lock_with_done(shard, &done);
        drop(done);
        if scope == 0 {
            return Ok(shard.hit_locked(state, bytes, site).grant());
        }
        let request = state.request(bytes, Route::default(), scope, site);
        Ok(state.unpark(&request))
    }

    /// Serves a request that nothing at hand was simple enough for.
    #[inline(never)]
    fn malloc_generally(
        &self,
        shard: &Arc<Shard>,
        bytes: u64,
        route: Route,
        scope: u32,
        site: Site,
    ) -> Result<Grant> {
        let mut state = shard.lock_hot();
        let request = state.request(bytes, route, scope, site);
        if let Some(grant) = state.unpark(&request) {
            return Ok(grant);
        }
        state.settle_lazy(&self.shared);
        if let Some(id) = state.find_free(&request, &self.shared.large_searches) {
            if let Ok(grant) = state.hand_out(id, &request, &self.shared) {
                return Ok(grant);
            }
            drop(state);
            if let Some(grant) = self.take_with_credit(shard, &request, true) {
                return Ok(grant);
            }
            state = shard.lock();
        }
        let epoch = state.epoch();
        drop(state);
        self.malloc_slow(shard, request, epoch)
    }

    /// Caching is off: the driver is asked for exactly the request, and no statistic moves [spec 4.1].
    #[cold]
    fn malloc_uncached(&self, bytes: u64, stream: Stream, site: Site) -> Result<(&Arc<Shard>, Grant)> {
        let shard = self.shard(stream);
        match self.device.malloc(bytes) {
            Ok(addr) => {
                shard.lock().uncached += 1;
                Ok((shard, Grant { block: BlockId::NONE, generation: 0, addr }))
            }
            Err(error) if error.is_out_of_memory() => {
                let request = shard.lock().request(bytes, Route::default(), 0, site);
                Err(self.out_of_memory(shard, &request))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Capture and routing, while some pool is active [spec 4.2 step 1, 2.4].
    #[cold]
    fn route_now(&self, stream: Stream) -> Route {
        if self.config.read().graph_capture_record_stream_reuse {
            self.reuse_during_capture(stream);
        }
        self.route(stream)
    }

    /// A hit whose shard lacked credit; `None` if another thread took the block meanwhile.
    #[cold]
    fn take_with_credit(&self, shard: &Shard, request: &Request, may_stay: bool) -> Option<Grant> {
        self.shards.with_credit(shard, &self.shared, may_stay, |state| {
            let id = state.find_free_uncounted(request).ok_or(NeedCredit)?;
            state.hand_out(id, request, &self.shared)
        })
    }

    /// One more look at the free set, without counting it.
    pub(super) fn search_again(&self, shard: &Shard, request: &Request) -> Option<Grant> {
        let found = {
            let mut state = shard.lock();
            let id = state.find_free_uncounted(request)?;
            state.hand_out(id, request, &self.shared)
        };
        found.ok().or_else(|| self.take_with_credit(shard, request, false))
    }

    /// Everything after a miss [spec 4.2 steps 3 to 6]. `epoch` is the shard's at the time of the miss.
    #[cold]
    fn malloc_slow(&self, shard: &Arc<Shard>, mut request: Request, epoch: u64) -> Result<Grant> {
        if self.hooks.free_memory() {
            let found = shard.lock().find_free(&request, &self.shared.large_searches).is_some();
            if found && let Some(grant) = self.search_again(shard, &request) {
                return Ok(grant);
            }
        }
        let mut growth = self.growth.lock();
        if shard.lock().epoch() != epoch
            && let Some(grant) = self.search_again(shard, &request)
        {
            return Ok(grant);
        }
        let config = self.config();
        if self.gc_armed(&config) {
            self.collect_garbage(&config)?;
        }
        if config.throw_on_cudamalloc_oom {
            self.refuse_beyond_cap(shard, &request)?;
        }
        self.release_idle_at_miss(&mut growth, &config, shard, &request)?;
        match self.climb(&mut growth, shard, &mut request)? {
            Step::Segment(id) => {
                if let Some(grant) = self.hand_out_held(shard, id, &request) {
                    return Ok(grant);
                }
            }
            Step::Granted(grant) => return Ok(grant),
            Step::Nothing => {}
        }
        drop(growth);
        Err(self.out_of_memory(shard, &request))
    }

    /// The ladder [spec 4.2 step 5].
    fn climb(&self, growth: &mut Growth, shard: &Arc<Shard>, request: &mut Request) -> Result<Step> {
        let borrows = self.config.read().borrow_across_streams;
        if borrows && let Some(grant) = self.borrow(shard, request)? {
            return Ok(Step::Granted(grant));
        }
        if let Some(id) = self.obtain(growth, shard, request, false)? {
            return Ok(Step::Segment(id));
        }
        if request.pool == DEFAULT_POOL
            && let Some(grant) = self.take_from_overflow(shard, request)
        {
            return Ok(Step::Granted(grant));
        }
        if self.release_enough(shard, request)?
            && let Some(id) = self.obtain(growth, shard, request, false)?
        {
            return Ok(Step::Segment(id));
        }
        if self.may_release() {
            self.release_for(growth, request.pool)?;
            if let Some(id) = self.obtain(growth, shard, request, true)? {
                return Ok(Step::Segment(id));
            }
        }
        // A block may have come back while events were waited for: PyTorch does not look again.
        if !self.mirror_defects()
            && let Some(grant) = self.search_again(shard, request)
        {
            return Ok(Step::Granted(grant));
        }
        Ok(Step::Nothing)
    }

    /// Hands a fresh segment out. The last run of a step has credit without limit, so it does not fail; if it did, the
    /// segment would stay cached.
    fn hand_out_held(&self, shard: &Shard, id: BlockId, request: &Request) -> Option<Grant> {
        let granted = self.step(shard, |state| state.hand_out(id, request, &self.shared));
        if granted.is_none() {
            shard.lock().insert_free(id, &self.shared);
        }
        granted
    }

    /// Overflow pools [spec 4.4]: cached memory of private pools that allow it.
    fn take_from_overflow(&self, shard: &Shard, request: &mut Request) -> Option<Grant> {
        for slot in self.pools.overflow_slots(self.mirror_defects()) {
            let attempt = Request { pool: slot, expandable: false, ..*request };
            if let Some(grant) = self.search_again(shard, &attempt) {
                *request = attempt;
                return Some(grant);
            }
        }
        None
    }

    /// Obtains a segment [spec 4.3]; `None` means "no memory". The block is held.
    fn obtain(
        &self,
        growth: &mut Growth,
        shard: &Arc<Shard>,
        request: &Request,
        retry: bool,
    ) -> Result<Option<BlockId>> {
        self.device.pending_error()?;
        if retry {
            self.ledger.lock().num_alloc_retries += 1;
        }
        let rules = shard.lock().rules;
        let segment = rules.segment_size(request.rounded);
        if self.beyond_cap(segment) {
            return Ok(None);
        }
        if request.expandable {
            match self.grow_expandable(growth, shard, request)? {
                Grown::Block(id) => return Ok(Some(id)),
                Grown::NoMemory => return Ok(None),
                // The ordinary way is better than no way.
                Grown::NoAddressSpace => {}
            }
        }
        let Some(addr) = self.driver_segment(request.pool, segment, shard.stream)? else { return Ok(None) };
        self.pools.note_driver_bytes(request.pool, segment as i64);
        self.ledger.lock().segment_obtained(request.kind, segment, rules.max_split);
        let mut state = shard.lock();
        let mut block = Block::segment(addr, segment, request.pool, request.kind, false);
        block.segment_site = Some(request.site);
        let id = state.slab.insert(block);
        state.record(TraceAction::SegmentAlloc, addr, segment, Some(request.site));
        Ok(Some(id))
    }

    fn driver_segment(&self, pool: u32, bytes: u64, stream: Stream) -> Result<Option<u64>> {
        if let Some(upstream) = self.pools.upstream(pool) {
            return Ok(upstream.alloc(bytes, stream));
        }
        match self.device.malloc(bytes) {
            Ok(addr) => Ok(Some(addr)),
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a new segment would pass the cap [spec 4.3 step 3].
    pub(super) fn beyond_cap(&self, segment: u64) -> bool {
        self.exceeds_cap(segment.saturating_add(self.counted_outside()))
    }

    /// `throw_on_cudamalloc_oom` [spec 22]: refuse before anything is released.
    fn refuse_beyond_cap(&self, shard: &Arc<Shard>, request: &Request) -> Result<()> {
        let segment = shard.lock().rules.segment_size(request.rounded);
        if !self.beyond_cap(segment) {
            return Ok(());
        }
        self.ledger.lock().num_oom_rejections += 1;
        Err(self.rejected(shard, request))
    }
}

/// How far a rung of the ladder has come.
enum Step {
    /// A held segment, still to be split and counted.
    Segment(BlockId),
    /// Done.
    Granted(Grant),
    Nothing,
}
