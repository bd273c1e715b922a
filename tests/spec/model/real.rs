//! The crate's allocator on a simulated device, behind the same face as the model.

use std::collections::BTreeMap;

use gpucache::config::{Config, Divisions};
use gpucache::device::Stream as Handle;
use gpucache::device::sim::{self, LoggedCall, SimCall, SimDevice};
use gpucache::stats::{MemoryStats, Stat, StatArray};
use gpucache::{Allocator, Error, MemPool};

use super::device::Call;
use super::rules::{Conf, UNLIMITED};
use super::subject::Subject;
use super::{Failure, Stream};

#[derive(Debug)]
pub(crate) struct Real {
    pub(crate) allocator: Allocator,
    pub(crate) device: SimDevice,
    calls: Vec<Call>,
    pools: Vec<Option<MemPool>>,
}

impl Real {
    /// Its device answers as the model's does: first fit, and a free does not wait for held streams.
    pub(crate) fn new(total_memory: u64, conf: &Conf, mirror: bool) -> Self {
        let device = SimDevice::builder()
            .total_memory(total_memory)
            .address_policy(sim::AddressPolicy::FirstFit)
            .free_waits(false)
            .build();
        device.start_log();
        let allocator = Allocator::builder()
            .device(std::sync::Arc::new(device.clone()))
            .config(config(conf, mirror))
            .build()
            .expect("an allocator on a simulated device");
        Real { allocator, device, calls: Vec::new(), pools: Vec::new() }
    }

    fn pool(&self, pool: usize) -> &MemPool {
        self.pools[pool].as_ref().expect("the pool was not dropped")
    }

    fn read_log(&mut self) {
        self.calls.extend(self.device.take_log().iter().filter_map(call));
    }
}

impl Subject for Real {
    fn alloc(&mut self, bytes: u64, stream: Stream) -> Result<u64, Failure> {
        self.allocator.alloc_raw(bytes as usize, Handle::from_raw(stream)).map_err(|error| failure(&error))
    }
    fn free(&mut self, address: u64) -> Result<(), Failure> {
        self.allocator.free_raw(address).map_err(|error| failure(&error))
    }
    fn record_stream(&mut self, address: u64, stream: Stream) {
        self.allocator.record_stream_raw(address, Handle::from_raw(stream)).expect("a live address");
    }
    fn hold(&mut self, stream: Stream) {
        self.device.hold(Handle::from_raw(stream));
    }
    fn release(&mut self, stream: Stream) {
        self.device.release(Handle::from_raw(stream));
    }
    fn empty_cache(&mut self) {
        self.allocator.empty_cache().expect("a device that works");
    }
    fn set_fraction(&mut self, fraction: f64) {
        self.allocator.set_per_process_memory_fraction(fraction).expect("a fraction from 0 to 1");
    }
    fn fraction(&self) -> f64 {
        self.allocator.get_per_process_memory_fraction()
    }
    fn set_settings(&mut self, text: &str) {
        self.allocator.set_allocator_settings(text).expect("settings that PyTorch accepts");
    }
    fn reset_peak(&mut self) {
        self.allocator.reset_peak_memory_stats();
    }
    fn reset_accumulated(&mut self) {
        self.allocator.reset_accumulated_memory_stats();
    }
    fn stats(&self) -> BTreeMap<String, i64> {
        flat(&self.allocator.memory_stats())
    }
    fn calls(&mut self) -> &[Call] {
        self.read_log();
        &self.calls
    }
    fn create_pool(&mut self) -> usize {
        self.pools.push(Some(self.allocator.create_pool()));
        self.pools.len() - 1
    }
    fn begin_pool(&mut self, pool: usize) -> Result<(), Failure> {
        let begun = self.allocator.begin_allocate_to_pool(self.pool(pool).id(), Box::new(|_| true));
        begun.map_err(|error| failure(&error))
    }
    fn end_pool(&mut self, pool: usize) {
        let id = self.pool(pool).id();
        self.allocator.end_allocate_to_pool(id).expect("the pool is active");
        self.allocator.release_pool(id).expect("the pool has users");
    }
    fn set_use_on_oom(&mut self, pool: usize) {
        self.pool(pool).set_use_on_oom(true);
    }
    fn set_no_split(&mut self, pool: usize) {
        self.pool(pool).set_no_split();
    }
    fn drop_pool(&mut self, pool: usize) {
        self.pools[pool] = None;
    }
    fn verify(&self) {
        self.allocator.verify().expect("the allocator's books are right");
        assert_eq!(self.device.misuses(), Vec::<String>::new());
    }
}

fn failure(error: &Error) -> Failure {
    match error {
        error if error.is_out_of_memory() => Failure::OutOfMemory,
        Error::InvalidPointer { .. } => Failure::InvalidPointer,
        Error::Device(_) => Failure::Driver,
        Error::Pool(_) => Failure::Pool,
        other => panic!("no such error is expected: {other}"),
    }
}

/// The calls that move memory; the rest (events, queries) is the allocator's own affair.
fn call(logged: &LoggedCall) -> Option<Call> {
    let result = logged.result.as_ref().copied();
    Some(match (logged.call, result) {
        (SimCall::Malloc { bytes }, result) => Call::Malloc { bytes, address: result.ok() },
        (SimCall::Free { address }, Ok(_)) => Call::Free { address },
        (SimCall::AddressReserve { bytes }, Ok(address)) => Call::Reserve { address, bytes },
        (SimCall::AddressFree { address, bytes }, Ok(_)) => Call::Unreserve { address, bytes },
        (SimCall::MemMap { address, bytes, .. }, Ok(_)) => Call::Map { address, bytes },
        (SimCall::MemUnmap { address, bytes }, Ok(_)) => Call::Unmap { address, bytes },
        _ => return None,
    })
}

fn config(conf: &Conf, mirror: bool) -> Config {
    let mut config = Config::default();
    config.max_split_size = (conf.max_split != UNLIMITED).then_some(conf.max_split);
    config.max_non_split_rounding = conf.max_non_split_rounding;
    config.large_segment_size = conf.large_segment;
    config.garbage_collection_threshold = conf.gc_threshold;
    config.roundup_power2_divisions = Divisions(conf.divisions.map(|count| count as u32));
    config.expandable_segments = conf.expandable;
    config.per_process_memory_fraction = conf.fraction;
    config.mirror_defects = mirror;
    config
}

fn flat(stats: &MemoryStats) -> BTreeMap<String, i64> {
    let mut flat = BTreeMap::new();
    for (name, array) in [
        ("allocation", stats.allocation),
        ("segment", stats.segment),
        ("active", stats.active),
        ("inactive_split", stats.inactive_split),
        ("allocated_bytes", stats.allocated_bytes),
        ("reserved_bytes", stats.reserved_bytes),
        ("active_bytes", stats.active_bytes),
        ("inactive_split_bytes", stats.inactive_split_bytes),
        ("requested_bytes", stats.requested_bytes),
    ] {
        let StatArray { all, large_pool, small_pool } = array;
        for (pool, stat) in [("all", all), ("large_pool", large_pool), ("small_pool", small_pool)] {
            flat_stat(&mut flat, &format!("{name}.{pool}"), stat);
        }
    }
    flat_stat(&mut flat, "oversize_allocations", stats.oversize_allocations);
    flat_stat(&mut flat, "oversize_segments", stats.oversize_segments);
    for (name, value) in [
        ("max_split_size", stats.max_split_size),
        ("num_alloc_retries", stats.num_alloc_retries),
        ("num_ooms", stats.num_ooms),
        ("num_sync_all_streams", stats.num_sync_all_streams),
        ("num_device_alloc", stats.num_device_alloc),
        ("num_device_free", stats.num_device_free),
    ] {
        flat.insert(name.to_owned(), value);
    }
    flat
}

fn flat_stat(flat: &mut BTreeMap<String, i64>, name: &str, stat: Stat) {
    for (field, value) in
        [("current", stat.current), ("peak", stat.peak), ("allocated", stat.allocated), ("freed", stat.freed)]
    {
        flat.insert(format!("{name}.{field}"), value);
    }
}
