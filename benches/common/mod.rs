//! What the benches share: the workloads' numbers, the device they run on, recorded request streams.
#![allow(dead_code)] // each bench takes a part of it

pub(crate) mod handoff;
pub(crate) mod locks;
pub(crate) mod request;
pub(crate) mod scene;
pub(crate) mod subject;
pub(crate) mod testbed;
pub(crate) mod workload;

use std::fmt::Display;
use std::time::Duration;

use criterion::Criterion;

/// Quick settings: every case takes about a second, and the medians repeat within a few per cent.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .without_plots()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args()
}

/// The value, or the end of the program with the error's text: a bench that cannot allocate measures nothing.
#[inline]
pub(crate) fn must<T, E: Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(&error),
    }
}

/// Fills an empty place. An assignment would drop what is there, and for that the block would have to lie in memory
/// before it gets there.
#[inline]
pub(crate) fn put<B>(place: &mut Option<B>, block: B) {
    debug_assert!(place.is_none());
    std::mem::forget(place.replace(block));
}

#[cold]
fn fail(error: &dyn Display) -> ! {
    eprintln!("bench stopped: {error}");
    std::process::exit(1);
}
