//! The 122 statistics [spec 9].

use std::collections::BTreeMap;

use super::rules::Kind;

/// Order of the arrays in [`Stats::arrays`].
pub(crate) const ARRAYS: [&str; 9] = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
];
const POOLS: [&str; 3] = ["all", "small_pool", "large_pool"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Array {
    Allocation,
    Segment,
    Active,
    InactiveSplit,
    AllocatedBytes,
    ReservedBytes,
    ActiveBytes,
    InactiveSplitBytes,
    RequestedBytes,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) current: i64,
    pub(crate) peak: i64,
    pub(crate) allocated: i64,
    pub(crate) freed: i64,
}

impl Stat {
    /// A change by `delta`; zero touches nothing.
    pub(crate) fn add(&mut self, delta: i64) {
        self.current += delta;
        self.peak = self.peak.max(self.current);
        if delta > 0 {
            self.allocated += delta;
        } else {
            self.freed -= delta;
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Stats {
    arrays: [[Stat; 3]; 9],
    pub(crate) oversize_allocations: Stat,
    pub(crate) oversize_segments: Stat,
    pub(crate) max_split_size: i64,
    pub(crate) num_alloc_retries: i64,
    pub(crate) num_ooms: i64,
    pub(crate) num_sync_all_streams: i64,
    pub(crate) num_device_alloc: i64,
    pub(crate) num_device_free: i64,
}

impl Stats {
    pub(crate) fn new(max_split_size: i64) -> Self {
        Stats { max_split_size, ..Stats::default() }
    }

    pub(crate) fn add(&mut self, array: Array, kind: Kind, delta: i64) {
        let stats = &mut self.arrays[array as usize];
        stats[0].add(delta);
        stats[if kind == Kind::Small { 1 } else { 2 }].add(delta);
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Stat> {
        self.arrays.iter_mut().flatten().chain([&mut self.oversize_allocations, &mut self.oversize_segments])
    }

    pub(crate) fn reset_peak(&mut self) {
        self.each().for_each(|s| s.peak = s.current);
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.each().for_each(|s| (s.allocated, s.freed) = (0, 0));
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }

    /// All 122 by PyTorch's flat names [spec 9.2].
    pub(crate) fn flat(&self) -> BTreeMap<String, i64> {
        let mut flat = BTreeMap::new();
        for (name, array) in ARRAYS.iter().zip(&self.arrays) {
            for (pool, stat) in POOLS.iter().zip(array) {
                flat_stat(&mut flat, &format!("{name}.{pool}"), stat);
            }
        }
        flat_stat(&mut flat, "oversize_allocations", &self.oversize_allocations);
        flat_stat(&mut flat, "oversize_segments", &self.oversize_segments);
        for (name, value) in [
            ("max_split_size", self.max_split_size),
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
        ] {
            flat.insert(name.to_owned(), value);
        }
        flat
    }
}

fn flat_stat(flat: &mut BTreeMap<String, i64>, name: &str, stat: &Stat) {
    for (field, value) in
        [("current", stat.current), ("peak", stat.peak), ("allocated", stat.allocated), ("freed", stat.freed)]
    {
        flat.insert(format!("{name}.{field}"), value);
    }
}
