//! From a history of addresses to a request stream, in which allocations have numbers.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::error::{ImportError, Position};
use crate::observe::file::SnapshotFile;
use crate::observe::history::{TraceAction, TraceEntry};
use crate::observe::snapshot::BlockState;
use crate::observe::timeline;
use crate::replay::{FORMAT, Header, Request, VERSION};
use crate::units::short_size;

const GIB: u64 = 1 << 30;
/// Handles that a recording's header can list.
const MOST_STREAMS: usize = 4096;

/// A request stream made from a foreign file.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The header for the stream.
    pub header: Header,
    /// The requests.
    pub requests: Vec<Request>,
    /// What had to be assumed, for people to read.
    pub notes: Vec<String>,
}

/// Turns one device's history into a request stream.
///
/// What lived before the history began is allocated first, as iteration -1. Frees that completed later than they were
/// requested become `D` and `C`. A run of segment frees becomes an `empty_cache`, unless the allocator may have made
/// room for a request with it. Histories of PyTorch 2.11 do not tell private pools apart: their requests are ordinary ones here.
///
/// `total_memory` is the device's memory in bytes. Without it: what the first out-of-memory entry says, else twice the
/// highest reserved memory.
///
/// # Errors
/// The device has no history, or uses too many streams.
pub fn requests(
    file: &SnapshotFile,
    device: u32,
    total_memory: Option<u64>,
) -> Result<Imported, ImportError> {
    let trace = file.trace(device);
    if trace.is_empty() {
        let what = "no history was recorded for this device: call torch.cuda.memory._record_memory_history() (or \
                    record_memory_history) before the work, and take the snapshot after it";
        return Err(ImportError::new(Position::Value(format!("device_traces[{device}]")), what));
    }
    let points = timeline::points(file, device);
    let mut recorder = Recorder::default();
    let known_total = total_memory.or_else(|| total_at_oom(trace, &points));
    let peak = points.iter().map(|p| p.reserved).max().unwrap_or(0);
    let collects = file.settings.garbage_collection_threshold > 0.0;
    let mut releases = Releases { run: None, holds: known_total.unwrap_or(peak), collects };
    for (index, entry) in trace.iter().enumerate() {
        if releases.ends_with(entry, points[index].reserved) {
            recorder.ops.push(Op::EmptyCache);
        }
        recorder.entry(entry, trace.get(index + 1));
    }
    if releases.run.is_some() {
        recorder.ops.push(Op::EmptyCache);
    }
    for segment in file.segments_of(device) {
        for block in segment.blocks.iter().filter(|b| b.state == BlockState::ActiveAllocated) {
            recorder.lives_at_end(block.address, block.requested_size, segment.stream);
        }
    }
    let mut notes = Vec::new();
    let total = total_memory.unwrap_or_else(|| {
        let twice = peak.saturating_mul(2).checked_next_multiple_of(GIB).unwrap_or(peak).max(GIB);
        let (total, why) = match known_total {
            Some(total) => (total, "reserved and free memory at the first out-of-memory entry"),
            None => (twice, "twice the highest reserved memory"),
        };
        notes.push(format!("device memory assumed: {} ({why})", short_size(total)));
        total
    });
    recorder.finish("snapshot", &file.settings.source, total, notes)
}

/// Tells an `empty_cache` from an allocation that makes room for itself; both are runs of segment frees.
struct Releases {
    /// Reserved bytes before the run of segment frees that is under way.
    run: Option<u64>,
    /// The device is known to hold this many bytes.
    holds: u64,
    /// Garbage collection frees segments before each new one.
    collects: bool,
}

impl Releases {
    /// Whether an `empty_cache` ends before `entry`. An allocation releases segments only when the driver has no room
    /// for another; where the segment would have fitted into what the device holds, it had.
    fn ends_with(&mut self, entry: &TraceEntry, reserved: u64) -> bool {
        match entry.action {
            TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                self.run.get_or_insert(reserved);
                false
            }
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                let fitted = |before: u64| before.saturating_add(entry.size) <= self.holds;
                self.run.take().is_some_and(fitted) && !self.collects
            }
            TraceAction::Oom => {
                self.run = None;
                false
            }
            TraceAction::Snapshot | TraceAction::FreeCompleted => false,
            TraceAction::Alloc | TraceAction::FreeRequested => self.run.take().is_some(),
        }
    }
}

/// The device's memory, as far as this process can have it: what it had and what was free when a request failed.
fn total_at_oom(trace: &[TraceEntry], points: &[timeline::Point]) -> Option<u64> {
    let mut after = trace.iter().zip(points.iter().skip(1));
    let (entry, point) = after.find(|(entry, _)| entry.action == TraceAction::Oom)?;
    Some(entry.addr.saturating_add(point.reserved))
}

/// A request that names its allocation by an index into `Recorder::allocations`.
#[derive(Debug, Clone, Copy)]
enum Op {
    Alloc(usize),
    Failed(usize),
    Free(usize),
    Defer(usize),
    Complete(usize),
    EmptyCache,
}

/// What an address holds.
#[derive(Debug, Clone, Copy)]
enum Held {
    Live(usize),
    /// Freed, and the completion has not come yet.
    Pending(usize),
}

/// Collects what happened, then numbers it.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// Size and stream (raw handle) of each.
    allocations: Vec<(u64, u64)>,
    /// Those that lived before the first entry.
    before: Vec<usize>,
    ops: Vec<Op>,
    held: HashMap<u64, Held>,
    /// Allocations at an address whose free is missing.
    lost_frees: usize,
}

impl Recorder {
    fn entry(&mut self, entry: &TraceEntry, next: Option<&TraceEntry>) {
        let TraceEntry { addr, size, stream, .. } = *entry;
        match entry.action {
            TraceAction::Alloc => self.alloc(addr, size, stream),
            TraceAction::Oom => self.failed(size, stream),
            TraceAction::FreeRequested => {
                let done = next.is_some_and(|n| n.action == TraceAction::FreeCompleted && n.addr == addr);
                if done { self.free(addr, size, stream) } else { self.defer(addr, size, stream) }
            }
            TraceAction::FreeCompleted => self.complete(addr, size, stream),
            _ => {}
        }
    }

    fn new_allocation(&mut self, size: u64, stream: u64) -> usize {
        self.allocations.push((size, stream));
        self.allocations.len() - 1
    }

    pub(super) fn alloc(&mut self, address: u64, size: u64, stream: u64) {
        let id = self.new_allocation(size, stream);
        match self.held.insert(address, Held::Live(id)) {
            Some(Held::Live(old)) => {
                self.lost_frees += 1;
                self.ops.push(Op::Free(old));
            }
            Some(Held::Pending(old)) => self.ops.push(Op::Complete(old)),
            None => {}
        }
        self.ops.push(Op::Alloc(id));
    }

    pub(super) fn failed(&mut self, size: u64, stream: u64) {
        let id = self.new_allocation(size, stream);
        self.ops.push(Op::Failed(id));
    }

    /// Whether the address holds a live allocation.
    pub(super) fn is_live(&self, address: u64) -> bool {
        matches!(self.held.get(&address), Some(Held::Live(_)))
    }

    pub(super) fn free(&mut self, address: u64, size: u64, stream: u64) {
        let id = self.take(address, size, stream);
        self.ops.push(Op::Free(id));
    }

    fn defer(&mut self, address: u64, size: u64, stream: u64) {
        let id = self.take(address, size, stream);
        self.held.insert(address, Held::Pending(id));
        self.ops.push(Op::Defer(id));
    }

    fn complete(&mut self, address: u64, size: u64, stream: u64) {
        match self.held.get(&address) {
            Some(&Held::Pending(id)) => {
                self.held.remove(&address);
                self.ops.push(Op::Complete(id));
            }
            // The request was not recorded (`skip_actions`).
            Some(Held::Live(_)) => self.free(address, size, stream),
            // The second half of a free that was taken as a whole, or of one before the history.
            None => {}
        }
    }

    /// The live allocation at an address; if none is known, it lived before the first entry.
    fn take(&mut self, address: u64, size: u64, stream: u64) -> usize {
        match self.held.remove(&address) {
            Some(Held::Live(id) | Held::Pending(id)) => id,
            None => {
                let id = self.new_allocation(size, stream);
                self.before.push(id);
                id
            }
        }
    }

    fn lives_at_end(&mut self, address: u64, size: u64, stream: u64) {
        if !self.is_live(address) {
            let id = self.new_allocation(size, stream);
            self.before.push(id);
        }
    }

    pub(super) fn finish(
        self,
        source: &str,
        alloc_conf: &str,
        total_memory: u64,
        mut notes: Vec<String>,
    ) -> Result<Imported, ImportError> {
        let mut streams = Streams::default();
        let requests = self.number(&mut streams)?;
        if !self.before.is_empty() {
            notes.push(format!("{} allocations lived before the history and come first", self.before.len()));
        }
        if self.lost_frees > 0 {
            notes.push(format!("{} frees are missing in the history and were added", self.lost_frees));
        }
        Ok(Imported {
            header: header(source, alloc_conf, total_memory, &streams, requests.len()),
            requests,
            notes,
        })
    }

    fn number(&self, streams: &mut Streams) -> Result<Vec<Request>, ImportError> {
        let mut out = Vec::with_capacity(self.before.len() + self.ops.len() + 3);
        let mut numbers = vec![0; self.allocations.len()];
        let mut count: u64 = 0;
        out.push(Request::Iteration(-1));
        let first = self.before.iter().map(|&id| Op::Alloc(id));
        for (index, op) in first.chain(self.ops.iter().copied()).enumerate() {
            if index == self.before.len() {
                out.push(Request::Iteration(0));
            }
            match op {
                Op::Alloc(id) | Op::Failed(id) => {
                    let (size, stream) = self.allocations[id];
                    out.push(Request::Alloc { size, stream: streams.index(stream)? });
                    numbers[id] = count;
                    count += 1;
                    if matches!(op, Op::Failed(_)) {
                        out.push(Request::FreeIfLive { back: 1 });
                    }
                }
                Op::Free(id) => out.push(Request::Free { back: count - numbers[id] }),
                Op::Defer(id) => out.push(Request::DeferredFree { back: count - numbers[id] }),
                Op::Complete(id) => out.push(Request::Complete { back: count - numbers[id] }),
                Op::EmptyCache => out.push(Request::EmptyCache),
            }
        }
        out.push(Request::Iteration(1));
        Ok(out)
    }
}

/// Raw handles in the order of their first use; the default stream is always the first.
#[derive(Debug)]
struct Streams {
    handles: Vec<u64>,
    known: HashMap<u64, u32>,
}

impl Default for Streams {
    fn default() -> Self {
        Streams { handles: vec![0], known: HashMap::from([(0, 0)]) }
    }
}

impl Streams {
    fn index(&mut self, handle: u64) -> Result<u32, ImportError> {
        if let Some(&index) = self.known.get(&handle) {
            return Ok(index);
        }
        if self.handles.len() == MOST_STREAMS {
            let what = format!("more than {MOST_STREAMS} different streams are not supported");
            return Err(ImportError::new(Position::File, what));
        }
        let index = self.handles.len() as u32;
        self.handles.push(handle);
        self.known.insert(handle, index);
        Ok(index)
    }
}

fn header(source: &str, alloc_conf: &str, total_memory: u64, streams: &Streams, requests: usize) -> Header {
    let extra = match json!({ "imported_from": source }) {
        Value::Object(extra) => extra,
        _ => Map::new(),
    };
    Header {
        format: FORMAT.into(),
        version: VERSION,
        case: source.into(),
        kind: "import".into(),
        config: if alloc_conf.is_empty() { "default".into() } else { "recorded".into() },
        alloc_conf: alloc_conf.into(),
        total_memory,
        fraction: None,
        allowed_bytes: None,
        streams: streams.handles.len() as u32,
        stream_ptrs: streams.handles.iter().map(|h| format!("{h:x}")).collect(),
        requests: requests as u64,
        part: Some("req".into()),
        row: Vec::new(),
        row0: Vec::new(),
        full: Vec::new(),
        events: None,
        extra,
    }
}
