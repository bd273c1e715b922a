//! The state machine of one device's allocator [spec 2 to 8, 13, 14].
//!
//! Locks, in the order in which they may be taken together:
//!
//! 1. `growth`: one slow path at a time; held over driver calls; no hit needs it
//! 2. `events`: pending frees; taken by a hit only while some are pending
//! 3. `config`: for writing until every shard follows the change, which takes locks below
//! 4. `pools`, `ledger`, `far_addresses`: short, never over a driver call
//! 5. the queue for credit, only over shards
//! 6. shards, all of them only in order of creation: what a hit needs
//! 7. the peaks, the scopes
//!
//! User code (callbacks, filters, upstreams) is called under `growth` at most.

// A hit is two functions, `Shard::hit` (`hit_locked` is the same again) and `Shard::free_hit`, into which all of its small
// steps belong: what is called instead costs it up to a sixth.
#![allow(clippy::inline_always)]

mod addresses;
mod bank;
mod borrow;
mod capture;
mod change;
mod checkpoint;
mod close;
mod counted;
mod counters;
mod credit;
mod events;
mod evidence;
mod expandable;
mod forecast;
mod fork;
mod free;
mod gc;
mod graph;
mod hit;
mod hooks;
mod idle;
mod inspect;
mod lazy;
mod ledger;
mod lending;
mod limits;
mod lock;
mod malloc;
mod oom;
mod pages;
mod parts;
mod private;
mod queues;
mod release;
mod room;
mod scope;
mod shard;
mod shards;
#[cfg(unix)]
pub(crate) mod share;
mod shared;
mod snapshot;
mod trace;
mod uses;
mod verify;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use self::addresses::Addresses;
use self::counters::{Counters, NeedCredit};
use self::events::Events;
use self::hooks::Hooks;
use self::ledger::Ledger;
use self::pages::Reservations;
use self::private::Pools;
use self::shard::ShardState;
use self::shards::Shards;
use self::shared::Shared;
use self::trace::Ring;
use crate::config::Config;
use crate::device::{Device, DeviceProperties, Stream};
use crate::pinned::Host;
use crate::size::Rules;

pub use self::checkpoint::{PoolCheckpoint, PoolRestore};
pub use self::forecast::Forecast;
pub use self::private::Upstream;
pub use self::release::{EmptyCacheReport, KeptReason, KeptSegment};
pub use self::scope::ScopeStats;

pub(crate) use self::addresses::{Given, Place};
pub(crate) use self::fork::Birth;
pub(crate) use self::free::Freed;
pub(crate) use self::private::{Activity, next_capture_pool, next_user_pool};
pub(crate) use self::shard::Grant;
pub(crate) use self::shards::{Locked, Shard};
pub(crate) use self::trace::set_metadata;

/// Reasons why a malloc must look up before it may take the short way.
pub(crate) mod attention {
    /// Freed blocks wait for events.
    pub(crate) const EVENTS: u32 = 1;
    /// Some pool is active on the device.
    pub(crate) const POOLS: u32 = 1 << 1;
    /// Caching is off.
    pub(crate) const NO_CACHING: u32 = 1 << 2;
    /// Some thread has entered some scope.
    pub(crate) const SCOPES: u32 = 1 << 3;
}

/// What a slow path owns while it runs.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    pub(crate) reservations: Reservations,
    pub(crate) idle: idle::Idle,
}

/// One device's allocator.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) properties: DeviceProperties,
    pub(crate) shards: Shards,
    pub(crate) shared: Arc<Shared>,
    attention: AtomicU32,
    growth: Mutex<Growth>,
    events: Events,
    pub(crate) pools: Pools,
    ledger: Mutex<Ledger>,
    config: RwLock<Config>,
    hooks: Hooks,
    /// Value of `max_split_size` that the statistics show: that at the start [spec 9.2].
    max_split_at_start: i64,
    /// History of the device itself, and how long it may grow.
    history: Mutex<Option<Ring>>,
    history_capacity: AtomicU64,
    closing: close::Closing,
    /// Blocks that were given out by address.
    addresses: Addresses,
    #[cfg(unix)]
    foreign: share::Foreign,
    /// Those that the table does not cover: exact sizes of the driver's, five-level addresses.
    far_addresses: Mutex<HashMap<u64, addresses::Place>>,
    /// Pinned host memory; it has nothing to do with the rest.
    pub(crate) host: Arc<Host>,
    me: Weak<Core>,
}

impl Core {
    pub(crate) fn new(device: Arc<dyn Device>, mut config: Config) -> Arc<Self> {
        let properties = device.properties().clone();
        let fraction = config.per_process_memory_fraction;
        let max_split_at_start = config.max_split_size.map_or(-1, |b| b as i64);
        if config.expandable_segments && !properties.supports_virtual_memory {
            limits::notice_no_virtual_memory();
            config.expandable_segments = false;
        }
        let host = Host::new(device.clone(), &config);
        let core = Arc::new_cyclic(|me| Core {
            device,
            properties,
            shards: Shards::new(),
            shared: Arc::default(),
            attention: AtomicU32::new(if config.caching { 0 } else { attention::NO_CACHING }),
            growth: Mutex::default(),
            events: Events::default(),
            pools: Pools::default(),
            ledger: Mutex::default(),
            config: RwLock::new(config),
            hooks: Hooks::default(),
            max_split_at_start,
            history: Mutex::new(None),
            history_capacity: AtomicU64::new(0),
            closing: close::Closing::default(),
            addresses: Addresses::default(),
            #[cfg(unix)]
            foreign: share::Foreign::default(),
            far_addresses: Mutex::default(),
            host,
            me: me.clone(),
        });
        core.apply_fraction(fraction);
        core
    }

    /// The stream's shard.
    #[inline]
    pub(crate) fn shard(&self, stream: Stream) -> &Arc<Shard> {
        match self.shards.get(stream) {
            Some(shard) => shard,
            None => self.new_shard(stream),
        }
    }

    #[cold]
    fn new_shard(&self, stream: Stream) -> &Arc<Shard> {
        // Held until the shard is in the list: who changes what a shard knows holds it for writing.
        let config = self.config.read();
        let armed = self.gc_armed(&config);
        let no_split = self.pools.no_split_slots();
        self.shards.get_or_create(stream, &self.shared, self.me.clone(), |counters: Counters| {
            let mut state = ShardState::new(stream, Rules::new(&config), counters);
            state.gc_armed = armed;
            state.gc_seen = self.shared.large_searches.load(Ordering::Relaxed) > 0;
            for slot in no_split {
                state.part(slot).no_split = true;
            }
            let capacity = self.history_capacity.load(Ordering::Acquire) as usize;
            if capacity > 0 {
                state.ring = Some(Ring::new(capacity, self.shared.sequence.clone()));
            }
            state.update_modes();
            state
        })
    }

    /// Runs a step on a shard; see [`shards::step`].
    fn step<R>(
        &self,
        shard: &Shard,
        step: impl FnMut(&mut ShardState) -> Result<R, NeedCredit>,
    ) -> Option<R> {
        shards::step(&self.shards, shard, &self.shared, step)
    }

    fn attend(&self, reason: u32) {
        self.attention.fetch_or(reason, Ordering::Release);
    }

    fn relax(&self, reason: u32) {
        self.attention.fetch_and(!reason, Ordering::Release);
    }

    #[inline]
    fn attention(&self) -> u32 {
        self.attention.load(Ordering::Acquire)
    }

    fn any_pool_active(&self) -> bool {
        self.attention() & attention::POOLS != 0
    }

    pub(crate) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    fn mirror_defects(&self) -> bool {
        self.config.read().mirror_defects
    }
}
