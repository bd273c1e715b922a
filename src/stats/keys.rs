//! Names of the statistics, flat and nested [spec 9.2, 9.3].

use std::collections::BTreeMap;

use super::{MemoryStats, Stat, StatArray};

/// One node of the nested form of the statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nested {
    /// A number.
    Value(i64),
    /// Named entries in PyTorch's order.
    Group(Vec<(&'static str, Nested)>),
}

impl Stat {
    /// Its four numbers with their names, in the nested form's order.
    pub fn fields(&self) -> [(&'static str, i64); 4] {
        [("current", self.current), ("peak", self.peak), ("allocated", self.allocated), ("freed", self.freed)]
    }

    fn field_mut(&mut self, name: &str) -> Option<&mut i64> {
        match name {
            "current" => Some(&mut self.current),
            "peak" => Some(&mut self.peak),
            "allocated" => Some(&mut self.allocated),
            "freed" => Some(&mut self.freed),
            _ => None,
        }
    }

    pub(super) fn nested(&self) -> Nested {
        Nested::Group(self.fields().map(|(name, value)| (name, Nested::Value(value))).into())
    }
}

impl StatArray {
    /// Its three stats with their names, in the nested form's order.
    pub fn pools(&self) -> [(&'static str, &Stat); 3] {
        [("all", &self.all), ("small_pool", &self.small_pool), ("large_pool", &self.large_pool)]
    }

    fn pool_mut(&mut self, name: &str) -> Option<&mut Stat> {
        match name {
            "all" => Some(&mut self.all),
            "small_pool" => Some(&mut self.small_pool),
            "large_pool" => Some(&mut self.large_pool),
            _ => None,
        }
    }

    fn nested(&self) -> Nested {
        Nested::Group(self.pools().map(|(name, stat)| (name, stat.nested())).into())
    }
}

impl MemoryStats {
    /// The 9 statistics that are kept by kind of pool, with their names, in the nested form's order.
    pub fn arrays(&self) -> [(&'static str, &StatArray); 9] {
        [
            ("allocation", &self.allocation),
            ("segment", &self.segment),
            ("active", &self.active),
            ("inactive_split", &self.inactive_split),
            ("allocated_bytes", &self.allocated_bytes),
            ("reserved_bytes", &self.reserved_bytes),
            ("active_bytes", &self.active_bytes),
            ("inactive_split_bytes", &self.inactive_split_bytes),
            ("requested_bytes", &self.requested_bytes),
        ]
    }

    /// The 2 statistics that are not, with their names.
    pub fn oversize(&self) -> [(&'static str, &Stat); 2] {
        [("oversize_allocations", &self.oversize_allocations), ("oversize_segments", &self.oversize_segments)]
    }

    /// The 6 plain numbers with their names, in the nested form's order.
    pub fn plain(&self) -> [(&'static str, i64); 6] {
        [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("max_split_size", self.max_split_size),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
        ]
    }

    /// PyTorch's `memory_stats()`: 122 entries, sorted by key [spec 9.2].
    ///
    /// `num_oom_rejections` (PyTorch 2.12) is not among them; [`MemoryStats::get`] knows it.
    pub fn to_map(&self) -> BTreeMap<String, i64> {
        let mut map: BTreeMap<String, i64> =
            self.plain().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        for (name, stat) in self.oversize() {
            map.extend(stat.fields().map(|(field, value)| (format!("{name}.{field}"), value)));
        }
        for (name, array) in self.arrays() {
            for (pool, stat) in array.pools() {
                map.extend(stat.fields().map(|(field, value)| (format!("{name}.{pool}.{field}"), value)));
            }
        }
        map
    }

    /// PyTorch's `memory_stats_as_nested_dict()`, in its order [spec 9.3].
    pub fn to_nested(&self) -> Nested {
        let plain = self.plain().map(|(name, value)| (name, Nested::Value(value)));
        let arrays = self.arrays().map(|(name, array)| (name, array.nested()));
        let oversize = self.oversize().map(|(name, stat)| (name, stat.nested()));
        Nested::Group(plain.into_iter().chain(arrays).chain(oversize).collect())
    }

    /// One statistic by its flat key, `allocated_bytes.all.current` for example. `None`: no such key.
    pub fn get(&self, key: &str) -> Option<i64> {
        let mut copy = *self;
        copy.value_mut(key).copied()
    }

    /// Puts a value under a flat key, as a reader of recordings needs it. `false`: no such key.
    #[must_use]
    pub fn set(&mut self, key: &str, value: i64) -> bool {
        self.value_mut(key).map(|place| *place = value).is_some()
    }

    fn value_mut(&mut self, key: &str) -> Option<&mut i64> {
        let Some((name, rest)) = key.split_once('.') else { return self.plain_mut(key) };
        match name {
            "oversize_allocations" => self.oversize_allocations.field_mut(rest),
            "oversize_segments" => self.oversize_segments.field_mut(rest),
            _ => {
                let (pool, field) = rest.split_once('.')?;
                self.array_mut(name)?.pool_mut(pool)?.field_mut(field)
            }
        }
    }

    fn plain_mut(&mut self, name: &str) -> Option<&mut i64> {
        match name {
            "max_split_size" => Some(&mut self.max_split_size),
            "num_alloc_retries" => Some(&mut self.num_alloc_retries),
            "num_ooms" => Some(&mut self.num_ooms),
            "num_sync_all_streams" => Some(&mut self.num_sync_all_streams),
            "num_device_alloc" => Some(&mut self.num_device_alloc),
            "num_device_free" => Some(&mut self.num_device_free),
            "num_oom_rejections" => Some(&mut self.num_oom_rejections),
            _ => None,
        }
    }

    fn array_mut(&mut self, name: &str) -> Option<&mut StatArray> {
        match name {
            "allocation" => Some(&mut self.allocation),
            "segment" => Some(&mut self.segment),
            "active" => Some(&mut self.active),
            "inactive_split" => Some(&mut self.inactive_split),
            "allocated_bytes" => Some(&mut self.allocated_bytes),
            "reserved_bytes" => Some(&mut self.reserved_bytes),
            "active_bytes" => Some(&mut self.active_bytes),
            "inactive_split_bytes" => Some(&mut self.inactive_split_bytes),
            "requested_bytes" => Some(&mut self.requested_bytes),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_map_reads_and_writes_its_own_number() {
        let keys: Vec<String> = MemoryStats::default().to_map().into_keys().collect();
        assert_eq!(keys.len(), 122);
        let mut stats = MemoryStats::default();
        for (value, key) in keys.iter().enumerate() {
            assert!(stats.set(key, value as i64), "{key}");
        }
        for (value, key) in keys.iter().enumerate() {
            assert_eq!(stats.get(key), Some(value as i64), "{key}");
            assert_eq!(stats.to_map()[key], value as i64, "{key}");
        }
    }

    #[test]
    fn unknown_keys() {
        let mut stats = MemoryStats::default();
        for key in [
            "",
            "allocated.all.current",
            "segment",
            "segment.all",
            "segment.all.x",
            "num_ooms.current",
            "a.b.c",
        ] {
            assert_eq!(stats.get(key), None, "{key}");
            assert!(!stats.set(key, 1), "{key}");
        }
        assert_eq!(stats.get("num_oom_rejections"), Some(0));
    }

    #[test]
    fn nested_order() {
        let Nested::Group(top) = MemoryStats::default().to_nested() else { unreachable!() };
        let names: Vec<_> = top.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names.join(", "),
            "num_alloc_retries, num_ooms, max_split_size, num_sync_all_streams, num_device_alloc, \
             num_device_free, allocation, segment, active, inactive_split, allocated_bytes, reserved_bytes, \
             active_bytes, inactive_split_bytes, requested_bytes, oversize_allocations, oversize_segments"
        );
        let Nested::Group(pools) = &top[6].1 else { unreachable!() };
        assert_eq!(
            pools.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["all", "small_pool", "large_pool"]
        );
        let Nested::Group(fields) = &pools[0].1 else { unreachable!() };
        assert_eq!(
            fields.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["current", "peak", "allocated", "freed"]
        );
    }
}
