//! What `top` remembers between two readings.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::machine::{Gpu, Machine, Process};

/// Readings that the curve of a process goes back.
const HISTORY: usize = 240;

/// A process on a GPU.
pub(super) type Key = (String, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Order {
    #[default]
    Reserved,
    Allocated,
    Rate,
    Pid,
}

impl Order {
    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Reserved => "reserved",
            Order::Allocated => "allocated",
            Order::Rate => "allocations per second",
            Order::Pid => "pid",
        }
    }
}

/// What was seen of one process.
#[derive(Debug, Default)]
pub(super) struct Track {
    made: Option<(Instant, u64)>,
    /// Allocations per second.
    pub(super) rate: Option<f64>,
    /// Reserved bytes (of a process that does not export: what NVML says), oldest first.
    pub(super) reserved: VecDeque<u64>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) machine: Machine,
    pub(super) tracks: HashMap<Key, Track>,
    pub(super) selected: Option<Key>,
    pub(super) order: Order,
    pub(super) stopped: bool,
}

pub(super) fn key(gpu: &Gpu, process: &Process) -> Key {
    (gpu.uuid.clone().unwrap_or_else(|| format!("{} {} {}", gpu.index, gpu.name, gpu.simulated)), process.pid)
}

/// Bytes that the process holds, as well as is known.
fn held(process: &Process) -> u64 {
    process.gpucache.map_or(process.used_memory.unwrap_or(0), |figures| figures.reserved)
}

impl State {
    /// A new reading.
    pub(super) fn take(&mut self, machine: Machine, now: Instant) {
        self.machine = machine;
        let mut before = std::mem::take(&mut self.tracks);
        for (gpu, process) in
            self.machine.gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |p| (gpu, p)))
        {
            let key = key(gpu, process);
            let mut track = before.remove(&key).unwrap_or_default();
            track.add(process, now);
            self.tracks.insert(key, track);
        }
        if self.selected.as_ref().is_none_or(|key| !self.tracks.contains_key(key)) {
            self.selected = self.rows().first().map(|(gpu, process)| key(gpu, process));
        }
    }

    /// All processes in the chosen order.
    pub(super) fn rows(&self) -> Vec<(&Gpu, &Process)> {
        let mut rows: Vec<_> = self.machine.processes().collect();
        let allocated = |process: &Process| process.gpucache.map_or(0, |figures| figures.allocated);
        rows.sort_by(|(gpu_a, a), (gpu_b, b)| {
            let by = match self.order {
                Order::Reserved => held(b).cmp(&held(a)),
                Order::Allocated => allocated(b).cmp(&allocated(a)),
                Order::Rate => self.rate(gpu_b, b).total_cmp(&self.rate(gpu_a, a)),
                Order::Pid => std::cmp::Ordering::Equal,
            };
            by.then(a.pid.cmp(&b.pid)).then(gpu_a.index.cmp(&gpu_b.index))
        });
        rows
    }

    fn rate(&self, gpu: &Gpu, process: &Process) -> f64 {
        self.tracks.get(&key(gpu, process)).and_then(|track| track.rate).unwrap_or(-1.0)
    }

    /// Moves the selection by so many rows.
    pub(super) fn select(&mut self, by: isize) {
        let keys: Vec<Key> = self.rows().into_iter().map(|(gpu, process)| key(gpu, process)).collect();
        let at = keys.iter().position(|key| Some(key) == self.selected.as_ref()).unwrap_or(0);
        let at = at.saturating_add_signed(by).min(keys.len().saturating_sub(1));
        self.selected = keys.into_iter().nth(at);
    }

    pub(super) fn next_order(&mut self) {
        self.order = match self.order {
            Order::Reserved => Order::Allocated,
            Order::Allocated => Order::Rate,
            Order::Rate => Order::Pid,
            Order::Pid => Order::Reserved,
        };
    }
}

impl Track {
    fn add(&mut self, process: &Process, now: Instant) {
        if self.reserved.len() == HISTORY {
            self.reserved.pop_front();
        }
        self.reserved.push_back(held(process));
        let made = process.gpucache.map(|figures| (now, figures.allocations_made));
        if let (Some((then, before)), Some((now, after))) = (self.made, made) {
            let seconds = now.duration_since(then).as_secs_f64();
            // The sum starts anew with reset_accumulated_memory_stats.
            self.rate = (seconds > 0.0).then(|| after.saturating_sub(before) as f64 / seconds);
        }
        self.made = made;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machine::tests::{exported, machine};

    #[test]
    fn rates_come_from_two_readings() {
        let mut state = State::default();
        let start = Instant::now();
        let reading = |made| {
            let mut export = exported(7, 0);
            export.allocations_made = made;
            let mut machine = Machine::default();
            machine.join(&[export]);
            machine
        };
        let rate = |state: &State| state.tracks.values().next().and_then(|track| track.rate);
        state.take(reading(100), start);
        assert_eq!(rate(&state), None);
        state.take(reading(400), start + Duration::from_millis(500));
        assert_eq!(rate(&state), Some(600.0));
        state.take(reading(0), start + Duration::from_secs(1));
        assert_eq!(rate(&state), Some(0.0));
        for _ in 0..2 * HISTORY {
            state.take(reading(0), start);
        }
        assert_eq!(state.tracks.values().next().unwrap().reserved.len(), HISTORY);
        state.take(Machine::default(), start);
        assert!(state.tracks.is_empty() && state.selected.is_none());
    }

    #[test]
    fn selection_follows_its_process() {
        let mut state = State::default();
        state.take(machine(), Instant::now());
        let pids = |state: &State| state.rows().iter().map(|(_, process)| process.pid).collect::<Vec<_>>();
        let selected = |state: &State| state.selected.as_ref().map(|(_, pid)| *pid);
        assert_eq!((pids(&state), selected(&state)), (vec![9, 7], Some(9)));
        state.select(1);
        state.select(1);
        assert_eq!(selected(&state), Some(7));
        state.next_order();
        assert_eq!((pids(&state), selected(&state)), (vec![7, 9], Some(7)));
        state.select(-5);
        assert_eq!(selected(&state), Some(7));
        for _ in 0..3 {
            state.next_order();
        }
        assert_eq!(state.order, Order::Reserved);
    }
}
