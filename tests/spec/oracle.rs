//! Writes random request streams for PyTorch itself to answer: the model is only as good as its last comparison.
//!
//! Not part of an ordinary run. With the oracle of `../shared/oracle` set up:
//!
//! ```sh
//! mkdir /tmp/asked /tmp/answered
//! ORACLE_REQUESTS=/tmp/asked PROPTEST_CASES=200 cargo test --test spec oracle -- --ignored
//! for q in /tmp/asked/*.req; do
//!     ../shared/oracle/oracle.py --total-memory 384M --streams 4 --config "$(cat ${q%.req}.conf)" --full --out /tmp/answered $q
//! done
//! GPUCACHE_RECORDED=/tmp/answered cargo test --test spec recordings
//! ```

use std::fmt::Write as _;
use std::path::Path;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};

use crate::model::Model;
use crate::model::device::MIB;
use crate::model::ops::{Op, case};
use crate::model::pools::Filter;
use crate::model::rules::Conf;

/// Runs the operations on the model, because a request stream names only allocations that succeeded.
struct Writer {
    model: Model,
    streams: usize,
    text: String,
    /// Number and address.
    live: Vec<(usize, u64)>,
    requests: usize,
    pools: [Option<usize>; crate::model::ops::POOLS],
    pools_made: usize,
    holding: bool,
}

impl Writer {
    fn line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("a string takes everything");
    }

    fn run(&mut self, ops: &[Op]) {
        for op in ops {
            self.step(op);
        }
    }

    /// All streams go on: recordings know no other way.
    fn release(&mut self) {
        if self.holding {
            self.line("s");
            self.model.release_every_stream();
            self.holding = false;
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Alloc { bytes, stream } => self.alloc(bytes, stream % self.streams),
            Op::Free { index } if !self.live.is_empty() => {
                let freed = self.live.swap_remove(index % self.live.len());
                self.free(freed);
            }
            Op::FreeAll => {
                for freed in std::mem::take(&mut self.live) {
                    self.free(freed);
                }
            }
            Op::Record { index, stream } if !self.live.is_empty() => {
                let (number, address) = self.live[index % self.live.len()];
                let stream = stream % self.streams;
                self.line(&format!("r {} {stream}", self.requests - number));
                self.model.record_stream(address, stream as u64);
            }
            Op::Hold { stream } if stream % self.streams != 0 => {
                let stream = stream % self.streams;
                self.line(&format!("b {stream}"));
                self.model.hold(stream as u64);
                self.holding = true;
            }
            Op::Release { .. } => self.release(),
            Op::EmptyCache => {
                self.release();
                self.line("e");
                self.model.empty_cache();
            }
            Op::Fraction(fraction) => {
                self.line(&format!("F {fraction}"));
                self.model.set_fraction(fraction);
            }
            Op::ResetPeak => self.line("p"),
            Op::ResetAccumulated => self.line("P"),
            Op::Settings(text) if !text.is_empty() => {
                self.line(&format!("c {text}"));
                self.model.set_settings(text);
            }
            Op::InPool { pool, ref ops } => self.in_pool(pool, ops),
            Op::DropPool { pool } => self.drop_pool(pool),
            _ => {}
        }
    }

    fn alloc(&mut self, bytes: u64, stream: usize) {
        self.line(&format!("a {bytes} {stream}"));
        self.requests += 1;
        let retries = self.model.stats.num_alloc_retries;
        if let Ok(address) = self.model.alloc(bytes, stream as u64)
            && address != 0
        {
            self.live.push((self.requests - 1, address));
        }
        if self.model.stats.num_alloc_retries > retries {
            self.release();
        }
    }

    fn free(&mut self, (number, address): (usize, u64)) {
        self.line(&format!("f {}", self.requests - number));
        self.model.free(address).expect("a live address");
    }

    fn in_pool(&mut self, slot: usize, ops: &[Op]) {
        let number = *self.pools[slot].get_or_insert_with(|| {
            self.pools_made += 1;
            self.pools_made - 1
        });
        let id = (0, number as u64 + 1);
        if !self.model.knows_pool(id) {
            self.model.create_or_increment(id);
        }
        self.line(&format!("pool+ {number}"));
        self.model.begin_allocate(id, Filter::Thread).expect("the pool is not active");
        self.run(ops);
        self.line(&format!("pool- {number}"));
        self.model.end_allocate(id).expect("the pool is active");
        self.model.release_pool(id);
    }

    fn drop_pool(&mut self, slot: usize) {
        if let Some(number) = self.pools[slot].take() {
            self.release();
            self.line(&format!("pooldel {number}"));
            self.model.destroy_pool((0, number as u64 + 1));
        }
    }
}

#[test]
#[ignore = "writes files for the oracle; see above"]
fn write_requests_for_the_oracle() {
    let folder = std::env::var("ORACLE_REQUESTS").expect("ORACLE_REQUESTS names a folder");
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20);
    let mut runner = TestRunner::new(Config::default());
    for number in 0..cases {
        let pools = number % 2 == 1;
        let (conf, streams, ops) = case(true, pools).new_tree(&mut runner).expect("a case").current();
        let mut writer = Writer {
            model: Model::new(384 * MIB, Conf::parse(conf), true),
            streams,
            text: String::new(),
            live: Vec::new(),
            requests: 0,
            pools: [None; crate::model::ops::POOLS],
            pools_made: 0,
            holding: false,
        };
        writer.run(&ops);
        let stem = Path::new(&folder).join(format!("p{number:04}"));
        std::fs::write(stem.with_extension("req"), &writer.text).expect("a writable folder");
        std::fs::write(stem.with_extension("conf"), conf).expect("a writable folder");
    }
}
