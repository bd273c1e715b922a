//! Plays a request stream as fast as possible: what an allocator costs, and what its cache needs.

use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::error::TraceResult;
use super::gpu::{StreamControl, deferred_stream};
use super::header::Header;
use super::reader::{ObservationReader, RequestReader};
use super::request::Request;
use crate::Allocator;
use crate::device::Stream;
use crate::device::sim::SimDevice;
use crate::error::Error;
use crate::observe::history::TraceAction;
use crate::stats::MemoryStats;

/// One step, decoded beforehand: a replay should time the allocator, not the reader. `slot` is the number of an
/// allocation.
#[derive(Debug, Clone, Copy)]
enum Op {
    Alloc { size: u64, stream: u32 },
    Free { slot: u32 },
    DeferredFree { slot: u32 },
    Complete { slot: u32 },
}

/// The allocations and frees of a recording, ready to be played.
///
/// Other requests (`e`, `F`, `r`, pools, pinned memory, ...) are left out: they differ from allocator to allocator.
/// A delayed free (`D`) waits for its completion on a simulated GPU and is a plain free on a real one.
#[derive(Debug, Clone)]
pub struct Workload {
    header: Header,
    streams: Vec<Stream>,
    ops: Vec<Op>,
    allocations: usize,
    skipped: u64,
}

/// A pass that ended early: the request and the error (running out of memory is not one).
#[derive(Debug, Clone, thiserror::Error)]
#[error("step {step}: {error}")]
pub struct PlayError {
    /// Number of the allocation or free, from 0.
    pub step: usize,
    /// What the allocator answered.
    pub error: Error,
}

/// What a replay measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayReport {
    /// Name of the recording.
    pub case: String,
    /// Allocations and frees played in one pass.
    pub requests: u64,
    /// Requests of other kinds, left out.
    pub skipped: u64,
    /// Peaks of the first pass.
    #[serde(flatten)]
    pub peaks: PeakReport,
    /// The first pass, which fills an empty cache.
    pub first_pass: PassReport,
    /// The passes after it; `None` if there was only one.
    pub steady_state: Option<SteadyReport>,
}

/// How much memory was needed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PeakReport {
    /// Highest `allocated_bytes.all`.
    pub peak_allocated_bytes: i64,
    /// Highest `active_bytes.all`.
    pub peak_active_bytes: i64,
    /// Highest `reserved_bytes.all`.
    pub peak_reserved_bytes: i64,
    /// Peak active bytes / peak reserved bytes; 1 where nothing was reserved.
    pub utilisation: f64,
}

impl PeakReport {
    fn new(stats: &MemoryStats) -> Self {
        let (active, reserved) = (stats.active_bytes.all.peak, stats.reserved_bytes.all.peak);
        PeakReport {
            peak_allocated_bytes: stats.allocated_bytes.all.peak,
            peak_active_bytes: active,
            peak_reserved_bytes: reserved,
            utilisation: if reserved == 0 { 1.0 } else { active as f64 / reserved as f64 },
        }
    }
}

/// One pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PassReport {
    /// Time in nanoseconds.
    pub total_ns: u64,
    /// Time per request in nanoseconds.
    pub ns_per_request: u64,
    /// Driver allocations and frees (or mapped and unmapped ranges).
    pub driver_calls: i64,
    /// `num_alloc_retries`.
    pub retries: i64,
    /// `num_ooms`.
    pub out_of_memory_events: i64,
}

/// The passes after the first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SteadyReport {
    /// How many.
    pub passes: u64,
    /// Their peaks, with what earlier passes left in the cache.
    #[serde(flatten)]
    pub peaks: PeakReport,
    /// Median time per request in nanoseconds.
    pub median_ns_per_request: u64,
    /// Shortest time per request in nanoseconds.
    pub min_ns_per_request: u64,
    /// Driver allocations and frees per pass.
    pub driver_calls_per_pass: f64,
    /// `num_alloc_retries` of all these passes.
    pub retries: i64,
    /// `num_ooms` of all these passes.
    pub out_of_memory_events: i64,
}

impl Workload {
    /// Reads a `.req` file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path) -> TraceResult<Self> {
        let mut reader = RequestReader::open(path)?;
        let mut work = Workload::new(reader.header().clone());
        for request in &mut reader {
            work.add(&request?);
        }
        Ok(work)
    }

    /// A workload of requests that no file holds. What they refer to must exist, as in a recording.
    pub(super) fn from_requests(header: Header, requests: impl Iterator<Item = Request>) -> Self {
        let mut work = Workload::new(header);
        requests.for_each(|request| work.add(&request));
        work
    }

    fn new(header: Header) -> Self {
        let streams = header.stream_handles();
        Workload { header, streams, ops: Vec::new(), allocations: 0, skipped: 0 }
    }

    /// The addresses of all driver allocations in a recording's `.obs` file, in order.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn driver_addresses(obs: &Path) -> TraceResult<Vec<u64>> {
        let mut addresses = Vec::new();
        for observation in ObservationReader::open(obs)? {
            let events = observation?.events.into_iter();
            addresses.extend(events.filter(|e| e.action == TraceAction::SegmentAlloc).map(|e| e.address));
        }
        Ok(addresses)
    }

    fn add(&mut self, request: &Request) {
        let slot = |back: u64| (self.allocations as u64 - back) as u32;
        let op = match *request {
            Request::Alloc { size, stream } => {
                self.allocations += 1;
                Op::Alloc { size, stream }
            }
            Request::Free { back } | Request::FreeIfLive { back } => Op::Free { slot: slot(back) },
            Request::DeferredFree { back } => Op::DeferredFree { slot: slot(back) },
            Request::Complete { back } => Op::Complete { slot: slot(back) },
            Request::Iteration(_) => return,
            _ => {
                self.skipped += 1;
                return;
            }
        };
        self.ops.push(op);
    }

    /// Number of steps of one pass.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there is nothing to play.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Whether the allocations and frees are all that the program asked for. Then an allocator that behaves like
    /// the recorded one asks the driver for the same segments in the same order.
    pub fn is_whole(&self) -> bool {
        self.skipped == 0
    }

    /// Header of the recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Plays the workload `passes` times (at least once). Between passes everything still allocated is freed,
    /// untimed; between the first and the others the peaks are reset. `simulated` is the allocator's device, if it is a simulated one.
    ///
    /// # Errors
    /// The allocator failed for another reason than memory.
    pub fn play(
        &self,
        allocator: &Allocator,
        simulated: Option<&SimDevice>,
        passes: u64,
    ) -> Result<ReplayReport, PlayError> {
        let mut pass = self.pass(allocator, simulated);
        let before = allocator.memory_stats();
        let first_time = pass.run()?;
        let first = allocator.memory_stats();
        allocator.reset_peak_memory_stats();
        let mut times = Vec::new();
        for _ in 1..passes {
            times.push(pass.run()?);
        }
        Ok(self.report(&before, first_time, &first, times, &allocator.memory_stats()))
    }

    /// Plays the workload once and calls `look` while what the recording left allocated still is.
    ///
    /// # Errors
    /// As [`play`](Workload::play).
    pub fn play_and_look<R>(
        &self,
        allocator: &Allocator,
        simulated: Option<&SimDevice>,
        look: impl FnOnce() -> R,
    ) -> Result<R, PlayError> {
        let mut pass = self.pass(allocator, simulated);
        pass.steps()?;
        let seen = look();
        pass.clean_up()?;
        Ok(seen)
    }

    fn pass<'a>(&'a self, allocator: &'a Allocator, simulated: Option<&SimDevice>) -> Pass<'a> {
        let control = simulated.map_or(StreamControl::Real, |d| StreamControl::Simulated(d.clone()));
        Pass { work: self, allocator, control, addresses: vec![0; self.allocations] }
    }

    fn report(
        &self,
        before: &MemoryStats,
        first_time: Duration,
        first: &MemoryStats,
        mut times: Vec<Duration>,
        last: &MemoryStats,
    ) -> ReplayReport {
        let per_request = |time: Duration| time.as_nanos() as u64 / (self.ops.len() as u64).max(1);
        times.sort_unstable();
        let steady_state = times.first().map(|shortest| SteadyReport {
            passes: times.len() as u64,
            peaks: PeakReport::new(last),
            median_ns_per_request: per_request(times[times.len() / 2]),
            min_ns_per_request: per_request(*shortest),
            driver_calls_per_pass: driver_calls(first, last) as f64 / times.len() as f64,
            retries: last.num_alloc_retries - first.num_alloc_retries,
            out_of_memory_events: last.num_ooms - first.num_ooms,
        });
        ReplayReport {
            case: self.header.case.clone(),
            requests: self.ops.len() as u64,
            skipped: self.skipped,
            peaks: PeakReport::new(first),
            first_pass: PassReport {
                total_ns: first_time.as_nanos() as u64,
                ns_per_request: per_request(first_time),
                driver_calls: driver_calls(before, first),
                retries: first.num_alloc_retries - before.num_alloc_retries,
                out_of_memory_events: first.num_ooms - before.num_ooms,
            },
            steady_state,
        }
    }
}

fn driver_calls(from: &MemoryStats, to: &MemoryStats) -> i64 {
    (to.num_device_alloc - from.num_device_alloc) + (to.num_device_free - from.num_device_free)
}

/// The state of one pass; its memory is used again by the next.
struct Pass<'a> {
    work: &'a Workload,
    allocator: &'a Allocator,
    control: StreamControl,
    /// By slot; 0: not allocated.
    addresses: Vec<u64>,
}

impl Pass<'_> {
    fn run(&mut self) -> Result<Duration, PlayError> {
        let time = self.steps()?;
        self.clean_up()?;
        Ok(time)
    }

    fn steps(&mut self) -> Result<Duration, PlayError> {
        let mut deferred = HashMap::new();
        let mut next_slot = 0;
        let started = Instant::now();
        for (step, op) in self.work.ops.iter().enumerate() {
            let done = match *op {
                Op::Alloc { size, stream } => {
                    let slot = next_slot;
                    next_slot += 1;
                    self.alloc(slot, size, stream)
                }
                Op::Free { slot } => self.free(slot),
                Op::DeferredFree { slot } => self.deferred_free(slot, &mut deferred),
                Op::Complete { slot } => {
                    if let Some(stream) = deferred.remove(&slot) {
                        self.control.release(stream);
                    }
                    Ok(())
                }
            };
            done.map_err(|error| PlayError { step, error })?;
        }
        Ok(started.elapsed())
    }

    fn alloc(&mut self, slot: usize, size: u64, stream: u32) -> Result<(), Error> {
        let stream = self.work.streams.get(stream as usize).copied().unwrap_or_default();
        match self.allocator.alloc_raw(size as usize, stream) {
            Ok(address) => self.addresses[slot] = black_box(address),
            Err(error) if error.is_out_of_memory() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn free(&mut self, slot: u32) -> Result<(), Error> {
        match std::mem::take(&mut self.addresses[slot as usize]) {
            0 => Ok(()),
            address => self.allocator.free_raw(address),
        }
    }

    fn deferred_free(&mut self, slot: u32, deferred: &mut HashMap<u32, Stream>) -> Result<(), Error> {
        let address = self.addresses[slot as usize];
        if address != 0 && self.control.can_hold() {
            let stream = deferred_stream(u64::from(slot));
            self.control.hold(stream);
            deferred.insert(slot, stream);
            self.allocator.record_stream_raw(address, stream)?;
        }
        self.free(slot)
    }

    /// Frees what the recording left allocated, so that the next pass begins like this one.
    fn clean_up(&mut self) -> Result<(), PlayError> {
        self.control.release_all();
        let mut live = self.addresses.iter_mut().map(std::mem::take).filter(|address| *address != 0);
        live.try_for_each(|address| self.allocator.free_raw(address))
            .map_err(|error| PlayError { step: self.work.ops.len(), error })
    }
}
