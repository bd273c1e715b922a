//! The history as trace events for Perfetto and `chrome://tracing` (the "Trace Event Format", JSON).
//!
//! A process per device. Threads: one for what concerns the whole device, then one per segment with a slice for the
//! segment's life and an instant for each allocation and free in it. Counters for the totals. The life of each block
//! is an async slice named after its call site, because blocks of one segment overlap in time and slices of a thread
//! must not.

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::encode::Encoder;
use super::file::SnapshotFile;
use super::history::{TraceAction, TraceEntry};
use super::inspect::site;
use super::timeline;
use crate::units::short_size;

/// Thread number of what concerns the whole device; segments follow.
const DEVICE_TRACK: usize = 0;

pub(crate) fn trace(file: &SnapshotFile, e: &mut impl Encoder) -> io::Result<()> {
    let start = file.device_traces.iter().filter_map(|t| t.first()).map(|t| t.time_us).min().unwrap_or(0);
    e.begin_dict()?;
    e.key_str("displayTimeUnit", "ms")?;
    e.key("otherData")?;
    e.begin_dict()?;
    e.key_str("producer", concat!("gpucache ", env!("CARGO_PKG_VERSION")))?;
    e.key_int("start_us_since_epoch", start)?;
    e.end_dict()?;
    e.key("traceEvents")?;
    e.begin_list()?;
    for device in file.devices() {
        Events { e, device, start }.write(file)?;
    }
    e.end_list()?;
    e.end_dict()
}

/// Writes one device's events.
struct Events<'a, E> {
    e: &'a mut E,
    device: u32,
    start: u64,
}

impl<E: Encoder> Events<'_, E> {
    fn write(&mut self, file: &SnapshotFile) -> io::Result<()> {
        let entries = file.trace(self.device);
        let lives = Lives::of(file, self.device);
        self.name("process_name", DEVICE_TRACK, &format!("GPU {}", self.device))?;
        self.name("thread_name", DEVICE_TRACK, "device")?;
        for (track, name) in lives.names.iter().zip(1..).map(|(n, i)| (i, n)) {
            self.name("thread_name", track, name)?;
        }
        for life in &lives.all {
            self.segment(life, self.time(entries.last().map_or(0, |t| t.time_us)))?;
        }
        self.counters(file)?;
        let mut here = lives.walk();
        let mut blocks = HashMap::new();
        for (id, entry) in entries.iter().enumerate() {
            self.instant(entry, here.step(entry))?;
            self.block(id, entry, &mut blocks)?;
        }
        Ok(())
    }

    fn time(&self, time_us: u64) -> u64 {
        time_us.saturating_sub(self.start)
    }

    /// Opens an event; the caller adds `args` and closes it.
    fn begin(&mut self, phase: &str, name: &str, track: usize, time: u64) -> io::Result<()> {
        self.e.begin_dict()?;
        self.e.key_str("ph", phase)?;
        self.e.key_str("name", name)?;
        self.e.key_int("pid", self.device)?;
        self.e.key_int("tid", track as u64)?;
        self.e.key_int("ts", time)
    }

    fn name(&mut self, what: &str, track: usize, name: &str) -> io::Result<()> {
        self.begin("M", what, track, 0)?;
        self.args(&[("name", name)])?;
        if what == "thread_name" {
            self.begin("M", "thread_sort_index", track, 0)?;
            self.e.key("args")?;
            self.e.begin_dict()?;
            self.e.key_int("sort_index", track as u64)?;
            self.e.end_dict()?;
            self.e.end_dict()?;
        }
        Ok(())
    }

    /// Adds texts for people and closes the event.
    fn args(&mut self, args: &[(&str, &str)]) -> io::Result<()> {
        self.e.key("args")?;
        self.e.begin_dict()?;
        for (key, value) in args {
            self.e.key_str(key, value)?;
        }
        self.e.end_dict()?;
        self.e.end_dict()
    }

    fn segment(&mut self, life: &Life, last: u64) -> io::Result<()> {
        let from = self.time(life.from);
        let until = life.until.map_or(last, |t| self.time(t));
        self.begin("X", &format!("segment {}", short_size(life.size)), life.track + 1, from)?;
        self.e.key_int("dur", until.saturating_sub(from))?;
        self.args(&[
            ("address", &format!("{:#x}", life.address)),
            ("bytes", &life.size.to_string()),
            ("stream", &format!("{:#x}", life.stream)),
        ])
    }

    fn counters(&mut self, file: &SnapshotFile) -> io::Result<()> {
        let mut before = [None; 3];
        for point in timeline::points(file, self.device) {
            let now = [point.allocated, point.active, point.reserved];
            for ((name, value), last) in
                ["allocated", "active", "reserved"].into_iter().zip(now).zip(&mut before)
            {
                if last.replace(value) == Some(value) {
                    continue;
                }
                self.begin("C", name, DEVICE_TRACK, self.time(point.time_us))?;
                self.e.key("args")?;
                self.e.begin_dict()?;
                self.e.key_int("bytes", value)?;
                self.e.end_dict()?;
                self.e.end_dict()?;
            }
        }
        Ok(())
    }

    fn instant(&mut self, entry: &TraceEntry, track: usize) -> io::Result<()> {
        self.begin("i", entry.action.name(), track, self.time(entry.time_us))?;
        self.e.key_str("s", "t")?;
        let address = if entry.action == TraceAction::Oom { "device_free" } else { "address" };
        self.args(&[
            (address, &format!("{:#x}", entry.addr)),
            ("bytes", &entry.size.to_string()),
            ("stream", &format!("{:#x}", entry.stream)),
            ("site", &site(&entry.frames)),
            ("user_metadata", &entry.user_metadata),
        ])
    }

    /// Begins or ends the async slice of a block's life. Only lives that begin in the history are shown.
    fn block(
        &mut self,
        id: usize,
        entry: &TraceEntry,
        live: &mut HashMap<u64, (usize, String)>,
    ) -> io::Result<()> {
        let (phase, id, name) = match entry.action {
            TraceAction::Alloc => {
                let name = site(&entry.frames);
                live.insert(entry.addr, (id, name.clone()));
                ("b", id, name)
            }
            TraceAction::FreeCompleted => match live.remove(&entry.addr) {
                Some((id, name)) => ("e", id, name),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        self.begin(phase, &name, DEVICE_TRACK, self.time(entry.time_us))?;
        self.e.key_str("cat", "block")?;
        self.e.key_int("id", id as u64)?;
        self.args(&[("address", &format!("{:#x}", entry.addr)), ("bytes", &entry.size.to_string())])
    }
}

/// One segment from the driver's allocation to its free.
struct Life {
    address: u64,
    size: u64,
    stream: u64,
    track: usize,
    from: u64,
    until: Option<u64>,
}

/// All segments that existed during a history. A segment that comes back with the same address and size uses the
/// same track; the mapped ranges of an expandable reservation are one life from the first entry to the last.
struct Lives {
    all: Vec<Life>,
    /// Lives that begin before the first entry, or last all along.
    at_start: Vec<usize>,
    /// Names of the tracks.
    names: Vec<String>,
}

impl Lives {
    fn of(file: &SnapshotFile, device: u32) -> Self {
        let entries = file.trace(device);
        let begin = entries.first().map_or(0, |t| t.time_us);
        let mut lives = Lives { all: Vec::new(), at_start: Vec::new(), names: Vec::new() };
        for (address, size, stream) in mapped_ranges(file, device) {
            lives.at_start.push(lives.all.len());
            lives.all.push(Life { address, size, stream, track: 0, from: begin, until: None });
        }
        let mut open: HashMap<u64, usize> = HashMap::new();
        for t in entries {
            let life = Life {
                address: t.addr,
                size: t.size,
                stream: t.stream,
                track: 0,
                from: t.time_us,
                until: None,
            };
            match t.action {
                TraceAction::SegmentAlloc => {
                    open.insert(t.addr, lives.all.len());
                    lives.all.push(life);
                }
                TraceAction::SegmentFree => {
                    if let Some(known) = open.remove(&t.addr) {
                        lives.all[known].until = Some(t.time_us);
                    } else {
                        lives.at_start.push(lives.all.len());
                        lives.all.push(Life { from: begin, until: Some(t.time_us), ..life });
                    }
                }
                _ => {}
            }
        }
        for s in file.segments_of(device).filter(|s| !s.is_expandable && !open.contains_key(&s.address)) {
            lives.at_start.push(lives.all.len());
            let (address, size, stream) = (s.address, s.total_size, s.stream);
            lives.all.push(Life { address, size, stream, track: 0, from: begin, until: None });
        }
        lives.give_tracks();
        lives
    }

    fn give_tracks(&mut self) {
        let mut tracks: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
        for (index, life) in self.all.iter().enumerate() {
            tracks.entry((life.address, life.size)).or_default().push(index);
        }
        for (track, ((address, size), members)) in tracks.into_iter().enumerate() {
            let stream = self.all[members[0]].stream;
            self.names.push(format!("segment {address:#x} {} stream {stream:#x}", short_size(size)));
            for index in members {
                self.all[index].track = track;
            }
        }
    }

    fn walk(&self) -> Walk<'_> {
        let open = self.at_start.iter().map(|&i| (self.all[i].address, i)).collect();
        // Those of `at_start` are not met again as `segment_alloc`; all others are, in the order of `all`.
        let mut later: Vec<bool> = vec![true; self.all.len()];
        for &i in &self.at_start {
            later[i] = false;
        }
        let next = (0..self.all.len()).filter(|&i| later[i]).collect::<Vec<_>>().into_iter();
        Walk { lives: self, open, next }
    }
}

/// Follows the history and knows which segment an address is in.
struct Walk<'a> {
    lives: &'a Lives,
    open: BTreeMap<u64, usize>,
    next: std::vec::IntoIter<usize>,
}

impl Walk<'_> {
    /// Takes the next entry in and answers which thread it belongs to.
    fn step(&mut self, entry: &TraceEntry) -> usize {
        if entry.action == TraceAction::SegmentAlloc {
            self.open.extend(self.next.next().map(|life| (entry.addr, life)));
        }
        let track = self.track(entry);
        if entry.action == TraceAction::SegmentFree {
            self.open.remove(&entry.addr);
        }
        track
    }

    fn track(&self, entry: &TraceEntry) -> usize {
        if matches!(entry.action, TraceAction::Oom | TraceAction::Snapshot) {
            return DEVICE_TRACK;
        }
        let below = self.open.range(..=entry.addr).next_back().map(|(_, &life)| &self.lives.all[life]);
        below.filter(|life| entry.addr - life.address < life.size).map_or(DEVICE_TRACK, |life| life.track + 1)
    }
}

/// Address, bytes and stream of every range that was ever mapped; ranges of one stream that touch are one.
fn mapped_ranges(file: &SnapshotFile, device: u32) -> Vec<(u64, u64, u64)> {
    let maps = file.trace(device).iter();
    let maps = maps.filter(|t| matches!(t.action, TraceAction::SegmentMap | TraceAction::SegmentUnmap));
    let segments = file.segments_of(device).filter(|s| s.is_expandable);
    let mut ranges: Vec<(u64, u64, u64)> = maps
        .map(|t| (t.addr, t.size, t.stream))
        .chain(segments.map(|s| (s.address, s.total_size, s.stream)))
        .collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64, u64)> = Vec::new();
    for (address, size, stream) in ranges {
        match merged.last_mut() {
            Some(last) if last.2 == stream && address <= last.0.saturating_add(last.1) => {
                last.1 = last.1.max(address.saturating_add(size) - last.0);
            }
            _ => merged.push((address, size, stream)),
        }
    }
    merged
}
