//! Random requests against a tiny model: lists by class, one queue of events.

use std::collections::{BTreeMap, VecDeque};

use gpucache::device::Stream;
use proptest::prelude::*;

use super::Bed;

#[derive(Debug, Clone)]
enum Step {
    Alloc(usize),
    /// Which of the live blocks.
    Free(prop::sample::Index),
    Record(prop::sample::Index, usize),
    Hold(usize),
    Release(usize),
    Empty,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![1..64_usize, 1..10_000_usize, Just(4096), Just(4097)];
    prop_oneof![
        5 => bytes.prop_map(Step::Alloc),
        4 => any::<prop::sample::Index>().prop_map(Step::Free),
        3 => (any::<prop::sample::Index>(), 0..2_usize).prop_map(|(block, stream)| Step::Record(block, stream)),
        1 => (0..2_usize).prop_map(Step::Hold),
        1 => (0..2_usize).prop_map(Step::Release),
        1 => Just(Step::Empty),
    ]
}

#[derive(Debug, Default)]
struct Model {
    /// By rounded size, the newest last.
    idle: BTreeMap<u64, Vec<u64>>,
    /// Address, size, streams.
    live: Vec<(u64, u64, Vec<usize>)>,
    /// Block and stream, oldest first.
    queue: VecDeque<(u64, u64, usize)>,
    busy: [bool; 2],
    owned: u64,
    owned_bytes: u64,
    peak_bytes: u64,
}

impl Model {
    fn process(&mut self) {
        while let Some(&(address, size, stream)) = self.queue.front() {
            if self.busy[stream] {
                return;
            }
            self.queue.pop_front();
            if self.queue.iter().all(|&(other, ..)| other != address) {
                self.idle.entry(size).or_default().push(address);
            }
        }
    }

    /// The address that a request must get; `None`: a new one.
    fn alloc(&mut self, bytes: usize) -> Option<u64> {
        self.process();
        self.idle.get_mut(&(bytes.next_power_of_two() as u64))?.pop()
    }

    fn free(&mut self, index: usize) -> u64 {
        let (address, size, streams) = self.live.remove(index);
        if streams.is_empty() {
            self.idle.entry(size).or_default().push(address);
        }
        self.queue.extend(streams.into_iter().map(|stream| (address, size, stream)));
        address
    }

    fn active(&self) -> (i64, i64) {
        let mut waiting: Vec<(u64, u64)> =
            self.queue.iter().map(|&(address, size, _)| (address, size)).collect();
        waiting.sort_unstable();
        waiting.dedup();
        let sizes =
            self.live.iter().map(|&(_, size, _)| size).chain(waiting.into_iter().map(|(_, size)| size));
        let sizes: Vec<u64> = sizes.collect();
        (sizes.len() as i64, sizes.iter().sum::<u64>() as i64)
    }

    fn check(&mut self, bed: &Bed) -> Result<(), TestCaseError> {
        let stats = bed.host_memory_stats();
        let active = self.active();
        self.peak_bytes = self.peak_bytes.max(active.1 as u64);
        prop_assert_eq!((stats.active_requests.current, stats.active_bytes.current), active);
        prop_assert_eq!(stats.active_bytes.peak as u64, self.peak_bytes);
        prop_assert_eq!(
            (stats.allocations.current as u64, stats.allocated_bytes.current as u64),
            (self.owned, self.owned_bytes)
        );
        for (_, stat) in stats.stats() {
            prop_assert_eq!(stat.current, stat.allocated - stat.freed);
            prop_assert!(stat.peak >= stat.current);
        }
        Ok(())
    }
}

fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let bed = Bed::new("");
    let streams: [Stream; 2] = std::array::from_fn(|_| bed.device.create_stream());
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Alloc(bytes) => {
                let expected = model.alloc(*bytes);
                let address = bed.host_alloc_raw(*bytes).unwrap();
                let size = bytes.next_power_of_two() as u64;
                if expected.is_none() {
                    model.owned += 1;
                    model.owned_bytes += size;
                }
                prop_assert_eq!(address, expected.unwrap_or(address));
                prop_assert!(
                    model.live.iter().all(|&(at, len, _)| address + size <= at || at + len <= address)
                );
                model.live.push((address, size, Vec::new()));
            }
            Step::Free(which) if !model.live.is_empty() => {
                let address = model.free(which.index(model.live.len()));
                bed.host_free_raw(address).unwrap();
            }
            Step::Record(which, stream) if !model.live.is_empty() => {
                let index = which.index(model.live.len());
                let (address, _, uses) = &mut model.live[index];
                bed.record_event(*address, streams[*stream]).unwrap();
                if !uses.contains(stream) {
                    uses.push(*stream);
                }
            }
            Step::Hold(stream) => {
                // Events recorded before are complete, as those of an idle stream are.
                if model.queue.iter().all(|&(_, _, s)| s != *stream) {
                    bed.device.hold(streams[*stream]);
                    model.busy[*stream] = true;
                }
            }
            Step::Release(stream) => {
                bed.device.release(streams[*stream]);
                model.busy[*stream] = false;
            }
            Step::Empty => {
                model.process();
                let idle = std::mem::take(&mut model.idle);
                let bytes: u64 = idle.iter().map(|(size, blocks)| size * blocks.len() as u64).sum();
                model.owned -= idle.values().map(|blocks| blocks.len() as u64).sum::<u64>();
                model.owned_bytes -= bytes;
                prop_assert_eq!(bed.host_empty_cache().unwrap(), bytes);
            }
            Step::Free(_) | Step::Record(..) => {}
        }
        model.check(&bed)?;
    }
    for (address, ..) in model.live {
        bed.host_free_raw(address).unwrap();
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(steps in prop::collection::vec(step(), 1..120)) {
        run(&steps)?;
    }
}
