//! The contract's scenarios with one thread.

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use gpucache::device::Stream;

use crate::common::request::{Player, Recording};
use crate::common::subject::Subject;
use crate::common::workload::{KIB, MIB, MIX, PAIR_SIZES, Rng};
use crate::common::{must, put};
use crate::report::Cell;
use crate::runner::{CHUNK, Runner, per_call};

/// Blocks of the `depth256` scenario.
const DEPTH: usize = 256;

/// A live block and its size.
type Live<S> = (Option<<S as Subject>::Block>, usize);

impl<S: Subject> Runner<'_, S> {
    pub(crate) fn pair(&mut self) -> io::Result<()> {
        for bytes in PAIR_SIZES {
            self.pair_loop("pair", &bytes.to_string(), bytes)?;
        }
        Ok(())
    }

    pub(crate) fn depth(&mut self) -> io::Result<()> {
        for case in ["lifo", "random"] {
            let mut rng = Rng::new(7);
            let sizes: Vec<usize> = (0..DEPTH).map(|_| MIX[rng.below(MIX.len())]).collect();
            let mut order: Vec<usize> = (0..DEPTH).rev().collect();
            if case == "random" {
                for i in (1..DEPTH).rev() {
                    order.swap(i, rng.below(i + 1));
                }
            }
            let subject = self.subject;
            let mut blocks: Vec<Option<S::Block>> = (0..DEPTH).map(|_| None).collect();
            let mut round = || {
                for (block, &bytes) in blocks.iter_mut().zip(&sizes) {
                    put(block, must(subject.alloc(bytes, Stream::DEFAULT)));
                }
                for &i in &order {
                    if let Some(block) = blocks[i].take() {
                        subject.free(block);
                    }
                }
            };
            (0..5).for_each(|_| round());
            for rep in 0..self.options.reps {
                let value = per_call(self.options.rep_time(), 2 * DEPTH as u64, &mut round);
                self.csv.row(Cell::new("depth256", case, "ns_per_op"), rep, value)?;
            }
        }
        self.trim();
        Ok(())
    }

    pub(crate) fn live(&mut self) -> io::Result<()> {
        for count in [10_000, 100_000] {
            for holes in [false, true] {
                self.live_case(count, holes)?;
            }
        }
        Ok(())
    }

    fn live_case(&mut self, count: usize, holes: bool) -> io::Result<()> {
        let subject = self.subject;
        let case = format!("{count}_{}", if holes { "holes" } else { "full" });
        let mut rng = Rng::new(11);
        let filled = if holes { 2 * count } else { count };
        let mut blocks: Vec<Live<S>> = Vec::with_capacity(filled);
        for _ in 0..filled {
            let bytes = rng.live_size();
            blocks.push((Some(must(subject.alloc(bytes, Stream::DEFAULT))), bytes));
        }
        if holes {
            blocks.iter_mut().step_by(2).filter_map(|b| b.0.take()).for_each(|b| subject.free(b));
        }
        for bytes in [4 * KIB, MIB, 20 * MIB] {
            self.pair_loop("live_pair", &format!("{case}_{bytes}"), bytes)?;
        }
        let at: Vec<usize> = (0..filled).filter(|&i| blocks[i].0.is_some()).collect();
        self.repeat(Cell::new("live_replace", &case, "ns_per_pair"), || {
            let (block, bytes) = &mut blocks[at[rng.below(at.len())]];
            if let Some(block) = block.take() {
                subject.free(block);
            }
            *bytes = rng.live_size();
            put(block, must(subject.alloc(*bytes, Stream::DEFAULT)));
        })?;
        blocks.into_iter().filter_map(|b| b.0).for_each(|b| subject.free(b));
        self.trim();
        Ok(())
    }

    pub(crate) fn cold(&mut self) -> io::Result<()> {
        for bytes in [2 * MIB, 20 * MIB, 64 * MIB, 1024 * MIB] {
            self.cold_case(bytes)?;
        }
        for bytes in [20 * MIB, 64 * MIB] {
            let case = bytes.to_string();
            for rep in 0..self.options.reps.min(5) {
                self.trim();
                let start = Instant::now();
                let blocks: Vec<S::Block> =
                    (0..CHUNK).map(|_| must(self.subject.alloc(bytes, Stream::DEFAULT))).collect();
                let time = micros(start);
                for block in blocks {
                    self.subject.free(block);
                }
                self.trim();
                self.csv.row(Cell::new("grow64", &case, "us_per_alloc"), rep, time / CHUNK as f64)?;
            }
        }
        Ok(())
    }

    fn cold_case(&mut self, bytes: usize) -> io::Result<()> {
        let case = bytes.to_string();
        for rep in 0..self.options.reps {
            self.trim();
            must(self.allocator().device().device_synchronize());
            let start = Instant::now();
            let block = black_box(must(self.subject.alloc(bytes, Stream::DEFAULT)));
            let alloc = micros(start);
            self.subject.free(block);
            let start = Instant::now();
            self.trim();
            let release = micros(start);
            self.csv.row(Cell::new("cold", &case, "alloc_us"), rep, alloc)?;
            self.csv.row(Cell::new("cold", &case, "release_us"), rep, release)?;
        }
        Ok(())
    }

    pub(crate) fn replay(&mut self) -> io::Result<()> {
        for path in &self.options.req {
            let recording = Recording::read(path)
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
            if recording.requests.is_empty() {
                eprintln!("{}: no requests in {}", self.options.name(), path.display());
                continue;
            }
            self.replay_one(&recording)?;
        }
        Ok(())
    }

    fn replay_one(&mut self, recording: &Recording) -> io::Result<()> {
        let requests = recording.requests.len() as f64;
        let cell = |metric| Cell::new("replay", &recording.case, metric);
        let mut player = Player::new(self.subject, &self.testbed.streams, recording);
        self.trim();
        let start = Instant::now();
        let failed = player.pass();
        let first = start.elapsed().as_nanos() as f64 / requests;
        self.csv.row(cell("cold_pass_ns_per_op"), 0, first)?;
        self.csv.row(cell("ops"), 0, requests)?;
        self.csv.row(cell("failed_allocs"), 0, failed as f64)?;
        self.csv.row(cell("peak_reserved_bytes"), 0, self.allocator().max_memory_reserved() as f64)?;
        if failed > 0 {
            self.trim();
            return Ok(());
        }
        for rep in 0..self.options.reps.min(5) {
            let start = Instant::now();
            let mut passes = 0;
            while passes == 0 || (start.elapsed() < Duration::from_millis(10) && passes < 50) {
                player.pass();
                passes += 1;
            }
            let value = start.elapsed().as_nanos() as f64 / requests / f64::from(passes);
            self.csv.row(cell("ns_per_op"), rep, value)?;
        }
        self.csv.row(cell("peak_reserved_bytes_end"), 1, self.allocator().max_memory_reserved() as f64)?;
        self.trim();
        Ok(())
    }
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / 1e3
}
