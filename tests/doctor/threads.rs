//! Explanations while other threads allocate, fail and free: no deadlock, no wrong sums.

use std::thread;

use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, HistoryOptions};

use super::MIB;

#[test]
fn explaining_does_not_disturb_others() {
    let gpu = Allocator::simulated(SimDevice::new(256 << 20));
    gpu.record_memory_history(Some(HistoryOptions::with_max_entries(1000)));
    thread::scope(|scope| {
        for n in 0..3_u64 {
            let gpu = &gpu;
            scope.spawn(move || {
                let stream = Stream::from_raw(n);
                for round in 0..100 {
                    let held: Vec<_> = (1..8).map_while(|k| gpu.alloc_on(k * 7 * MIB, stream).ok()).collect();
                    for block in &held {
                        block.record_stream(Stream::from_raw(round % 4));
                    }
                }
            });
        }
        let gpu = &gpu;
        scope.spawn(move || {
            for _ in 0..100 {
                let mark = gpu.mark();
                gpu.diagnose().unwrap();
                gpu.diagnose_request(100 * MIB, Stream::DEFAULT).unwrap();
                let table = gpu.reconcile().unwrap();
                assert!(table.allocated <= 256 << 20 && !gpu.leaks().to_string().is_empty());
                gpu.since(&mark);
            }
        });
    });
    gpu.verify().unwrap();
    assert_eq!(gpu.leaks().blocks, 0);
}
