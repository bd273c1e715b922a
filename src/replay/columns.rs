//! Statistics by the names that recordings give their columns [spec 9.2].

use crate::stats::{MemoryStats, Stat, StatArray};

/// One statistic, found by its flat name once and read often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Array(Array, Pool, Field),
    Oversize(Oversize, Field),
    Plain(Plain),
}

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pool {
    All,
    Large,
    Small,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Current,
    Peak,
    Allocated,
    Freed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Oversize {
    Allocations,
    Segments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plain {
    MaxSplitSize,
    AllocRetries,
    Ooms,
    SyncAllStreams,
    DeviceAlloc,
    DeviceFree,
}

impl Column {
    /// The statistic called `name`; `None` if there is no such one.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let (first, second, third) = (parts.next()?, parts.next(), parts.next());
        if parts.next().is_some() {
            return None;
        }
        match (second, third) {
            (None, None) => plain(first).map(Column::Plain),
            (Some(f), None) => Some(Column::Oversize(oversize(first)?, field(f)?)),
            (Some(p), Some(f)) => Some(Column::Array(array(first)?, pool(p)?, field(f)?)),
            (None, Some(_)) => None,
        }
    }

    /// Its value.
    pub(crate) fn value(self, stats: &MemoryStats) -> i64 {
        match self {
            Column::Array(a, p, f) => f.of(p.of(a.of(stats))),
            Column::Oversize(Oversize::Allocations, f) => f.of(&stats.oversize_allocations),
            Column::Oversize(Oversize::Segments, f) => f.of(&stats.oversize_segments),
            Column::Plain(Plain::MaxSplitSize) => stats.max_split_size,
            Column::Plain(Plain::AllocRetries) => stats.num_alloc_retries,
            Column::Plain(Plain::Ooms) => stats.num_ooms,
            Column::Plain(Plain::SyncAllStreams) => stats.num_sync_all_streams,
            Column::Plain(Plain::DeviceAlloc) => stats.num_device_alloc,
            Column::Plain(Plain::DeviceFree) => stats.num_device_free,
        }
    }
}

fn array(name: &str) -> Option<Array> {
    Some(match name {
        "allocation" => Array::Allocation,
        "segment" => Array::Segment,
        "active" => Array::Active,
        "inactive_split" => Array::InactiveSplit,
        "allocated_bytes" => Array::AllocatedBytes,
        "reserved_bytes" => Array::ReservedBytes,
        "active_bytes" => Array::ActiveBytes,
        "inactive_split_bytes" => Array::InactiveSplitBytes,
        "requested_bytes" => Array::RequestedBytes,
        _ => return None,
    })
}

fn pool(name: &str) -> Option<Pool> {
    Some(match name {
        "all" => Pool::All,
        "large_pool" => Pool::Large,
        "small_pool" => Pool::Small,
        _ => return None,
    })
}

fn field(name: &str) -> Option<Field> {
    Some(match name {
        "current" => Field::Current,
        "peak" => Field::Peak,
        "allocated" => Field::Allocated,
        "freed" => Field::Freed,
        _ => return None,
    })
}

fn oversize(name: &str) -> Option<Oversize> {
    Some(match name {
        "oversize_allocations" => Oversize::Allocations,
        "oversize_segments" => Oversize::Segments,
        _ => return None,
    })
}

fn plain(name: &str) -> Option<Plain> {
    Some(match name {
        "max_split_size" => Plain::MaxSplitSize,
        "num_alloc_retries" => Plain::AllocRetries,
        "num_ooms" => Plain::Ooms,
        "num_sync_all_streams" => Plain::SyncAllStreams,
        "num_device_alloc" => Plain::DeviceAlloc,
        "num_device_free" => Plain::DeviceFree,
        _ => return None,
    })
}

impl Array {
    fn of(self, stats: &MemoryStats) -> &StatArray {
        match self {
            Array::Allocation => &stats.allocation,
            Array::Segment => &stats.segment,
            Array::Active => &stats.active,
            Array::InactiveSplit => &stats.inactive_split,
            Array::AllocatedBytes => &stats.allocated_bytes,
            Array::ReservedBytes => &stats.reserved_bytes,
            Array::ActiveBytes => &stats.active_bytes,
            Array::InactiveSplitBytes => &stats.inactive_split_bytes,
            Array::RequestedBytes => &stats.requested_bytes,
        }
    }
}

impl Pool {
    fn of(self, array: &StatArray) -> &Stat {
        match self {
            Pool::All => &array.all,
            Pool::Large => &array.large_pool,
            Pool::Small => &array.small_pool,
        }
    }
}

impl Field {
    fn of(self, stat: &Stat) -> i64 {
        match self {
            Field::Current => stat.current,
            Field::Peak => stat.peak,
            Field::Allocated => stat.allocated,
            Field::Freed => stat.freed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_their_values() {
        let mut stats = MemoryStats::default();
        stats.inactive_split_bytes.small_pool.freed = 3;
        stats.oversize_segments.peak = 5;
        stats.num_device_free = 7;
        for (name, value) in [
            ("inactive_split_bytes.small_pool.freed", 3),
            ("oversize_segments.peak", 5),
            ("num_device_free", 7),
        ] {
            assert_eq!(Column::parse(name).map(|c| c.value(&stats)), Some(value), "{name}");
        }
        for name in
            ["", "allocation", "allocation.all", "allocation.all.current.more", "num_ooms.peak", "x.all.peak"]
        {
            assert_eq!(Column::parse(name), None, "{name}");
        }
    }
}
