//! How the 28 statistics are kept.

use std::time::Duration;

use parking_lot::Mutex;

use super::block::{CLASSES, class_of};
use crate::stats::{DurationStat, HostMemoryStats, Stat};

/// How a block came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// At once.
    Direct,
    /// When its events were done.
    AfterEvents,
}

#[derive(Debug, Default)]
struct Active {
    requests: Stat,
    bytes: Stat,
}

#[derive(Debug, Default)]
struct Owned {
    blocks: Stat,
    bytes: Stat,
    alloc_time: DurationStat,
    free_time: DurationStat,
}

/// The books of one allocator. Each lock is taken last and for a few instructions.
#[derive(Debug)]
pub(super) struct Counters {
    /// One lane, so that peaks are exact; under `mirror_defects` one per size class, as PyTorch keeps them.
    active: [Mutex<Active>; CLASSES],
    owned: Mutex<Owned>,
}

impl Default for Counters {
    fn default() -> Self {
        Counters { active: std::array::from_fn(|_| Mutex::default()), owned: Mutex::default() }
    }
}

impl Counters {
    fn lane(&self, size: u64, mirror: bool) -> &Mutex<Active> {
        &self.active[if mirror { class_of(size) } else { 0 }]
    }

    pub(super) fn handed_out(&self, size: u64, mirror: bool) {
        let mut active = self.lane(size, mirror).lock();
        rise(&mut active.requests, 1);
        rise(&mut active.bytes, size as i64);
    }

    /// PyTorch 2.11 forgets direct returns, and counts one byte up for the others [spec 23.1].
    pub(super) fn came_back(&self, size: u64, how: Return, mirror: bool) {
        if mirror && how == Return::Direct {
            return;
        }
        let mut active = self.lane(size, mirror).lock();
        fall(&mut active.requests, 1);
        fall(&mut active.bytes, if mirror { -1 } else { size as i64 });
    }

    pub(super) fn obtained(&self, size: u64) {
        let mut owned = self.owned.lock();
        rise(&mut owned.blocks, 1);
        rise(&mut owned.bytes, size as i64);
    }

    pub(super) fn released(&self, size: u64) {
        let mut owned = self.owned.lock();
        fall(&mut owned.blocks, 1);
        fall(&mut owned.bytes, size as i64);
    }

    pub(super) fn alloc_took(&self, time: Duration) {
        add(&mut self.owned.lock().alloc_time, time);
    }

    pub(super) fn free_took(&self, time: Duration) {
        add(&mut self.owned.lock().free_time, time);
    }

    pub(super) fn read(&self) -> HostMemoryStats {
        let mut stats = HostMemoryStats::default();
        for lane in &self.active {
            let active = lane.lock();
            sum(&mut stats.active_requests, &active.requests);
            sum(&mut stats.active_bytes, &active.bytes);
        }
        let owned = self.owned.lock();
        stats.allocations = owned.blocks;
        stats.allocated_bytes = owned.bytes;
        stats.host_alloc_time = owned.alloc_time;
        stats.host_free_time = owned.free_time;
        stats
    }

    pub(super) fn reset_peak(&self) {
        self.each(|stat| stat.peak = stat.current, |time| (time.min, time.max) = (0, 0));
    }

    pub(super) fn reset_accumulated(&self) {
        self.each(|stat| (stat.allocated, stat.freed) = (0, 0), |time| (time.total, time.count) = (0, 0));
    }

    fn each(&self, stat: impl Fn(&mut Stat), time: impl Fn(&mut DurationStat)) {
        for lane in &self.active {
            let mut active = lane.lock();
            stat(&mut active.requests);
            stat(&mut active.bytes);
        }
        let mut owned = self.owned.lock();
        stat(&mut owned.blocks);
        stat(&mut owned.bytes);
        time(&mut owned.alloc_time);
        time(&mut owned.free_time);
    }
}

fn rise(stat: &mut Stat, by: i64) {
    stat.current += by;
    stat.allocated += by;
    stat.peak = stat.peak.max(stat.current);
}

fn fall(stat: &mut Stat, by: i64) {
    stat.current -= by;
    stat.freed += by;
}

fn sum(total: &mut Stat, part: &Stat) {
    total.current += part.current;
    total.peak += part.peak;
    total.allocated += part.allocated;
    total.freed += part.freed;
}

fn add(stat: &mut DurationStat, time: Duration) {
    let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    stat.total = stat.total.saturating_add(micros);
    stat.count += 1;
    stat.max = stat.max.max(micros);
    if micros > 0 && (stat.min == 0 || micros < stat.min) {
        stat.min = micros;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let counters = Counters::default();
        for micros in [0, 7, 3, 8] {
            counters.alloc_took(Duration::from_micros(micros));
        }
        let time = counters.read().host_alloc_time;
        assert_eq!(time, DurationStat { total: 18, count: 4, min: 3, max: 8 });
        assert_eq!(time.avg(), 4);
        counters.reset_peak();
        assert_eq!(counters.read().host_alloc_time, DurationStat { total: 18, count: 4, min: 0, max: 0 });
        counters.reset_accumulated();
        assert_eq!(counters.read().host_alloc_time, DurationStat::default());
        assert_eq!(DurationStat::default().avg(), 0);
    }
}
