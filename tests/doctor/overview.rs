//! Nothing failed: where is the memory?

use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;
use gpucache::observe::diagnose::{Cause, Diagnosis};
use gpucache::{Allocator, HistoryOptions};

use super::causes::Scenario;
use super::failing::leaking_loop;
use super::{GIB, MIB};

const OTHER: Stream = Stream::from_raw(7);

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "overview: nothing allocated", expected: &[], run: || overview(|_, _| ()) },
        Scenario {
            name: "overview: all in use",
            expected: &[],
            run: || overview(|_, gpu| gpu.alloc(6 * GIB).unwrap()),
        },
        Scenario { name: "overview: a model was built", expected: &[], run: model },
        Scenario { name: "overview: a model is being built", expected: &[], run: building },
        Scenario { name: "overview: steady iterations", expected: &[Cause::Cached], run: steady },
        Scenario {
            name: "overview: cached",
            expected: &[Cause::Cached],
            run: || overview(|_, gpu| drop(gpu.alloc(400 * MIB).unwrap())),
        },
        Scenario { name: "overview: fragmented", expected: &[Cause::Fragmented], run: fragmented },
        Scenario { name: "overview: waits for a stream", expected: &[Cause::PendingFree], run: pending },
        Scenario {
            name: "overview: idle in a private pool",
            expected: &[Cause::PrivatePool],
            run: private_pool,
        },
        Scenario {
            name: "overview: another process",
            expected: &[Cause::OtherProcess],
            run: || {
                overview(|device, gpu| {
                    device.set_other_process(5, 3 << 30);
                    gpu.alloc(4 * GIB).unwrap()
                })
            },
        },
        Scenario { name: "overview: other libraries", expected: &[Cause::Context], run: context },
        Scenario { name: "overview: a leak", expected: &[Cause::Growing], run: leak },
        Scenario {
            name: "overview: nearly full",
            expected: &[Cause::TooSmall],
            run: || overview(|_, gpu| gpu.alloc(11 * GIB).unwrap()),
        },
        Scenario {
            name: "overview: nearly at the limit",
            expected: &[Cause::Cap],
            run: || {
                overview(|_, gpu| {
                    gpu.set_per_process_memory_fraction(0.5).unwrap();
                    gpu.alloc(5 * GIB + 900 * MIB).unwrap()
                })
            },
        },
        Scenario {
            name: "overview: another process, and a smaller cache",
            expected: &[Cause::OtherProcess, Cause::Cached],
            run: || {
                overview(|device, gpu| {
                    device.set_other_process(5, 5 << 30);
                    drop(gpu.alloc(3 * GIB).unwrap());
                })
            },
        },
    ]
}

/// The diagnosis of a device of 12 GiB after `act`, whose result stays alive.
fn overview<T>(act: impl FnOnce(&SimDevice, &Allocator) -> T) -> Diagnosis {
    let device = SimDevice::new(12 << 30);
    let gpu = Allocator::simulated(device.clone());
    let _kept = act(&device, &gpu);
    gpu.diagnose().unwrap()
}

fn fragmented() -> Diagnosis {
    overview(|_, gpu| {
        let first: Vec<_> = (0..5).map(|_| gpu.alloc(2 * GIB).unwrap()).collect();
        drop(first);
        (0..5).map(|_| gpu.alloc(1536 * MIB).unwrap()).collect::<Vec<_>>()
    })
}

fn pending() -> Diagnosis {
    let diagnosis = overview(|device, gpu| {
        let block = gpu.alloc(2 * GIB).unwrap();
        block.record_stream(OTHER);
        device.hold(OTHER);
        drop(block);
    });
    assert_eq!(diagnosis.findings[0].holders[0].what, "waits for stream 0x7 (1 block)");
    assert_eq!(diagnosis.findings[0].holders[0].bytes, 2 << 30);
    diagnosis
}

fn private_pool() -> Diagnosis {
    overview(|_, gpu| {
        let pool = gpu.create_pool();
        pool.scope(|| drop(gpu.alloc(2 * GIB).unwrap())).unwrap();
        pool
    })
}

fn context() -> Diagnosis {
    let device = SimDevice::builder().total_memory(12 << 30).context_overhead(3 << 30).build();
    let gpu = Allocator::simulated(device);
    let _live = gpu.alloc(4 * GIB).unwrap();
    gpu.diagnose().unwrap()
}

fn model() -> Diagnosis {
    overview(|_, gpu| {
        gpu.record_memory_history(Some(HistoryOptions::default()));
        let weights: Vec<_> = (0..40).map(|_| gpu.alloc(100 * MIB).unwrap()).collect();
        for _ in 0..20 {
            let step: Vec<_> = (0..4).map(|_| gpu.alloc(2 * MIB).unwrap()).collect();
            drop(step);
        }
        weights
    })
}

fn building() -> Diagnosis {
    overview(|_, gpu| {
        gpu.record_memory_history(Some(HistoryOptions::default()));
        (0..60).map(|_| gpu.alloc(100 * MIB).unwrap()).collect::<Vec<_>>()
    })
}

fn steady() -> Diagnosis {
    overview(|_, gpu| {
        gpu.record_memory_history(Some(HistoryOptions::default()));
        let weights: Vec<_> = (0..8).map(|_| gpu.alloc(100 * MIB).unwrap()).collect();
        for _ in 0..20 {
            let step: Vec<_> = (0..8).map(|_| gpu.alloc(100 * MIB).unwrap()).collect();
            drop(step);
        }
        weights
    })
}

fn leak() -> Diagnosis {
    overview(|_, gpu| {
        gpu.record_memory_history(Some(HistoryOptions::default()));
        leaking_loop(gpu, 12, 256 * MIB)
    })
}
