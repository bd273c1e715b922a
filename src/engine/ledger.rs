//! What the device as a whole owns and has done: everything that moves only on slow paths.

use crate::observe::snapshot::PoolKind;
use crate::stats::{Stat, StatArray};

/// Its lock is never held over a driver call, and taken before any shard's.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Bytes obtained from the driver, of all pools [spec 0.3].
    pub(crate) total_reserved: u64,
    /// Fraction below 1 as it was set; the cap follows from it.
    pub(crate) allowed_max: Option<u64>,
    pub(crate) segment: StatArray,
    pub(crate) reserved_bytes: StatArray,
    pub(crate) oversize_segments: Stat,
    pub(crate) num_alloc_retries: i64,
    pub(crate) num_ooms: i64,
    /// Requests refused by `throw_on_cudamalloc_oom` [spec 22].
    pub(crate) num_oom_rejections: i64,
    pub(crate) num_sync_all_streams: i64,
    pub(crate) num_device_alloc: i64,
    pub(crate) num_device_free: i64,
}

fn change(stat: &mut Stat, by: i64) {
    stat.current += by;
    if by > 0 {
        stat.peak = stat.peak.max(stat.current);
        stat.allocated += by;
    } else {
        stat.freed -= by;
    }
}

fn change_array(array: &mut StatArray, kind: PoolKind, by: i64) {
    change(&mut array.all, by);
    match kind {
        PoolKind::Small => change(&mut array.small_pool, by),
        PoolKind::Large => change(&mut array.large_pool, by),
    }
}

impl Ledger {
    /// The driver gave an ordinary segment.
    pub(crate) fn segment_obtained(&mut self, kind: PoolKind, bytes: u64, max_split: u64) {
        self.total_reserved += bytes;
        change_array(&mut self.segment, kind, 1);
        change_array(&mut self.reserved_bytes, kind, bytes as i64);
        if bytes >= max_split {
            change(&mut self.oversize_segments, 1);
        }
        self.num_device_alloc += 1;
    }

    /// An ordinary segment went back.
    pub(crate) fn segment_released(&mut self, kind: PoolKind, bytes: u64, max_split: u64) {
        self.total_reserved -= bytes;
        change_array(&mut self.segment, kind, -1);
        change_array(&mut self.reserved_bytes, kind, -(bytes as i64));
        if bytes >= max_split {
            change(&mut self.oversize_segments, -1);
        }
        self.num_device_free += 1;
    }

    /// A range of an expandable reservation was mapped.
    pub(crate) fn range_mapped(&mut self, kind: PoolKind, bytes: u64) {
        self.total_reserved += bytes;
        change_array(&mut self.reserved_bytes, kind, bytes as i64);
        self.num_device_alloc += 1;
    }

    /// A range of an expandable reservation was unmapped.
    pub(crate) fn range_unmapped(&mut self, kind: PoolKind, bytes: u64) {
        self.total_reserved -= bytes;
        change_array(&mut self.reserved_bytes, kind, -(bytes as i64));
        self.num_device_free += 1;
    }

    fn stats(&mut self) -> impl Iterator<Item = &mut Stat> {
        let [a, b] = [&mut self.segment, &mut self.reserved_bytes]
            .map(|array| [&mut array.all, &mut array.large_pool, &mut array.small_pool]);
        a.into_iter().chain(b).chain(std::iter::once(&mut self.oversize_segments))
    }

    pub(crate) fn reset_peak(&mut self) {
        self.stats().for_each(|s| s.peak = s.current);
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.stats().for_each(|s| (s.allocated, s.freed) = (0, 0));
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_oom_rejections = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }
}
