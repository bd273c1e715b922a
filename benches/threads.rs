//! Many threads: each on its own stream, all on one, and blocks that one thread allocates and another frees.

mod common;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use gpucache::device::Stream;

use common::handoff::{BATCH, Handoff};
use common::subject::{Handles, Subject};
use common::testbed::{H200_BYTES, Testbed};
use common::workload::{Rng, THREAD_MIX};

const THREADS: [usize; 5] = [1, 2, 4, 8, 16];

fn main() {
    let mut criterion = common::criterion();
    let testbed = Testbed::from_env(H200_BYTES);
    let subject = Handles(&testbed.allocator);
    case(&mut criterion, "own_stream", |threads, pairs| {
        time(threads, |t| on_stream(subject, testbed.streams[1 + t], t, pairs))
    });
    case(&mut criterion, "one_stream", |threads, pairs| {
        time(threads, |t| on_stream(subject, testbed.side_stream(), t, pairs))
    });
    case(&mut criterion, "free_elsewhere", |threads, pairs| {
        time(threads, |t| {
            Handoff::new(subject, testbed.streams[1 + t], t).run(|done| done < pairs);
        })
    });
    criterion.final_summary();
}

/// Elements are pairs of all threads together.
fn case(criterion: &mut Criterion, name: &str, run: impl Fn(usize, u64) -> Duration) {
    let mut group = criterion.benchmark_group(format!("threads/{name}"));
    for threads in THREADS {
        group.throughput(Throughput::Elements((threads * BATCH) as u64));
        group.bench_function(threads.to_string(), |b| {
            b.iter_custom(|iterations| run(threads, iterations * BATCH as u64));
        });
    }
}

/// Runs the work in that many threads at once; the time from the first one's start to the last one's end.
fn time(threads: usize, work: impl Fn(usize) + Sync) -> Duration {
    let start_line = Barrier::new(threads);
    let run = &|t| {
        start_line.wait();
        let start = Instant::now();
        work(t);
        (start, Instant::now())
    };
    let spans: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|t| scope.spawn(move || run(t))).collect();
        running.into_iter().filter_map(|r| r.join().ok()).collect()
    });
    let first = spans.iter().map(|s| s.0).min();
    let last = spans.iter().map(|s| s.1).max();
    first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
}

fn on_stream(subject: impl Subject, stream: Stream, thread: usize, pairs: u64) {
    let mut rng = Rng::new(100 + thread as u64);
    for _ in 0..pairs {
        subject.pair(THREAD_MIX[rng.below(THREAD_MIX.len())], stream);
    }
}
