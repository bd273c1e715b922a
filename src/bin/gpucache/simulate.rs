//! Plays workloads on simulated GPUs, several at a time.

use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use gpucache::device::sim::{AddressPolicy, SimDevice};
use gpucache::replay::{ReplayReport, Workload};
use gpucache::{Allocator, Config};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::replay::fraction;

/// One pass under a configuration and a memory limit in bytes (the recording's if there is none).
pub(crate) fn play(work: &Workload, config: &Config, capacity: Option<u64>) -> Result<ReplayReport, String> {
    let header = work.header();
    let total = header.total_memory.max(capacity.unwrap_or(0));
    // A driver gives freed addresses out again; which one, a simulation can only guess.
    let gpu = SimDevice::builder().total_memory(total).address_policy(AddressPolicy::FirstFit).build();
    let allocator = Allocator::builder().device(Arc::new(gpu.clone())).config(config.clone()).build();
    let allocator = allocator.map_err(|e| e.to_string())?;
    if let Some(limit) = capacity.or(header.allowed_bytes).filter(|limit| *limit < total) {
        allocator.set_per_process_memory_fraction(fraction(limit, total)).map_err(|e| e.to_string())?;
    }
    work.play(&allocator, Some(&gpu), 1).map_err(|e| e.to_string())
}

/// How many threads to use.
pub(crate) fn jobs(asked: Option<NonZeroUsize>) -> usize {
    asked.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
}

/// `work` on every item, on several threads; the results in the order of the items. `each` names what an item is on
/// the progress bar, which a terminal shows.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    each: &str,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let bar = progress(items.len(), each);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..jobs.min(items.len()) {
            scope.spawn(|| {
                while let Some((at, item)) = take(items, &next) {
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn take<'a, T>(items: &'a [T], next: &AtomicUsize) -> Option<(usize, &'a T)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    items.get(at).map(|item| (at, item))
}

fn progress(count: usize, each: &str) -> ProgressBar {
    let bar = ProgressBar::new(count as u64);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}, {eta} left") {
        bar.set_style(style);
    }
    bar.set_message(each.to_owned());
    bar
}
