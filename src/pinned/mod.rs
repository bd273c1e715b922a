//! The caching allocator of pinned (page-locked) host memory [spec 17].
//!
//! Freed blocks wait in lists by size class, the power of two above the request, and are handed out again, the
//! newest first; nothing is split. A block that streams still use waits for an event on each of them.
//!
//! Locks are short and none is held over a driver call or user code. Only one is held at a time.

mod block;
mod buffer;
mod counters;
mod events;
mod live;
mod pools;
mod source;
mod worker;

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use self::block::{Block, CLASSES, Origin, Pool};
use self::counters::Counters;
use self::live::{Live, LiveBlocks, Uses};
use self::pools::Pools;
use self::source::{Source, system_free};
use self::worker::Worker;
use crate::config::{Config, PinnedConfig};
use crate::device::{Device, DeviceError, DeviceResult, Event, Stream};
use crate::engine::Birth;
use crate::error::{Error, Result};
use crate::observe::snapshot::PoolId;
use crate::stats::HostMemoryStats;

pub use self::buffer::PinnedBuffer;

pub(crate) use self::live::Owner;
pub(crate) use self::pools::Filter;

#[derive(Debug)]
struct Options {
    pinned: PinnedConfig,
    mirror_defects: bool,
}

impl Options {
    fn of(config: &Config) -> Self {
        Options { pinned: config.pinned.clone(), mirror_defects: config.mirror_defects }
    }
}

/// The pinned memory of one allocator, shared by its handles and buffers. Its end ends the background thread and
/// gives everything back.
#[derive(Debug)]
pub(crate) struct Host {
    state: Arc<HostState>,
}

/// What the background thread shares too.
#[derive(Debug)]
pub(crate) struct HostState {
    birth: Birth,
    device: Arc<dyn Device>,
    options: RwLock<Options>,
    pools: Pools,
    live: LiveBlocks,
    source: Source,
    /// Blocks that graphs use: kept to the end.
    retained: Mutex<Vec<Block>>,
    spare_events: Mutex<Vec<Event>>,
    counters: Counters,
    worker: Worker,
    me: Weak<HostState>,
}

impl Host {
    pub(crate) fn new(device: Arc<dyn Device>, config: &Config) -> Arc<Self> {
        let state = Arc::new_cyclic(|me| HostState {
            birth: Birth::default(),
            device,
            options: RwLock::new(Options::of(config)),
            pools: Pools::default(),
            live: LiveBlocks::default(),
            source: Source::default(),
            retained: Mutex::default(),
            spare_events: Mutex::default(),
            counters: Counters::default(),
            worker: Worker::default(),
            me: me.clone(),
        });
        Arc::new(Host { state })
    }
}

impl Deref for Host {
    type Target = HostState;

    fn deref(&self) -> &HostState {
        &self.state
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.birth.is_forked() {
            // The thread and the memory are the parent's.
            std::mem::forget(Arc::clone(&self.state));
            return;
        }
        // After this the state has no other owner.
        self.worker.stop();
    }
}

impl HostState {
    /// Puts changed options in force.
    pub(crate) fn set_config(&self, config: &Config) {
        *self.options.write() = Options::of(config);
        // The thread sees that it is not wanted any more.
        self.worker.wake();
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    fn pinned_options(&self) -> (PinnedConfig, bool) {
        let options = self.options.read();
        (options.pinned.clone(), options.mirror_defects)
    }

    /// Allocates; 0 bytes give address 0 [spec 17.1].
    pub(crate) fn alloc(&self, bytes: u64, stream: Stream, owner: Owner) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        self.birth.check()?;
        let (options, mirror) = self.pinned_options();
        let size = block::rounded(bytes, &options)?;
        let route = self.pools.route(stream);
        let in_background = self.worker.is_running() && Arc::ptr_eq(&route.pool, &self.pools.default);
        // While the stream is being captured, events count as not complete.
        if !route.capturing && !in_background {
            self.process_events(&route.pool)?;
        }
        let block = match route.pool.take(size) {
            Some(block) => block,
            None => self.obtain(bytes, size, &route.pool, &options, mirror)?,
        };
        self.counters.handed_out(block.size, mirror);
        let (pool, captured) = (route.pool, route.capturing);
        self.live.insert(Live { block, pool, owner, captured, uses: Uses::new() });
        Ok(block.address)
    }

    /// A block from the system.
    fn obtain(
        &self,
        bytes: u64,
        size: u64,
        pool: &Pool,
        options: &PinnedConfig,
        mirror: bool,
    ) -> Result<Block> {
        if options.use_background_threads
            && let Some(state) = self.me.upgrade()
        {
            self.worker.start(state);
        }
        let attempt = || self.source.obtain(&*self.device, size, options, &self.counters);
        let mut answer = attempt();
        // PyTorch fails at once.
        for wait in [false, true] {
            if mirror || !answer.as_ref().is_err_and(DeviceError::is_out_of_memory) {
                break;
            }
            self.make_room(wait);
            answer = attempt();
        }
        let block = answer.map_err(|error| {
            if error.is_out_of_memory() { self.out_of_memory(bytes, size) } else { error.into() }
        })?;
        pool.blocks.fetch_add(1, Ordering::AcqRel);
        self.counters.obtained(size);
        Ok(block)
    }

    /// Gives cached blocks back, or also those that streams still use. What fails here stays as it is; the attempt
    /// that follows tells if that matters.
    #[cold]
    fn make_room(&self, wait: bool) {
        // A capture must not be waited in.
        if wait && !self.pools.is_capturing() {
            for pool in self.pools.releasable() {
                let _ = self.wait_for_events(&pool);
            }
        }
        let _ = self.release_cached();
    }

    #[cold]
    fn out_of_memory(&self, requested: u64, rounded: u64) -> Error {
        let stats = self.counters.read();
        let active = stats.active_bytes.current;
        let cached = stats.allocated_bytes.current - active;
        // Under `mirror_defects` the active bytes are PyTorch's wrong ones.
        Error::HostOutOfMemory { requested, rounded, active: active as u64, cached: cached.max(0) as u64 }
    }

    /// Gives back what was allocated.
    pub(crate) fn free(&self, address: u64, owner: Owner) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        self.birth.check()?;
        let live = self.live.take(address, owner)?;
        let outcome = self.give_back(live);
        self.catch(outcome)
    }

    /// Notes that work on `stream` uses the block.
    pub(crate) fn record_event(&self, address: u64, stream: Stream) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        self.birth.check()?;
        let captured = self.device.capture_status(stream);
        // Without an answer the stream counts all the same.
        self.live.record(address, stream, matches!(captured, Ok(Some(_))))?;
        captured?;
        Ok(())
    }

    /// Returns idle blocks to the system [spec 17.4]. Answers how many bytes.
    pub(crate) fn empty_cache(&self) -> Result<u64> {
        self.birth.check()?;
        let (bytes, outcome) = self.release_cached();
        self.catch(outcome)?;
        Ok(bytes)
    }

    /// The bytes released, and the first failure. A failure ends nothing.
    fn release_cached(&self) -> (u64, DeviceResult<()>) {
        let mut bytes = 0;
        let mut outcome = Ok(());
        for pool in self.pools.releasable() {
            outcome = outcome.and(self.process_events(&pool));
            for class in 0..CLASSES {
                for block in pool.drain(class) {
                    let released = self.release(&pool, block);
                    bytes += if released.is_ok() { block.size } else { 0 };
                    outcome = outcome.and(released);
                }
            }
        }
        self.pools.forget_empty();
        (bytes, outcome)
    }

    /// Returns one block to the system; if that fails it stays cached.
    fn release(&self, pool: &Pool, block: Block) -> DeviceResult<()> {
        let mirror = self.options.read().mirror_defects;
        if let Err(error) = self.source.release(&*self.device, block, &self.counters, mirror) {
            pool.put(block);
            return Err(error);
        }
        pool.blocks.fetch_sub(1, Ordering::AcqRel);
        self.counters.released(block.size);
        Ok(())
    }

    /// Applies `pinned_free_catch_all`.
    fn catch(&self, outcome: DeviceResult<()>) -> Result<()> {
        match outcome {
            Err(error) if self.options.read().pinned.free_catch_all => {
                eprintln!("gpucache: pinned memory could not be given back ({error}); it is kept");
                Ok(())
            }
            outcome => Ok(outcome?),
        }
    }

    pub(crate) fn begin_allocate(&self, id: PoolId, filter: Filter) -> Result<()> {
        self.birth.check()?;
        self.pools.begin(id, filter)
    }

    pub(crate) fn end_allocate(&self, id: PoolId) -> Result<()> {
        self.birth.check()?;
        self.pools.end(id)
    }

    pub(crate) fn release_pool(&self, id: PoolId) -> Result<()> {
        self.birth.check()?;
        self.pools.release_use(id)
    }

    pub(crate) fn stats(&self) -> HostMemoryStats {
        self.counters.read()
    }

    pub(crate) fn reset_peak(&self) {
        self.counters.reset_peak();
    }

    pub(crate) fn reset_accumulated(&self) {
        self.counters.reset_accumulated();
    }
}

impl Drop for HostState {
    /// Gives everything back but what somebody still has by its address. Nobody is left to hear of a failure.
    fn drop(&mut self) {
        let mut blocks = Vec::new();
        for pool in self.pools.all() {
            blocks.extend(self.drain_pending(&pool));
            blocks.extend((0..CLASSES).flat_map(|class| pool.drain(class)));
        }
        let retained = std::mem::take(&mut *self.retained.lock());
        if !retained.is_empty() && self.device.device_synchronize().is_ok() {
            blocks.extend(retained);
        }
        for block in blocks.into_iter().filter(|block| block.origin != Origin::Reserve) {
            let _ = system_free(&*self.device, block, &self.counters);
        }
        if let Some(memory) = self.source.take_reserve()
            && !self.live.any(|live| live.block.origin == Origin::Reserve)
        {
            let _ = system_free(&*self.device, memory, &self.counters);
        }
        for event in self.spare_events.get_mut().drain(..) {
            let _ = self.device.event_destroy(event);
        }
    }
}
