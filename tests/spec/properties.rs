//! Random operation sequences: the allocator and the model in lock step. After every operation the returned
//! address, the driver calls and all 122 statistics must be equal.
//!
//! `PROPTEST_CASES=N` runs N sequences per test instead of the few that fit in CI.

use gpucache::MemPool;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::model::device::MIB;
use crate::model::ops::{Op, POOLS, STREAMS, case};
use crate::model::pools::Filter;
use crate::model::real::Real;
use crate::model::rules::Conf;
use crate::model::subject::Subject;
use crate::model::{Failure, Model};

const DEVICE_MEMORY: u64 = 384 * MIB;
/// Handles in no particular order: the default stream first, as everywhere.
const HANDLES: [u64; STREAMS] = [0, 0x300, 0x100, 0x200];

/// The model, and the allocator beside it.
struct Lockstep {
    model: Model,
    real: Option<Real>,
    streams: usize,
    live: Vec<u64>,
    /// The model's pool, and the allocator's.
    pools: [Option<(u64, Option<std::rc::Rc<MemPool>>)>; POOLS],
    pools_made: u64,
}

impl Lockstep {
    fn new(conf: &str, mirror: bool, streams: usize, with_real: bool) -> Self {
        let conf = Conf::parse(conf);
        let real = with_real.then(|| Real::new(DEVICE_MEMORY, &conf, mirror));
        let model = Model::new(DEVICE_MEMORY, conf, mirror);
        Lockstep { model, real, streams, live: Vec::new(), pools: [None, None], pools_made: 0 }
    }

    fn run(&mut self, ops: &[Op]) {
        for op in ops {
            self.step(op);
            self.compare(op);
        }
    }

    fn both(&mut self, mut act: impl FnMut(&mut dyn Subject)) {
        act(&mut self.model);
        if let Some(real) = &mut self.real {
            act(real);
        }
    }

    fn step(&mut self, op: &Op) {
        let stream_of = |index: usize| HANDLES[index % self.streams];
        match *op {
            Op::Alloc { bytes, stream } => self.alloc(bytes, stream_of(stream)),
            Op::Free { index } => {
                if !self.live.is_empty() {
                    let address = self.live.swap_remove(index % self.live.len());
                    self.both(|subject| subject.free(address).expect("a live address"));
                }
            }
            Op::FreeAll => {
                for address in std::mem::take(&mut self.live) {
                    self.both(|subject| subject.free(address).expect("a live address"));
                }
            }
            Op::Record { index, stream } => {
                let stream = stream_of(stream);
                if !self.live.is_empty() {
                    let address = self.live[index % self.live.len()];
                    self.both(|subject| subject.record_stream(address, stream));
                }
            }
            Op::Hold { stream } => {
                let stream = stream_of(stream);
                self.both(|subject| subject.hold(stream));
            }
            Op::Release { stream } => {
                let stream = stream_of(stream);
                self.both(|subject| subject.release(stream));
            }
            Op::EmptyCache => self.both(|subject| subject.empty_cache()),
            Op::Fraction(fraction) => self.both(|subject| subject.set_fraction(fraction)),
            Op::ResetPeak => self.both(|subject| subject.reset_peak()),
            Op::ResetAccumulated => self.both(|subject| subject.reset_accumulated()),
            Op::Settings(text) => self.both(|subject| subject.set_settings(text)),
            Op::InPool { pool, ref ops } => self.in_pool(pool, ops),
            Op::UseOnOom { pool, on } => {
                let (id, real) = self.pool(pool);
                self.model.set_use_on_oom((0, id), on);
                real.inspect(|real| real.set_use_on_oom(on));
            }
            Op::NoSplit { pool } => {
                let (id, real) = self.pool(pool);
                self.model.set_no_split((0, id));
                real.inspect(|real| real.set_no_split());
            }
            Op::DropPool { pool } => {
                if let Some((id, real)) = self.pools[pool].take() {
                    self.model.destroy_pool((0, id));
                    drop(real);
                }
            }
        }
    }

    fn alloc(&mut self, bytes: u64, stream: u64) {
        let expected = self.model.alloc(bytes, stream);
        if let Some(real) = &mut self.real {
            assert_eq!(Subject::alloc(real, bytes, stream), expected, "{bytes} bytes on stream {stream:#x}");
        }
        match expected {
            Ok(0) | Err(Failure::OutOfMemory) => {}
            Ok(address) => self.live.push(address),
            Err(other) => panic!("the model fails with {other:?}"),
        }
    }

    fn pool(&mut self, slot: usize) -> (u64, Option<std::rc::Rc<MemPool>>) {
        if self.pools[slot].is_none() {
            self.pools_made += 1;
            self.model.create_or_increment((0, self.pools_made));
            let real = self.real.as_ref().map(|real| std::rc::Rc::new(real.allocator.create_pool()));
            self.pools[slot] = Some((self.pools_made, real));
        }
        self.pools[slot].clone().expect("just made")
    }

    fn in_pool(&mut self, slot: usize, ops: &[Op]) {
        let (id, real) = self.pool(slot);
        let id = (0, id);
        self.model.begin_allocate(id, Filter::Thread).expect("the pool is not active");
        match real {
            Some(real) => real.scope(|| self.run(ops)).expect("the pool is not active"),
            None => self.run(ops),
        }
        self.model.end_allocate(id).expect("the pool is active");
        self.model.release_pool(id);
    }

    fn compare(&mut self, op: &Op) {
        self.model.verify();
        let Some(real) = &mut self.real else { return };
        let (expected, got) = (self.model.stats.flat(), real.stats());
        for (key, value) in &expected {
            assert_eq!(got[key], *value, "{key} after {op:?}");
        }
        assert_eq!(got.len(), expected.len());
        assert_eq!(real.calls(), self.model.calls(), "driver calls after {op:?}");
    }

    /// Everything is freed and given back; nothing may stay anywhere.
    fn finish(mut self) {
        self.run(&[Op::FreeAll]);
        for pool in 0..POOLS {
            self.run(&[Op::DropPool { pool }]);
        }
        self.run(&[Op::EmptyCache]);
        assert_eq!(self.model.device.used, 0, "the model gave everything back");
        if let Some(real) = &self.real {
            real.verify();
            assert_eq!(real.allocator.memory_reserved(), 0);
        }
    }
}

fn check((conf, streams, ops): (&str, usize, Vec<Op>), mirror: bool, with_real: bool) {
    let mut lockstep = Lockstep::new(conf, mirror, streams, with_real);
    lockstep.run(&ops);
    lockstep.finish();
}

fn config() -> ProptestConfig {
    ProptestConfig {
        // An explicit PROPTEST_CASES wins over this small number.
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(96),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        max_shrink_iters: 4000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn model_keeps_its_books_as_gpucache(case in case(false, true)) {
        check(case, false, false);
    }

    #[test]
    fn model_keeps_its_books_as_pytorch(case in case(true, false)) {
        check(case, true, false);
    }

    #[test]
    fn allocator_equals_model_as_gpucache(case in case(false, false)) {
        check(case, false, true);
    }

    #[test]
    fn allocator_equals_model_as_pytorch(case in case(true, false)) {
        check(case, true, true);
    }

    #[test]
    fn allocator_equals_model_with_private_pools(case in case(false, true)) {
        check(case, false, true);
    }
}
