//! The history of events: fixed-size entries in preallocated rings, one ring per shard and one for the device.

use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::observe::history::{Frames, TraceAction, TraceEntry};

thread_local! {
    static METADATA: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Sets the calling thread's metadata string, which later entries of this thread carry.
pub(crate) fn set_metadata(text: Option<&str>) {
    METADATA.with(|m| *m.borrow_mut() = text.filter(|t| !t.is_empty()).map(Arc::from));
}

pub(crate) fn metadata() -> Option<Arc<str>> {
    METADATA.with(|m| m.borrow().clone())
}

type Site = Option<&'static Location<'static>>;

#[derive(Debug, Clone)]
struct Entry {
    /// Position in the device's order of events.
    sequence: u64,
    time_us: u64,
    addr: u64,
    size: u64,
    site: Site,
    metadata: Option<Arc<str>>,
    action: TraceAction,
}

/// Order of events over all rings of a device.
#[derive(Debug, Default)]
pub(crate) struct Sequence(AtomicU64);

/// A ring of entries; when full, the oldest goes.
#[derive(Debug)]
pub(crate) struct Ring {
    entries: Vec<Entry>,
    capacity: usize,
    next: usize,
    sequence: Arc<Sequence>,
}

impl Ring {
    pub(crate) fn new(capacity: usize, sequence: Arc<Sequence>) -> Self {
        let capacity = capacity.max(1);
        // Memory for a very long history is taken as it fills.
        Ring { entries: Vec::with_capacity(capacity.min(1 << 16)), capacity, next: 0, sequence }
    }

    pub(crate) fn push(&mut self, action: TraceAction, addr: u64, size: u64, site: Site) {
        let entry = Entry {
            sequence: self.sequence.0.fetch_add(1, Ordering::Relaxed),
            time_us: now_us(),
            addr,
            size,
            site,
            metadata: metadata(),
            action,
        };
        if self.entries.len() < self.capacity {
            self.entries.push(entry);
        } else {
            self.entries[self.next] = entry;
            self.next = (self.next + 1) % self.capacity;
        }
    }

    /// All entries with their place in the device's order; `stream` is that of the ring.
    pub(crate) fn read(&self, stream: u64, into: &mut Vec<(u64, TraceEntry)>) {
        let empty: Arc<str> = Arc::from("");
        into.extend(self.entries.iter().map(|e| {
            let entry = TraceEntry {
                action: e.action,
                addr: e.addr,
                size: e.size,
                stream,
                time_us: e.time_us,
                user_metadata: e.metadata.clone().unwrap_or_else(|| empty.clone()),
                frames: e.site.map_or(Frames::None, Frames::Site),
            };
            (e.sequence, entry)
        }));
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.next = 0;
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
}
