//! Finding launches on streams that were never noted.

use std::fmt;
use std::panic::Location;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use cudarc::driver::{CudaStream, LaunchArgs};
use parking_lot::Mutex;

use super::handle;
use crate::device::Stream;

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

/// Whether launches are watched; not read from the environment yet while `UNKNOWN`.
static WATCHED: AtomicU8 = AtomicU8::new(UNKNOWN);
static FOUND: Mutex<Vec<StreamMisuse>> = Mutex::new(Vec::new());

/// A kernel launch that used a buffer on another stream than its own, and nobody noted that before the drop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamMisuse {
    /// The stream of the launch.
    pub stream: Stream,
    /// The buffer's home stream.
    pub home: Stream,
    /// Where the buffer was pushed as an argument.
    pub launch: &'static Location<'static>,
}

impl fmt::Display for StreamMisuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a buffer of {:?} was an argument of a launch on {:?} at {} and was dropped without a note of that: its \
             block may be reused while the kernel runs. Pass `&buffer.on(&stream)`, or call `record_stream`",
            self.home, self.stream, self.launch
        )
    }
}

/// Watches kernel launches for buffers used on a stream that was never noted, in the whole process. Also switched on
/// by `GPUCACHE_CHECK_STREAMS=1`. For debugging: an argument costs microseconds then.
///
/// Each misuse is written to standard error when the buffer is dropped, and kept for [`take_stream_misuses`].
///
/// What it sees: the plain arguments `.arg(&buffer)`, `.arg(&mut buffer)` and views of them. What it cannot see:
/// addresses taken out by hand, and launches past cudarc. cudarc keeps a launch's stream private, so it is read from
/// the launch's `Debug` text; should a version of cudarc print none, nothing is found.
pub fn check_streams(on: bool) {
    WATCHED.store(if on { ON } else { OFF }, Ordering::Relaxed);
}

/// The misuses found since the last call, oldest first.
pub fn take_stream_misuses() -> Vec<StreamMisuse> {
    std::mem::take(&mut FOUND.lock())
}

#[inline]
fn watched() -> bool {
    match WATCHED.load(Ordering::Relaxed) {
        UNKNOWN => from_environment(),
        state => state == ON,
    }
}

#[cold]
fn from_environment() -> bool {
    let on =
        std::env::var_os("GPUCACHE_CHECK_STREAMS").is_some_and(|value| !value.is_empty() && value != "0");
    let wanted = if on { ON } else { OFF };
    // A call of `check_streams` in between wins.
    let _ = WATCHED.compare_exchange(UNKNOWN, wanted, Ordering::Relaxed, Ordering::Relaxed);
    WATCHED.load(Ordering::Relaxed) == ON
}

type Launch = (Stream, &'static Location<'static>);

/// The launches that a buffer was a plain argument of; empty unless they are watched.
#[derive(Debug, Default)]
pub(super) struct Launches {
    seen: OnceLock<Mutex<Vec<Launch>>>,
}

impl Launches {
    #[inline]
    pub(super) fn note(&self, launch: &LaunchArgs<'_>, site: &'static Location<'static>) {
        if watched()
            && let Some(stream) = stream_of(&format!("{launch:?}"))
        {
            let mut seen = self.seen.get_or_init(Mutex::default).lock();
            if seen.iter().all(|&(known, _)| known != stream) {
                seen.push((stream, site));
            }
        }
    }

    /// The buffer goes: reports the launches on streams that are not `noted`.
    pub(super) fn report(&mut self, home: &CudaStream, noted: impl Fn(Stream) -> bool) {
        let Some(seen) = self.seen.take() else { return };
        for (stream, launch) in seen.into_inner() {
            if stream != handle(home) && !noted(stream) {
                let misuse = StreamMisuse { stream, home: handle(home), launch };
                eprintln!("gpucache: {misuse}");
                FOUND.lock().push(misuse);
            }
        }
    }
}

/// The stream in a launch's `Debug` text.
fn stream_of(text: &str) -> Option<Stream> {
    let (_, after) = text.split_once("cu_stream: 0x")?;
    let digits = after.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    u64::from_str_radix(digits, 16).ok().map(Stream::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_read_from_the_text() {
        let text =
            "LaunchArgs { stream: CudaStream { cu_stream: 0x55d0a, ctx: CudaContext { cu_ctx: 0x1 } } }";
        assert_eq!(stream_of(text), Some(Stream::from_raw(0x55d0a)));
        assert_eq!(stream_of("LaunchArgs { .. }"), None);
    }
}
