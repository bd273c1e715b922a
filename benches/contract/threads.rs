//! The contract's `threads` scenario.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpucache::device::Stream;

use crate::common::subject::Subject;
use crate::common::workload::{Rng, THREAD_MIX};
use crate::common::{must, put};
use crate::report::Cell;
use crate::runner::Runner;

/// Blocks that every thread holds in the `hold32` cases.
const HELD: usize = 32;

/// Pairs between two looks at the stop flag.
const BURST: usize = 16;

impl<S: Subject> Runner<'_, S> {
    pub(crate) fn threads(&mut self) -> io::Result<()> {
        for (own, streams) in [(true, "own_stream"), (false, "one_stream")] {
            for (hold, what) in [(false, "pair"), (true, "hold32")] {
                let case = format!("{streams}_{what}");
                for threads in [1, 2, 4, 8, 16] {
                    let stream = |t: usize| self.testbed.streams[if own { 1 + t } else { 1 }];
                    let worker =
                        |t: usize, signals: &Signals| work(self.subject, stream(t), t, hold, signals);
                    let time = self.options.thread_time();
                    rate(threads, time.mul_f64(0.3), worker); // warms up
                    let rates: Vec<f64> =
                        (0..self.options.reps.min(5)).map(|_| rate(threads, time, worker)).collect();
                    let cell = Cell { threads, ..Cell::new("threads", &case, "pairs_per_s") };
                    for (rep, rate) in rates.into_iter().enumerate() {
                        self.csv.row(cell, rep as u32, rate)?;
                    }
                    self.trim();
                }
            }
        }
        Ok(())
    }
}

/// How the threads are started and stopped together.
#[derive(Default)]
pub(crate) struct Signals {
    ready: AtomicUsize,
    go: AtomicBool,
    stop: AtomicBool,
}

impl Signals {
    /// Reports readiness and spins until all may begin.
    pub(crate) fn wait_for_start(&self) {
        self.ready.fetch_add(1, Ordering::SeqCst);
        while !self.go.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
    }

    #[inline]
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Pairs per second of all threads together; each worker returns how many it made.
pub(crate) fn rate(
    threads: usize,
    time: Duration,
    worker: impl Fn(usize, &Signals) -> u64 + Copy + Send,
) -> f64 {
    let signals = Signals::default();
    thread::scope(|scope| {
        let signals = &signals;
        let running: Vec<_> = (0..threads).map(|t| scope.spawn(move || worker(t, signals))).collect();
        while signals.ready.load(Ordering::SeqCst) < threads {
            thread::yield_now();
        }
        let start = Instant::now();
        signals.go.store(true, Ordering::Release);
        thread::sleep(time);
        signals.stop.store(true, Ordering::SeqCst);
        let elapsed = start.elapsed();
        let pairs: u64 = running.into_iter().filter_map(|r| r.join().ok()).sum();
        pairs as f64 / elapsed.as_secs_f64()
    })
}

fn work<S: Subject>(subject: S, stream: Stream, thread: usize, hold: bool, signals: &Signals) -> u64 {
    let mut rng = Rng::new(100 + thread as u64);
    let mut ring: [Option<S::Block>; HELD] = [const { None }; HELD];
    let mut pairs = 0;
    for bytes in THREAD_MIX {
        subject.pair(bytes, stream);
    }
    signals.wait_for_start();
    while !signals.stopped() {
        for _ in 0..BURST {
            let bytes = THREAD_MIX[rng.below(THREAD_MIX.len())];
            if hold {
                let place = &mut ring[pairs as usize % HELD];
                if let Some(block) = place.take() {
                    subject.free(block);
                }
                put(place, must(subject.alloc(bytes, stream)));
            } else {
                subject.pair(bytes, stream);
            }
            pairs += 1;
        }
    }
    ring.into_iter().flatten().for_each(|block| subject.free(block));
    pairs
}
