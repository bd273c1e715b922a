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

/// What an entry stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Recorded {
    One(TraceAction),
    /// `free_requested` and `free_completed` in one: the usual free.
    Free,
}

#[derive(Debug, Clone)]
struct Entry {
    /// Position in the device's order of events.
    sequence: u64,
    /// See [`ticks`].
    ticks: u64,
    addr: u64,
    size: u64,
    site: Site,
    metadata: Option<Arc<str>>,
    what: Recorded,
}

/// Order of events over all rings of a device, and the clock that their times are read from.
#[derive(Debug)]
pub(crate) struct Sequence {
    next: AtomicU64,
    /// One moment by both clocks.
    start: (u64, u64),
}

impl Default for Sequence {
    fn default() -> Self {
        Sequence { next: AtomicU64::new(0), start: (ticks(), now_us()) }
    }
}

impl Sequence {
    /// `alone`: nobody else can take a number meanwhile, because the caller holds the lock of the only shard.
    #[inline]
    fn next(&self, alone: bool) -> u64 {
        if !alone {
            return self.next.fetch_add(1, Ordering::Relaxed);
        }
        let number = self.next.load(Ordering::Relaxed);
        self.next.store(number + 1, Ordering::Relaxed);
        number
    }

    /// From the cheap clock to microseconds since the epoch, by the two clocks' pace since the start.
    fn wall_clock(&self) -> impl Fn(u64) -> u64 {
        let (ticks0, us0) = self.start;
        let (ran, passed) = (ticks().saturating_sub(ticks0).max(1), now_us().saturating_sub(us0));
        move |t| us0 + (u128::from(t.saturating_sub(ticks0)) * u128::from(passed) / u128::from(ran)) as u64
    }
}

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
        // Pages that no entry has reached yet cost nothing; beyond this the memory is taken as it fills.
        Ring { entries: Vec::with_capacity(capacity.min(1 << 22)), capacity, next: 0, sequence }
    }

    /// `alone`: see [`Sequence::next`].
    #[inline]
    pub(crate) fn push(&mut self, what: Recorded, addr: u64, size: u64, site: Site, alone: bool) {
        let sequence = self.sequence.next(alone);
        let entry = Entry { sequence, ticks: ticks(), addr, size, site, metadata: metadata(), what };
        if self.entries.len() < self.capacity {
            self.entries.push(entry);
            return;
        }
        self.entries[self.next] = entry;
        self.next += 1;
        if self.next == self.capacity {
            self.next = 0;
        }
    }

    /// All entries with their place in the device's order; `stream` is that of the ring.
    pub(crate) fn read(&self, stream: u64, into: &mut Vec<(u64, TraceEntry)>) {
        let empty: Arc<str> = Arc::from("");
        let wall_clock = self.sequence.wall_clock();
        for e in &self.entries {
            let actions: &[TraceAction] = match &e.what {
                Recorded::One(action) => std::slice::from_ref(action),
                Recorded::Free => &[TraceAction::FreeRequested, TraceAction::FreeCompleted],
            };
            for &action in actions {
                let entry = TraceEntry {
                    action,
                    addr: e.addr,
                    size: e.size,
                    stream,
                    time_us: wall_clock(e.ticks),
                    user_metadata: e.metadata.clone().unwrap_or_else(|| empty.clone()),
                    frames: e.site.map_or(Frames::None, Frames::Site),
                };
                into.push((e.sequence, entry));
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.next = 0;
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
}

/// A clock that costs less than a system call's shortcut: the processor's time stamp counter where there is one.
#[inline]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction exists on every x86-64 processor, reads a counter and touches nothing else.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    now_us()
}
