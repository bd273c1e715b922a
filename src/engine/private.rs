//! Private pools: identity, use counts, routing [spec 14].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::parts::DEFAULT_POOL;
use super::{Core, attention};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::observe::snapshot::PoolId;

/// Where a private pool's segments come from instead of the driver [spec 16.3]: a file, NCCL's registered memory,
/// managed memory. Called with whole segments, under no lock that a cache hit needs.
pub trait Upstream: Send + Sync {
    /// Obtains `bytes` (a multiple of 2 MiB) for use on `stream`; `None` means "no memory". The address is a
    /// multiple of 512.
    fn alloc(&self, bytes: u64, stream: Stream) -> Option<u64>;
    /// Takes back what [`alloc`](Upstream::alloc) gave.
    fn free(&self, address: u64, bytes: u64, stream: Stream);
}

/// Which requests an active pool takes.
pub(crate) type PoolFilter = Arc<dyn Fn(Stream) -> bool + Send + Sync>;

/// The pool that serves a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Route {
    /// 0 is the default pool.
    pub(crate) slot: u32,
    pub(crate) has_upstream: bool,
}

/// What routes requests into a pool, and so what else the device must do without meanwhile [spec 14.3].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// A program's own choice of pool: the driver may be asked for anything.
    Scope,
    /// A graph capture begun on this stream: the driver must not be waited for, and what the graph uses must stay.
    Capture(Stream),
    /// The program has not said: as careful as a capture.
    Unknown,
}

struct PrivatePool {
    slot: u32,
    uses: u64,
    upstream: Option<Arc<dyn Upstream>>,
    /// Bytes that it holds from the driver: it is forgotten when they are gone [spec 23.3].
    driver_bytes: i64,
    no_split: bool,
    use_on_oom: bool,
    /// A graph or a checkpoint may know its addresses, so that even idle segments stay while it has users.
    addresses_known: bool,
}

#[derive(Clone)]
struct Active {
    id: PoolId,
    route: Route,
    filter: PoolFilter,
    activity: Activity,
}

#[derive(Default)]
struct State {
    pools: BTreeMap<PoolId, PrivatePool>,
    active: Arc<Vec<Active>>,
    last_slot: u32,
}

/// All private pools of a device.
#[derive(Default)]
pub(crate) struct Pools {
    state: Mutex<State>,
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools").finish_non_exhaustive()
    }
}

/// A pool that nobody uses any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freeable {
    pub(crate) id: PoolId,
    pub(crate) slot: u32,
}

fn next(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed) + 1
}

/// A fresh id for a user's pool [spec 14.1].
pub(crate) fn next_user_pool() -> PoolId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    PoolId(0, next(&NEXT))
}

/// A fresh id for a capture's pool.
pub(crate) fn next_capture_pool() -> PoolId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    PoolId(next(&NEXT), 0)
}

impl State {
    fn pool(&mut self, id: PoolId) -> Result<&mut PrivatePool> {
        self.pools
            .get_mut(&id)
            .ok_or_else(|| Error::Pool(format!("Could not find pool of id ({}, {})", id.0, id.1)))
    }

    fn create_or_increment(&mut self, id: PoolId, upstream: Option<Arc<dyn Upstream>>) -> Result<u32> {
        if id == PoolId::DEFAULT {
            return Err(Error::Pool("(0, 0) is the default pool".into()));
        }
        if let Some(pool) = self.pools.get_mut(&id) {
            if pool.uses == 0 || upstream.is_some() {
                let why = if pool.uses == 0 { "was released" } else { "exists already" };
                return Err(Error::Pool(format!("pool ({}, {}) {why}; make a new one", id.0, id.1)));
            }
            pool.uses += 1;
            return Ok(pool.slot);
        }
        self.last_slot += 1;
        let slot = self.last_slot;
        let pool = PrivatePool {
            slot,
            uses: 1,
            upstream,
            driver_bytes: 0,
            no_split: false,
            use_on_oom: false,
            addresses_known: false,
        };
        self.pools.insert(id, pool);
        Ok(slot)
    }
}

/// Whether a capture was announced on the same stream before.
fn capture_again(state: &State, activity: Activity) -> bool {
    matches!(activity, Activity::Capture(_)) && state.active.iter().any(|a| a.activity == activity)
}

impl Pools {
    pub(crate) fn upstream(&self, slot: u32) -> Option<Arc<dyn Upstream>> {
        if slot == DEFAULT_POOL {
            return None;
        }
        let state = self.state.lock();
        state.pools.values().find(|p| p.slot == slot)?.upstream.clone()
    }

    pub(super) fn note_driver_bytes(&self, slot: u32, by: i64) {
        if slot != DEFAULT_POOL
            && let Some(pool) = self.state.lock().pools.values_mut().find(|p| p.slot == slot)
        {
            pool.driver_bytes += by;
        }
    }

    /// Pools whose idle memory serves default requests that would fail. Not what a graph writes to, unless
    /// `also_known`: PyTorch does not look.
    pub(super) fn overflow_slots(&self, also_known: bool) -> Vec<u32> {
        let state = self.state.lock();
        let helps = |p: &&PrivatePool| p.use_on_oom && (also_known || !p.addresses_known);
        state.pools.values().filter(helps).map(|p| p.slot).collect()
    }

    pub(super) fn no_split_slots(&self) -> Vec<u32> {
        self.state.lock().pools.values().filter(|p| p.no_split).map(|p| p.slot).collect()
    }

    pub(super) fn freeable(&self) -> Vec<Freeable> {
        let state = self.state.lock();
        state
            .pools
            .iter()
            .filter(|(_, p)| p.uses == 0)
            .map(|(&id, p)| Freeable { id, slot: p.slot })
            .collect()
    }

    /// Forgets a pool that holds nothing from the driver any more.
    pub(super) fn forget_if_empty(&self, id: PoolId) -> bool {
        let mut state = self.state.lock();
        let empty = state.pools.get(&id).is_some_and(|p| p.uses == 0 && p.driver_bytes == 0);
        if empty {
            state.pools.remove(&id);
        }
        empty
    }

    /// The pool's id; (0, 0) for the default pool and for one that is gone.
    pub(crate) fn id_of(&self, slot: u32) -> PoolId {
        let state = self.state.lock();
        state.pools.iter().find(|(_, p)| p.slot == slot).map_or(PoolId::DEFAULT, |(&id, _)| id)
    }

    /// The slot of a pool that exists.
    pub(crate) fn slot_of(&self, id: PoolId) -> Option<u32> {
        self.state.lock().pools.get(&id).map(|p| p.slot)
    }

    /// 1 for a fresh pool, 2 while it is also used by a scope [spec 14.2]; 0 where it is unknown or released.
    pub(crate) fn use_count(&self, id: PoolId) -> u64 {
        self.state.lock().pools.get(&id).map_or(0, |p| p.uses)
    }

    /// Whether some capture is under way, or what may be one.
    pub(super) fn capture_active(&self) -> bool {
        self.state.lock().active.iter().any(|a| a.activity != Activity::Scope)
    }

    /// Streams on which captures were announced.
    pub(super) fn capture_origins(&self) -> Vec<Stream> {
        let origin = |a: &Active| match a.activity {
            Activity::Capture(stream) => Some(stream),
            Activity::Scope | Activity::Unknown => None,
        };
        self.state.lock().active.iter().filter_map(origin).collect()
    }

    /// Whether idle memory of a pool in use may serve others or go back: no graph can know its addresses.
    pub(super) fn idle_may_leave(&self, slot: u32) -> bool {
        slot == DEFAULT_POOL || self.state.lock().pools.values().any(|p| p.slot == slot && !p.addresses_known)
    }

    /// The slot of a pool in use whose addresses are remembered from now on.
    pub(super) fn remember_addresses(&self, id: PoolId) -> Result<u32> {
        let mut state = self.state.lock();
        let pool = state.pool(id)?;
        if pool.uses == 0 {
            return Err(Error::Pool("Not expected to checkpoint freeable graph".into()));
        }
        pool.addresses_known = true;
        Ok(pool.slot)
    }

    pub(super) fn all_slots(&self) -> Vec<u32> {
        self.state.lock().pools.values().map(|p| p.slot).collect()
    }
}

impl Core {
    /// The private pool that takes a request on `stream`, newest first [spec 2.4].
    pub(super) fn route(&self, stream: Stream) -> Route {
        let active = self.pools.state.lock().active.clone();
        let taken = active.iter().rev().find(|a| (a.filter)(stream));
        taken.map_or(Route::default(), |a| a.route)
    }

    pub(crate) fn create_pool(&self, id: PoolId, upstream: Option<Arc<dyn Upstream>>) -> Result<u32> {
        self.check_process()?;
        self.pools.state.lock().create_or_increment(id, upstream)
    }

    /// Routes requests into the pool from here on [spec 14.2].
    pub(crate) fn begin_allocate(&self, id: PoolId, filter: PoolFilter, activity: Activity) -> Result<()> {
        self.check_process()?;
        let capture = activity != Activity::Scope;
        let mirror_defects = self.mirror_defects();
        // No slow path may free or wait, and nobody may query an event, while the capture begins.
        let _growth = capture.then(|| self.growth.lock());
        let _events = capture.then(|| self.events.state.lock());
        let mut state = self.pools.state.lock();
        if state.active.iter().any(|a| a.id == id) {
            if mirror_defects {
                state.create_or_increment(id, None)?;
            }
            return Err(Error::Pool("beginAllocateToPool: already recording to mempool_id".into()));
        }
        if capture_again(&state, activity) {
            return Err(Error::Pool(
                "the stream is being captured already: captures cannot be nested".into(),
            ));
        }
        let slot = state.create_or_increment(id, None)?;
        let pool = state.pool(id)?;
        pool.addresses_known |= capture;
        let has_upstream = pool.upstream.is_some();
        Arc::make_mut(&mut state.active).push(Active {
            id,
            route: Route { slot, has_upstream },
            filter,
            activity,
        });
        self.attend(attention::POOLS);
        Ok(())
    }

    pub(crate) fn end_allocate(&self, id: PoolId) -> Result<()> {
        self.check_process()?;
        let mut state = self.pools.state.lock();
        let active = Arc::make_mut(&mut state.active);
        let Some(at) = active.iter().position(|a| a.id == id) else {
            return Err(Error::Pool("endAllocatePool: not currently recording to mempool_id".into()));
        };
        active.remove(at);
        if active.is_empty() {
            self.relax(attention::POOLS);
        }
        drop(state);
        self.events.state.lock().predecessors.clear();
        Ok(())
    }

    /// One user less; the last one makes the pool freeable.
    pub(crate) fn release_pool_use(&self, id: PoolId) -> Result<()> {
        self.check_process()?;
        let mut state = self.pools.state.lock();
        let pool = state.pool(id)?;
        if pool.uses == 0 {
            return Err(Error::Pool(format!("pool ({}, {}) was released already", id.0, id.1)));
        }
        pool.uses -= 1;
        Ok(())
    }

    pub(crate) fn set_use_on_oom(&self, id: PoolId, on: bool) -> Result<()> {
        self.check_process()?;
        self.pools.state.lock().pool(id)?.use_on_oom = on;
        Ok(())
    }

    pub(crate) fn set_no_split(&self, id: PoolId) -> Result<()> {
        self.check_process()?;
        // For writing, so that no shard is made meanwhile, which would not know.
        let _no_new_shard = self.config.write();
        let slot = {
            let mut state = self.pools.state.lock();
            let pool = state.pool(id)?;
            pool.no_split = true;
            pool.slot
        };
        self.shards.with_all(|states| states.iter_mut().for_each(|s| s.part(slot).no_split = true));
        Ok(())
    }

    /// What a `MemPool` does when it goes [spec 14.2].
    pub(crate) fn destroy_pool(&self, id: PoolId) -> Result<()> {
        self.set_use_on_oom(id, false)?;
        self.release_pool_use(id)?;
        let mut growth = self.growth.lock();
        self.release_all(&mut growth, Some(id))
    }
}
