//! Runs the scenarios that were asked for.

use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use gpucache::Allocator;
use gpucache::device::Stream;

use crate::common::must;
use crate::common::subject::Subject;
use crate::common::testbed::Testbed;
use crate::options::Options;
use crate::report::{Cell, Csv};

/// Calls between two looks at the clock.
pub(crate) const CHUNK: u64 = 64;

/// Everything that a scenario needs.
pub(crate) struct Runner<'a, S> {
    pub(crate) subject: S,
    pub(crate) testbed: &'a Testbed,
    pub(crate) options: &'a Options,
    pub(crate) csv: Csv,
}

type Scenario<'a, S> = fn(&mut Runner<'a, S>) -> io::Result<()>;

impl<'a, S: Subject> Runner<'a, S> {
    pub(crate) fn new(subject: S, testbed: &'a Testbed, options: &'a Options) -> io::Result<Self> {
        let csv = Csv::create(options.out.as_deref(), options.name())?;
        Ok(Runner { subject, testbed, options, csv })
    }

    pub(crate) fn run(mut self) -> Result<(), Box<dyn Error>> {
        let scenarios: [(&str, Scenario<'a, S>); 11] = [
            ("pair", Self::pair),
            ("depth", Self::depth),
            ("live", Self::live),
            ("cold", Self::cold),
            ("replay", Self::replay),
            ("threads", Self::threads),
            ("locks", Self::locks),
            ("churn", Self::churn),
            ("free_blocks", Self::free_blocks),
            ("record_stream", Self::record_stream),
            ("free_elsewhere", Self::free_elsewhere),
        ];
        for (name, scenario) in scenarios {
            if self.options.wants(name) {
                let start = Instant::now();
                scenario(&mut self)?;
                self.trim();
                eprintln!("{} {name}: {:.2} s", self.options.name(), start.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }

    pub(crate) fn allocator(&self) -> &'a Allocator {
        &self.testbed.allocator
    }

    /// Gives every cached byte back, so that the next peak counts from nothing.
    pub(crate) fn trim(&self) {
        must(self.allocator().empty_cache());
        self.allocator().reset_peak_memory_stats();
    }

    /// Repeats chunks of 64 calls until the repetition's time is over; reports nanoseconds per call.
    pub(crate) fn repeat(&mut self, cell: Cell<'_>, mut call: impl FnMut()) -> io::Result<()> {
        for rep in 0..self.options.reps {
            let value = per_call(self.options.rep_time(), CHUNK, || (0..CHUNK).for_each(|_| call()));
            self.csv.row(cell, rep, value)?;
        }
        Ok(())
    }

    /// The contract's pair loop, on stream 0.
    pub(crate) fn pair_loop(&mut self, scenario: &str, case: &str, bytes: usize) -> io::Result<()> {
        let subject = self.subject;
        (0..200).for_each(|_| subject.pair(bytes, Stream::DEFAULT));
        self.repeat(Cell::new(scenario, case, "ns_per_pair"), || subject.pair(bytes, Stream::DEFAULT))
    }
}

/// Nanoseconds per call, when one round makes that many and rounds go on for the time given.
pub(crate) fn per_call(time: Duration, calls: u64, mut round: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut done = 0;
    loop {
        round();
        done += calls;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return elapsed.as_nanos() as f64 / done as f64;
        }
    }
}
