//! Scenarios beside the contract, in its CSV format: the yardsticks and the states that gpucache's own targets name.

use std::hint::black_box;
use std::io;

use crate::common::handoff::Handoff;
use crate::common::locks::TwoLocks;
use crate::common::must;
use crate::common::scene::{Churn, Holes};
use crate::common::subject::Subject;
use crate::common::workload::{CHURN_LIVE, FREE_BLOCKS, KIB, Pool};
use crate::report::Cell;
use crate::runner::Runner;
use crate::threads::{Signals, rate};
use gpucache::device::Stream;

impl<S: Subject> Runner<'_, S> {
    /// Two uncontended parking_lot lock and unlock pairs.
    pub(crate) fn locks(&mut self) -> io::Result<()> {
        let locks = TwoLocks::new();
        self.repeat(Cell::new("locks", "two_parking_lot", "ns_per_pair"), || locks.pair())
    }

    /// A random one of many live blocks is replaced; sizes of 512 B to 16 MiB.
    pub(crate) fn churn(&mut self) -> io::Result<()> {
        for live in CHURN_LIVE {
            let mut churn = Churn::new(self.subject, Stream::DEFAULT, live);
            self.repeat(Cell::new("churn", &live.to_string(), "ns_per_pair"), || churn.step())?;
            drop(churn);
            self.trim();
        }
        Ok(())
    }

    /// Pairs beside many free blocks.
    pub(crate) fn free_blocks(&mut self) -> io::Result<()> {
        for pool in Pool::BOTH {
            for free in FREE_BLOCKS {
                if !Holes::fit(self.subject, pool, free) {
                    eprintln!("{}: {free} free {} blocks do not fit", self.options.name(), pool.name());
                    continue;
                }
                let mut holes = Holes::new(self.subject, Stream::DEFAULT, pool, free);
                let case = format!("{}_same_{free}", pool.name());
                self.pair_loop("free_blocks", &case, pool.pair_size())?;
                let case = format!("{}_varied_{free}", pool.name());
                self.repeat(Cell::new("free_blocks", &case, "ns_per_pair"), || holes.varied_pair())?;
                drop(holes);
                self.trim();
            }
        }
        Ok(())
    }

    /// A pair whose block is used on a second stream, and the driver's event calls alone; on a GPU also in a program
    /// that has launched a kernel.
    pub(crate) fn record_stream(&mut self) -> io::Result<()> {
        self.recorded_pair("pair", "pair_of_handles", "driver_event")?;
        if must(self.testbed.launch_kernel()) {
            let after = ["pair_after_kernel", "pair_of_handles_after_kernel", "driver_event_after_kernel"];
            self.recorded_pair(after[0], after[1], after[2])?;
        }
        Ok(())
    }

    fn recorded_pair(&mut self, pair: &str, handles: &str, driver: &str) -> io::Result<()> {
        let allocator = self.allocator();
        let side = self.testbed.side_stream();
        self.repeat(Cell::new("record_stream", handles, "ns_per_pair"), || {
            must(allocator.alloc_on(black_box(4 * KIB), Stream::DEFAULT)).record_stream(side);
        })?;
        self.repeat(Cell::new("record_stream", pair, "ns_per_pair"), || {
            let address = must(allocator.alloc_raw(black_box(4 * KIB), Stream::DEFAULT));
            must(allocator.record_stream_raw(address, side));
            must(allocator.free_raw(address));
        })?;
        let device = allocator.device();
        let event = must(device.event_create());
        self.repeat(Cell::new("record_stream", driver, "ns_per_pair"), || {
            must(device.event_record(event, side));
            black_box(must(device.event_query(event)));
        })?;
        must(device.event_destroy(event));
        Ok(())
    }

    /// Half of the threads allocate, each on its own stream, the other half free.
    pub(crate) fn free_elsewhere(&mut self) -> io::Result<()> {
        for threads in [2, 4, 8, 16] {
            let worker = |t: usize, signals: &Signals| {
                let handoff = Handoff::new(self.subject, self.testbed.streams[1 + t], t);
                signals.wait_for_start();
                handoff.run(|_| !signals.stopped())
            };
            let time = self.options.thread_time();
            let rates: Vec<f64> =
                (0..self.options.reps.min(5)).map(|_| rate(threads / 2, time, worker)).collect();
            let cell = Cell { threads, ..Cell::new("threads", "free_elsewhere", "pairs_per_s") };
            for (rep, rate) in rates.into_iter().enumerate() {
                self.csv.row(cell, rep as u32, rate)?;
            }
            self.trim();
        }
        Ok(())
    }
}
