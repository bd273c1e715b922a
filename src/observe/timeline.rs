//! Memory over time, worked out from a history and the state at its end.

use std::collections::HashMap;

use super::file::SnapshotFile;
use super::history::{TraceAction, TraceEntry};
use super::snapshot::BlockState;

/// The totals after one event, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    /// Wall clock, microseconds since the epoch.
    pub time_us: u64,
    /// In clients' hands.
    pub allocated: u64,
    /// Allocated, or freed and still waiting for another stream.
    pub active: u64,
    /// Held from the driver.
    pub reserved: u64,
}

impl Point {
    /// The part of the reserved memory that no client has: 0 (none) to 1.
    pub fn fragmentation(&self) -> f64 {
        if self.reserved == 0 {
            0.0
        } else {
            self.reserved.saturating_sub(self.allocated) as f64 / self.reserved as f64
        }
    }
}

/// One device's totals before the first event (index 0) and after each event of its history.
///
/// A history has requested sizes only. Blocks that live at the end count with their true size, all others with the
/// request rounded up to 512 bytes, so that `allocated` and `active` may be a little low in between where options
/// round further or a block was not split. `reserved` is exact. A ring that has lost its oldest entries is no problem:
/// the sums are anchored at the end.
pub fn points(file: &SnapshotFile, device: u32) -> Vec<Point> {
    let trace = file.trace(device);
    let sizes = LiveSizes::at_end(file, device);
    let deltas = sizes.deltas(trace);
    let end = end_state(file, device);
    let sum = deltas.iter().fold(Delta::default(), Delta::plus);
    let mut now = Delta {
        allocated: (end.allocated as i64).wrapping_sub(sum.allocated),
        active: (end.active as i64).wrapping_sub(sum.active),
        reserved: (end.reserved as i64).wrapping_sub(sum.reserved),
    };
    let first_time = trace.first().map_or(0, |e| e.time_us);
    let mut points = Vec::with_capacity(trace.len() + 1);
    points.push(now.at(first_time));
    for (entry, delta) in trace.iter().zip(&deltas) {
        now = now.plus(delta);
        points.push(now.at(entry.time_us));
    }
    points
}

fn end_state(file: &SnapshotFile, device: u32) -> Point {
    file.segments_of(device).fold(Point::default(), |p, s| Point {
        allocated: p.allocated.saturating_add(s.allocated_size),
        active: p.active.saturating_add(s.active_size),
        reserved: p.reserved.saturating_add(s.total_size),
        ..p
    })
}

/// A change of the totals. Wrapping, because files may hold any number.
#[derive(Debug, Clone, Copy, Default)]
struct Delta {
    allocated: i64,
    active: i64,
    reserved: i64,
}

impl Delta {
    fn plus(self, other: &Delta) -> Delta {
        Delta {
            allocated: self.allocated.wrapping_add(other.allocated),
            active: self.active.wrapping_add(other.active),
            reserved: self.reserved.wrapping_add(other.reserved),
        }
    }

    fn at(self, time_us: u64) -> Point {
        Point {
            time_us,
            allocated: self.allocated.max(0) as u64,
            active: self.active.max(0) as u64,
            reserved: self.reserved.max(0) as u64,
        }
    }
}

/// True sizes of the blocks that live at the end, by address.
struct LiveSizes(HashMap<u64, u64>);

impl LiveSizes {
    fn at_end(file: &SnapshotFile, device: u32) -> Self {
        let blocks = file.segments_of(device).flat_map(|s| &s.blocks);
        LiveSizes(blocks.filter(|b| b.state != BlockState::Inactive).map(|b| (b.address, b.size)).collect())
    }

    /// Backwards, because only the last life of an address has the size that the end shows.
    fn deltas(mut self, trace: &[TraceEntry]) -> Vec<Delta> {
        let mut deltas = vec![Delta::default(); trace.len()];
        for (entry, delta) in trace.iter().zip(&mut deltas).rev() {
            let size = || self.0.get(&entry.addr).copied().unwrap_or(rounded(entry.size)) as i64;
            match entry.action {
                TraceAction::Alloc => {
                    let size = size();
                    *delta = Delta { allocated: size, active: size, reserved: 0 };
                    self.0.remove(&entry.addr);
                }
                TraceAction::FreeRequested => delta.allocated = size().wrapping_neg(),
                TraceAction::FreeCompleted => delta.active = size().wrapping_neg(),
                TraceAction::SegmentAlloc | TraceAction::SegmentMap => delta.reserved = entry.size as i64,
                TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                    delta.reserved = (entry.size as i64).wrapping_neg();
                }
                TraceAction::Snapshot | TraceAction::Oom => {}
            }
        }
        deltas
    }
}

fn rounded(requested: u64) -> u64 {
    requested.max(1).checked_next_multiple_of(512).unwrap_or(requested)
}
