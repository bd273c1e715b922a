//! The 28 statistics of pinned host memory [spec 17.5].

use std::collections::BTreeMap;

use super::{Nested, Stat};

/// How long calls of one kind took, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DurationStat {
    /// Sum since the last `reset_accumulated_host_memory_stats`.
    pub total: i64,
    /// Calls since then.
    pub count: i64,
    /// Shortest call above 0 since the last `reset_peak_host_memory_stats`; 0: there was none.
    pub min: i64,
    /// Longest call since then.
    pub max: i64,
}

impl DurationStat {
    /// Mean of a call, rounded down; 0 without calls.
    pub fn avg(&self) -> i64 {
        self.total.checked_div(self.count).unwrap_or(0)
    }

    fn fields(&self) -> [(&'static str, i64); 5] {
        [
            ("total", self.total),
            ("max", self.max),
            ("min", self.min),
            ("count", self.count),
            ("avg", self.avg()),
        ]
    }
}

/// All statistics of a pinned host memory allocator. Byte counts are rounded sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HostMemoryStats {
    /// Blocks owned: handed out, waiting for events, or cached.
    pub allocations: Stat,
    /// Blocks handed out, those included that wait for events.
    pub active_requests: Stat,
    /// Bytes of the blocks owned.
    pub allocated_bytes: Stat,
    /// Bytes of the blocks handed out.
    pub active_bytes: Stat,
    /// Obtaining memory from the system.
    pub host_alloc_time: DurationStat,
    /// Returning memory to the system.
    pub host_free_time: DurationStat,
}

impl HostMemoryStats {
    /// Blocks obtained since the last `reset_accumulated_host_memory_stats`.
    pub fn num_host_alloc(&self) -> i64 {
        self.allocations.allocated
    }

    /// Blocks returned since then.
    pub fn num_host_free(&self) -> i64 {
        self.allocations.freed
    }

    /// The 4 statistics with current and peak, by name, in the nested form's order.
    pub fn stats(&self) -> [(&'static str, &Stat); 4] {
        [
            ("allocations", &self.allocations),
            ("active_requests", &self.active_requests),
            ("allocated_bytes", &self.allocated_bytes),
            ("active_bytes", &self.active_bytes),
        ]
    }

    fn durations(&self) -> [(&'static str, &DurationStat); 2] {
        [("host_alloc_time", &self.host_alloc_time), ("host_free_time", &self.host_free_time)]
    }

    fn plain(&self) -> [(&'static str, i64); 2] {
        [("num_host_alloc", self.num_host_alloc()), ("num_host_free", self.num_host_free())]
    }

    /// PyTorch's `host_memory_stats()`: 28 entries, sorted by key.
    pub fn to_map(&self) -> BTreeMap<String, i64> {
        let plain = self.plain().map(|(name, value)| (name.to_owned(), value));
        let stats =
            self.stats().map(|(name, stat)| stat.fields().map(|(f, value)| (format!("{name}.{f}"), value)));
        let durations = self
            .durations()
            .map(|(name, stat)| stat.fields().map(|(f, value)| (format!("{name}.{f}"), value)));
        plain.into_iter().chain(stats.into_iter().flatten()).chain(durations.into_iter().flatten()).collect()
    }

    /// PyTorch's `host_memory_stats_as_nested_dict()`.
    pub fn to_nested(&self) -> Nested {
        let plain = self.plain().map(|(name, value)| (name, Nested::Value(value)));
        let stats = self.stats().map(|(name, stat)| (name, stat.nested()));
        let durations = self.durations().map(|(name, stat)| {
            (name, Nested::Group(stat.fields().map(|(field, value)| (field, Nested::Value(value))).into()))
        });
        Nested::Group(plain.into_iter().chain(stats).chain(durations).collect())
    }
}
