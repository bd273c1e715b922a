//! What tests ask of the fake driver; no real one has these.

use std::ffi::{CStr, c_char};

use crate::books::{Books, Fault, Kind};
use crate::with_books;

/// What is alive, and what went wrong.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Allocations of `cuMemAlloc`, `cuMemAllocAsync` and `cuMemAllocManaged`.
    pub allocations: u64,
    pub allocated_bytes: u64,
    /// Page-locked or registered host ranges.
    pub host_ranges: u64,
    /// Memory of other processes.
    pub opened: u64,
    pub reservations: u64,
    pub mappings: u64,
    /// Physical memory, held or mapped.
    pub physical: u64,
    pub events: u64,
    /// Without the default ones.
    pub streams: u64,
    pub contexts: u64,
    pub violations: u64,
    /// Calls of any function.
    pub calls: u64,
}

impl Report {
    fn of(books: &Books) -> Self {
        let count =
            |kinds: &[Kind]| books.regions.values().filter(|region| kinds.contains(&region.kind)).count();
        let allocated =
            books.regions.values().filter(|region| matches!(region.kind, Kind::Device | Kind::Managed));
        Report {
            allocations: count(&[Kind::Device, Kind::Managed]) as u64,
            allocated_bytes: allocated.map(|region| region.bytes as u64).sum(),
            host_ranges: count(&[Kind::Host, Kind::Registered]) as u64,
            opened: count(&[Kind::Opened]) as u64,
            reservations: books.reservations.len() as u64,
            mappings: books.mappings.len() as u64,
            physical: books.physical.len() as u64,
            events: books.events.len() as u64,
            streams: books.streams.values().filter(|stream| !stream.is_default).count() as u64,
            contexts: books.contexts.len() as u64,
            violations: books.violations.len() as u64,
            calls: books.calls.values().sum(),
        }
    }

    fn leaks(&self) -> bool {
        self.allocations + self.host_ranges + self.opened + self.reservations + self.physical + self.events
            > 0
    }
}

fn text<'a>(name: *const c_char) -> &'a str {
    if name.is_null() {
        return "";
    }
    // SAFETY: the functions below ask for null or a C string that lives through the call.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("")
}

/// Writes the state of the books.
///
/// # Safety
///
/// `report` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_report(report: *mut Report) {
    let state = with_books(|books| Report::of(books));
    // SAFETY: the caller's promise.
    unsafe { report.write(state) };
}

/// Writes the violations, one a line, cut to `capacity` bytes; returns how many bytes were written.
///
/// # Safety
///
/// `buffer` must be valid for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_violations(buffer: *mut u8, capacity: usize) -> usize {
    let text = with_books(|books| books.violations.join("\n"));
    let bytes = text.len().min(capacity);
    // SAFETY: the caller's promise; `text` is at least that long.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, bytes) };
    bytes
}

/// Lets the `nth` call from now of the function (its full name, such as `cuMemAlloc_v2`, or `*` for any) fail with
/// `code`, once; with `nth` 0 every call. A code of 0 takes all faults of that name back.
///
/// # Safety
///
/// `name` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_fail(name: *const c_char, nth: u64, code: u32) {
    let name = text(name).to_owned();
    with_books(|books| {
        if code == 0 {
            books.faults.retain(|fault| fault.name != name);
        } else {
            books.faults.push(Fault { name, countdown: nth, code });
        }
    });
}

/// How often a function was called.
///
/// # Safety
///
/// `name` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_calls(name: *const c_char) -> u64 {
    with_books(|books| books.calls.get(text(name)).copied().unwrap_or(0))
}

/// Holds a stream of the calling thread's context: its work waits until the hold is lifted or something waits for the
/// stream. Returns whether there is such a stream.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_hold(stream: u64, hold: bool) -> bool {
    with_books(|books| {
        let Ok(key) = books.stream("fake_cuda_hold", stream) else { return false };
        if let Some(stream) = books.streams.get_mut(&key) {
            stream.held = hold;
        }
        books.pump();
        true
    })
}

/// Forgets violations and faults.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_clear() {
    with_books(|books| {
        books.violations.clear();
        books.faults.clear();
    });
}

/// What the end of the real driver does to memory, mappings and events: all are gone. Addresses stay taken.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_forget_memory() {
    with_books(|books| {
        books.regions.clear();
        books.mappings.clear();
        books.physical.clear();
        books.reservations.clear();
        books.events.clear();
        for device in &mut books.devices {
            device.used = 0;
        }
    });
}

/// Has the end of the process checked, if the environment asks for it.
pub fn watch_exit() {
    if std::env::var_os("FAKE_CUDA_STRICT").is_some() {
        // SAFETY: the function is never unloaded: nothing closes the driver's library.
        unsafe { libc::atexit(check_at_exit) };
    }
}

extern "C" fn check_at_exit() {
    const STATUS: libc::c_int = 86;
    let (report, violations) = with_books(|books| (Report::of(books), books.violations.join("\n")));
    if report.leaks() || report.violations > 0 {
        eprintln!("fake-cuda: leaks or violations at exit: {report:?}\n{violations}");
        // SAFETY: ends the process; the remaining exit handlers are not wanted.
        unsafe { libc::_exit(STATUS) };
    }
}
