//! The public handle of one device's allocator.

mod allocation;
mod builder;
mod checkpoint;
mod diagnose;
#[cfg(feature = "export")]
mod export;
mod graph;
mod hooks;
mod managed;
mod pinned;
mod pool;
mod raw;
mod scope;
#[cfg(unix)]
mod share;
mod stats;
#[cfg(feature = "metrics")]
mod weak;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

pub use self::allocation::{Allocation, AllocationParts};
pub use self::builder::Builder;
pub use self::graph::{CaptureScope, GraphPool, PooledGraph};
pub use self::managed::ManagedUpstream;
pub use self::pinned::PinnedAllocator;
pub use self::pool::MemPool;
pub use self::scope::{Scope, ScopeGuard};
#[cfg(unix)]
pub use self::share::{OpenedBlock, SharedBlock};
pub use self::stats::HistoryOptions;
#[cfg(feature = "metrics")]
pub(crate) use self::weak::WeakAllocator;
pub use crate::engine::{
    EmptyCacheReport, Forecast, KeptReason, KeptSegment, PoolCheckpoint, PoolRestore, ScopeStats, Upstream,
};

use crate::config::Config;
use crate::device::{Device, MemInfo, Stream};
use crate::engine::Core;
use crate::error::Result;

/// One device's allocator: a cheap handle that may be cloned and used from any thread.
///
/// Memory freed by a client is kept and handed out again, by the rules of PyTorch's caching allocator: best
/// fit per stream, blocks split and merged, segments of 2 MiB, 20 MiB or the request's own size [spec 2 to 5].
///
/// ```
/// use gpucache::Allocator;
/// use gpucache::device::sim::SimDevice;
///
/// let allocator = Allocator::simulated(SimDevice::new(1 << 30));
/// let block = allocator.alloc(1000)?;
/// assert_eq!(allocator.memory_allocated(), 1024);
/// assert_eq!(allocator.memory_reserved(), 2 << 20);
/// drop(block);
/// assert_eq!(allocator.memory_allocated(), 0);
/// assert_eq!(allocator.memory_reserved(), 2 << 20);
/// # Ok::<(), gpucache::Error>(())
/// ```
#[derive(Clone)]
pub struct Allocator {
    owner: Arc<Owner>,
}

/// What all handles of one allocator share; its end is the end of the allocator.
struct Owner {
    core: Arc<Core>,
    watch: diagnose::Watch,
    #[cfg(feature = "export")]
    export: export::Slot,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.core.is_forked() {
            // The memory is the parent's, and so is the end of it.
            std::mem::forget(Arc::clone(&self.core));
        } else {
            self.watch.at_end(&self.core);
            allocation::close(&self.core);
        }
    }
}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties = &self.core().properties;
        f.debug_struct("Allocator")
            .field("device", &properties.ordinal)
            .field("name", &properties.name)
            .field("memory_allocated", &self.memory_allocated())
            .field("memory_reserved", &self.memory_reserved())
            .finish()
    }
}

impl Allocator {
    /// Starts to build an allocator: which device, which options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn from_core(core: Arc<Core>) -> Self {
        let owner = Owner {
            core,
            watch: diagnose::Watch::new(),
            #[cfg(feature = "export")]
            export: export::Slot::default(),
        };
        let allocator = Allocator { owner: Arc::new(owner) };
        #[cfg(feature = "export")]
        allocator.export_if_asked();
        allocator
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }

    fn watch(&self) -> &diagnose::Watch {
        &self.owner.watch
    }

    /// The core, for a call that may take locks or reach the driver.
    #[inline]
    fn own_core(&self) -> Result<&Arc<Core>> {
        self.core().check_process()?;
        Ok(self.core())
    }

    /// The device that the memory is on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.core().device
    }

    /// Allocates on the default stream. See [`alloc_on`](Allocator::alloc_on).
    ///
    /// # Errors
    /// As [`alloc_on`](Allocator::alloc_on).
    #[inline]
    #[track_caller]
    pub fn alloc(&self, bytes: usize) -> Result<Allocation> {
        self.alloc_on(bytes, Stream::DEFAULT)
    }

    /// Allocates `bytes` of device memory for work on `stream`. The address is a multiple of 512.
    ///
    /// Zero bytes are legal: a null address, without effect [spec 4.1]. The memory is not initialised. It may be
    /// used by work queued on `stream` at once; for other streams see [`Allocation::record_stream`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) when neither the cache nor the driver has the memory
    /// even after everything cached was given back; [`Error::TooLarge`](crate::Error::TooLarge) from 2^60 bytes
    /// on; [`Error::Device`](crate::Error::Device) when the driver fails otherwise. Nothing is lost in any case.
    #[inline]
    #[track_caller]
    pub fn alloc_on(&self, bytes: usize, stream: Stream) -> Result<Allocation> {
        Allocation::new(self.core(), bytes, stream, 0, Location::caller())
    }

    /// Gives cached memory back to the driver: all segments without a live block [spec 7.3]. Waits for pending
    /// frees first.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when the driver fails; what could not be freed stays cached.
    pub fn empty_cache(&self) -> Result<EmptyCacheReport> {
        self.own_core()?.empty_cache()
    }

    /// With `release_idle_after`: gives back cached segments that nobody used for that long, and says how many bytes
    /// went. Without: does nothing.
    ///
    /// Requests that miss the cache look by themselves, so a program that grows need not call this. One that is
    /// served from the cache, or does nothing for a while, should call it now and then (a look takes microseconds,
    /// the release as long as the driver's frees): idle time counts from the first look that finds a segment free.
    /// What was used within the time stays, and so the most that was in use at any moment of it. A segment that was
    /// asked for again right after it went makes the allocator wait longer, up to 8 times. Only default pools decay,
    /// and nothing happens while a pool is active. The clock is [`Device::now`].
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when the driver fails; what could not be freed stays cached.
    pub fn release_idle(&self) -> Result<u64> {
        self.core().release_idle()
    }

    /// What a request would do, without doing it. Another thread may change that a moment later.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge) from 2^60 bytes on; a failing memory query.
    #[track_caller]
    pub fn would_allocate(&self, bytes: usize, stream: Stream) -> Result<Forecast> {
        self.own_core()?.forecast(bytes as u64, stream)
    }

    /// Grows the cache so that one block of `bytes` on `stream` can be served without the driver: the
    /// statistics show one allocation that was freed again.
    ///
    /// # Errors
    /// As [`alloc_on`](Allocator::alloc_on).
    #[track_caller]
    pub fn reserve(&self, bytes: usize, stream: Stream) -> Result<()> {
        self.alloc_on(bytes, stream).map(drop)
    }

    /// Free and total bytes of the device as the driver sees them [spec 8.2].
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when the driver fails.
    pub fn mem_get_info(&self) -> Result<MemInfo> {
        Ok(self.own_core()?.device.mem_get_info()?)
    }

    /// Caps this allocator at a fraction of the device's total memory; 1 means no cap [spec 8.1]. A cap below
    /// what is reserved already frees nothing by itself, and cached memory may always be handed out.
    ///
    /// # Errors
    /// [`Error::InvalidFraction`](crate::Error::InvalidFraction) outside 0 to 1, or for NaN.
    pub fn set_per_process_memory_fraction(&self, fraction: f64) -> Result<()> {
        self.own_core()?.set_fraction(fraction)
    }

    /// The fraction in force: 1 without a cap, else the cap's bytes divided by the total [spec 8.1].
    pub fn get_per_process_memory_fraction(&self) -> f64 {
        self.core().fraction()
    }

    /// The options in force.
    pub fn config(&self) -> Config {
        self.core().config()
    }

    /// Changes options at run time by PyTorch's text; four of them go back to their default if they are not
    /// named [spec 15.1]. Safe at any moment.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config); nothing is changed then.
    pub fn set_allocator_settings(&self, text: &str) -> Result<()> {
        self.own_core()?.set_config(|config| Ok(config.apply(text)?))
    }

    /// Turns caching off or on at run time (`caching_allocator_enable`) [spec 4.1]. What is cached stays.
    ///
    /// # Errors
    /// None today.
    pub fn caching_allocator_enable(&self, on: bool) -> Result<()> {
        self.own_core()?.set_config(|config| {
            config.caching = on;
            Ok(())
        })
    }

    /// Checks every invariant: live + cached + pending = reserved, blocks tile their segments, the statistics
    /// say what the blocks say. Takes time in proportion to the number of blocks and stops the allocator
    /// meanwhile.
    ///
    /// # Errors
    /// A text with one line per fault; there should never be one.
    pub fn verify(&self) -> std::result::Result<(), String> {
        self.core().check_process().map_err(|error| error.to_string())?;
        self.core().verify()
    }
}
