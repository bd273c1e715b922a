//! Requests that fail. Each scenario lets a request fail for real and takes the findings of its report; asking
//! beforehand must give the same causes.

use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;
use gpucache::observe::diagnose::{Cause, Diagnosis, Outcome};
use gpucache::observe::snapshot::PoolId;
use gpucache::{Allocation, Allocator, Error, HistoryOptions};

use super::causes::Scenario;
use super::{GIB, MIB};

const OTHER: Stream = Stream::from_raw(7);

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario { name: "fails: another process", expected: &[Cause::OtherProcess], run: other_process },
        Scenario { name: "fails: fragmented", expected: &[Cause::Fragmented], run: fragmented },
        Scenario { name: "fails: 1 byte beside large pieces", expected: &[Cause::Fragmented], run: one_byte },
        Scenario {
            name: "fails: cached for another stream",
            expected: &[Cause::OtherStream],
            run: other_stream,
        },
        Scenario { name: "fails: dropped during a capture", expected: &[Cause::PendingFree], run: pending },
        Scenario {
            name: "fails: idle in a private pool",
            expected: &[Cause::PrivatePool],
            run: private_pool,
        },
        Scenario { name: "fails: own limit", expected: &[Cause::Cap], run: cap },
        Scenario {
            name: "fails: other libraries of this process",
            expected: &[Cause::Context],
            run: context,
        },
        Scenario { name: "fails: cached, a pool is active", expected: &[Cause::Cached], run: cached },
        Scenario { name: "fails: too small", expected: &[Cause::TooSmall], run: too_small },
        Scenario {
            name: "fails: a model that is too large",
            expected: &[Cause::TooSmall],
            run: too_large_a_model,
        },
        Scenario {
            name: "fails: in a pool, cached outside of it",
            expected: &[Cause::Cached],
            run: cached_outside,
        },
        Scenario { name: "fails: a leak", expected: &[Cause::Growing], run: leak },
        Scenario {
            name: "fails: NVML is silent, much is used elsewhere",
            expected: &[Cause::OtherProcess],
            run: unseen,
        },
        Scenario {
            name: "fails: limit, and fragments below it",
            expected: &[Cause::Cap, Cause::Fragmented],
            run: || fragments_and(24, 0, Some(12)),
        },
        Scenario {
            name: "fails: another process, and smaller fragments",
            expected: &[Cause::OtherProcess, Cause::Fragmented],
            run: || fragments_and(16, 4, None),
        },
        Scenario {
            name: "fails: fragments, and a smaller process",
            expected: &[Cause::Fragmented, Cause::OtherProcess],
            run: || fragments_and(14, 2, None),
        },
        Scenario {
            name: "fails: two that suffice only together",
            expected: &[Cause::PrivatePool, Cause::OtherProcess],
            run: only_together,
        },
        Scenario {
            name: "fails: too small even without the other process",
            expected: &[Cause::TooSmall, Cause::OtherProcess],
            run: too_small_and_process,
        },
        Scenario {
            name: "fails: a normal context is no cause",
            expected: &[Cause::TooSmall],
            run: normal_context,
        },
    ]
}

fn sim(gib: usize) -> (SimDevice, Allocator) {
    let device = SimDevice::new((gib * GIB) as u64);
    (device.clone(), Allocator::simulated(device))
}

/// The diagnosis of a request, which must fail when it is made, for the same causes.
fn fail(gpu: &Allocator, bytes: usize, stream: Stream) -> Diagnosis {
    let asked = gpu.diagnose_request(bytes, stream).unwrap();
    assert_eq!(asked.outcome, Outcome::Fails, "{asked}");
    let Err(Error::OutOfMemory(report)) = gpu.alloc_on(bytes, stream) else {
        panic!("{bytes} bytes were served")
    };
    let causes = |d: &[gpucache::observe::diagnose::Finding]| d.iter().map(|f| f.cause).collect::<Vec<_>>();
    assert_eq!(causes(&asked.findings), causes(&report.findings), "asked beforehand:\n{asked}\n{report:#}");
    for finding in &report.findings {
        assert!(words(report.explanation.as_ref().unwrap()).contains(&words(&finding.remedy)));
        assert!(format!("{report:#}").contains(finding.cause.title()));
        assert!(!format!("{report}").contains(finding.cause.title()));
    }
    asked
}

/// Without the line breaks that texts for people have.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn other_process() -> Diagnosis {
    let (device, gpu) = sim(12);
    device.set_other_process(77, 9 << 30);
    let _live = gpu.alloc(GIB).unwrap();
    let diagnosis = fail(&gpu, 4 * GIB, Stream::DEFAULT);
    assert_eq!(diagnosis.findings[0].bytes, 9 << 30);
    assert_eq!(diagnosis.findings[0].holders[0].what, "process 77");
    assert!(diagnosis.findings[0].remedy.contains("process 77"));
    diagnosis
}

/// Six buffers of 2 GiB, then six of 1.5 GiB in their places.
fn fragments(gpu: &Allocator) -> Vec<Allocation> {
    let first: Vec<_> = (0..6).map(|_| gpu.alloc(2 * GIB).unwrap()).collect();
    drop(first);
    (0..6).map(|_| gpu.alloc(1536 * MIB).unwrap()).collect()
}

fn fragmented() -> Diagnosis {
    let (_, gpu) = sim(12);
    let live = fragments(&gpu);
    let diagnosis = fail(&gpu, 2 * GIB, Stream::DEFAULT);
    let finding = &diagnosis.findings[0];
    assert_eq!((finding.bytes, finding.sufficient), (3 << 30, Some(true)));
    assert_eq!(finding.holders.len(), 5, "the worst segments");
    let pinned = format!("{:#x}, from {}", live[0].address(), file!());
    assert!(finding.holders[0].what.contains(&pinned), "{pinned} in {:?}", finding.holders);
    diagnosis
}

/// Small requests are not served from the segments of large ones.
fn one_byte() -> Diagnosis {
    let (_, gpu) = sim(12);
    let _live = fragments(&gpu);
    let diagnosis = fail(&gpu, 1, Stream::DEFAULT);
    assert!(diagnosis.findings[0].explanation.contains("requests up to 1 MiB"), "{diagnosis}");
    diagnosis
}

fn other_stream() -> Diagnosis {
    let (_, gpu) = sim(12);
    drop(gpu.alloc_on(6 * GIB, OTHER).unwrap());
    let _pin = gpu.alloc_on(GIB, OTHER).unwrap();
    let _live = gpu.alloc(5 * GIB).unwrap();
    let diagnosis = fail(&gpu, 3 * GIB, Stream::DEFAULT);
    assert_eq!(diagnosis.findings[0].bytes, 5 << 30);
    assert!(diagnosis.findings[0].holders[0].what.contains("stream 0x7"));
    diagnosis
}

/// Keeps the cache from being emptied, as a capture on another stream does.
fn pool_active(gpu: &Allocator) -> PoolId {
    let id = gpu.graph_pool_id();
    gpu.begin_allocate_to_pool(id, |stream| stream.raw() == 99).unwrap();
    id
}

fn pending() -> Diagnosis {
    let (device, gpu) = sim(12);
    let used_elsewhere = gpu.alloc(5 * GIB).unwrap();
    let _live = gpu.alloc(5 * GIB).unwrap();
    used_elsewhere.record_stream(OTHER);
    device.hold(OTHER);
    pool_active(&gpu);
    drop(used_elsewhere);
    let diagnosis = fail(&gpu, 4 * GIB, Stream::DEFAULT);
    assert!(diagnosis.findings[0].holders[0].what.contains("end of the capture"));
    diagnosis
}

fn private_pool() -> Diagnosis {
    let (_, gpu) = sim(12);
    let pool = gpu.create_pool();
    pool.scope(|| drop(gpu.alloc(5 * GIB).unwrap())).unwrap();
    let _live = gpu.alloc(5 * GIB).unwrap();
    let diagnosis = fail(&gpu, 4 * GIB, Stream::DEFAULT);
    assert_eq!(diagnosis.findings[0].bytes, 5 << 30);
    diagnosis
}

fn cap() -> Diagnosis {
    let (_, gpu) = sim(12);
    gpu.set_per_process_memory_fraction(0.5).unwrap();
    let _live = gpu.alloc(4 * GIB).unwrap();
    fail(&gpu, 3 * GIB, Stream::DEFAULT)
}

fn with_context(bytes: usize) -> Allocator {
    let device = SimDevice::builder().total_memory(12 << 30).context_overhead(bytes as u64).build();
    Allocator::simulated(device)
}

fn context() -> Diagnosis {
    let gpu = with_context(5 * GIB);
    let _live = gpu.alloc(4 * GIB).unwrap();
    fail(&gpu, 4 * GIB, Stream::DEFAULT)
}

fn normal_context() -> Diagnosis {
    let gpu = with_context(600 * MIB);
    let _live = gpu.alloc(8 * GIB).unwrap();
    fail(&gpu, 4 * GIB, Stream::DEFAULT)
}

fn cached() -> Diagnosis {
    let (_, gpu) = sim(12);
    drop(gpu.alloc(6 * GIB).unwrap());
    pool_active(&gpu);
    fail(&gpu, 8 * GIB, Stream::DEFAULT)
}

fn too_small() -> Diagnosis {
    let (_, gpu) = sim(12);
    let _live = gpu.alloc(8 * GIB).unwrap();
    let diagnosis = fail(&gpu, 6 * GIB, Stream::DEFAULT);
    assert_eq!(diagnosis.findings[0].bytes, 2 << 30, "missing");
    diagnosis
}

fn too_large_a_model() -> Diagnosis {
    let (_, gpu) = sim(12);
    gpu.record_memory_history(Some(HistoryOptions::default()));
    let _weights: Vec<_> = (0..23).map(|_| gpu.alloc(512 * MIB).unwrap()).collect();
    fail(&gpu, 768 * MIB, Stream::DEFAULT)
}

fn cached_outside() -> Diagnosis {
    let (_, gpu) = sim(12);
    drop(gpu.alloc(8 * GIB).unwrap());
    // A capture: in a plain scope the default pools would be released for the request.
    let capture = gpu.graph_pool_id();
    gpu.begin_allocate_to_pool(capture, |_| true).unwrap();
    let failed = fail(&gpu, 6 * GIB, Stream::DEFAULT);
    gpu.end_allocate_to_pool(capture).unwrap();
    failed
}

/// Iterations that keep one block each and drop all others.
pub(crate) fn leaking_loop(gpu: &Allocator, iterations: usize, leak: usize) -> Vec<Allocation> {
    let mut kept = Vec::new();
    for _ in 0..iterations {
        let temporary: Vec<_> = (0..4).map(|_| gpu.alloc(32 * MIB).unwrap()).collect();
        kept.push(gpu.alloc(leak).unwrap());
        drop(temporary);
    }
    kept
}

fn leak() -> Diagnosis {
    let (_, gpu) = sim(12);
    gpu.record_memory_history(Some(HistoryOptions::default()));
    let _weights = gpu.alloc(2 * GIB).unwrap();
    let kept = leaking_loop(&gpu, 16, 512 * MIB);
    let diagnosis = fail(&gpu, 4 * GIB, Stream::DEFAULT);
    let finding = &diagnosis.findings[0];
    assert_eq!(finding.bytes, (kept.len() * 512 * MIB) as u64);
    assert!(finding.holders[0].what.contains("failing.rs") && finding.holders.len() == 1, "{finding}");
    diagnosis
}

fn unseen() -> Diagnosis {
    let device = SimDevice::builder().total_memory(12 << 30).processes_visible(false).build();
    device.set_other_process(77, 9 << 30);
    let gpu = Allocator::simulated(device);
    let _live = gpu.alloc(GIB).unwrap();
    fail(&gpu, 4 * GIB, Stream::DEFAULT)
}

/// Fragments on a device of so many GiB, where another process holds some and a cap may be set.
fn fragments_and(total: usize, other: usize, cap: Option<usize>) -> Diagnosis {
    let (device, gpu) = sim(total);
    device.set_other_process(77, (other * GIB) as u64);
    if let Some(cap) = cap {
        gpu.set_per_process_memory_fraction(cap as f64 / total as f64).unwrap();
    }
    let _live = fragments(&gpu);
    fail(&gpu, 2 * GIB, Stream::DEFAULT)
}

fn only_together() -> Diagnosis {
    let (device, gpu) = sim(12);
    device.set_other_process(77, 2 << 30);
    let pool = gpu.create_pool();
    pool.scope(|| drop(gpu.alloc(3 * GIB).unwrap())).unwrap();
    let _live = gpu.alloc(6 * GIB).unwrap();
    let diagnosis = fail(&gpu, 5 * GIB, Stream::DEFAULT);
    assert!(diagnosis.findings.iter().all(|f| f.sufficient == Some(false)));
    diagnosis
}

fn too_small_and_process() -> Diagnosis {
    let (device, gpu) = sim(12);
    device.set_other_process(77, 2 << 30);
    let _live = gpu.alloc(8 * GIB).unwrap();
    fail(&gpu, 6 * GIB, Stream::DEFAULT)
}

#[test]
fn a_request_that_fits_has_no_findings() {
    let (_, gpu) = sim(12);
    let _live = fragments(&gpu);
    for bytes in [0, 2 * MIB, 512 * MIB] {
        let diagnosis = gpu.diagnose_request(bytes, Stream::DEFAULT).unwrap();
        assert_eq!((diagnosis.outcome, diagnosis.findings.len()), (Outcome::Fits, 0), "{bytes}: {diagnosis}");
    }
    assert!(matches!(gpu.diagnose_request(1 << 60, Stream::DEFAULT), Err(Error::TooLarge { .. })));
}

#[test]
fn a_driver_that_fails_without_need_is_not_explained_away() {
    use gpucache::device::sim::{CallKind, Fault};
    let (device, gpu) = sim(12);
    device.fail_from(CallKind::Malloc, 1, Fault::OutOfMemory);
    let Err(Error::OutOfMemory(report)) = gpu.alloc(GIB) else { panic!("the driver was to fail") };
    assert!(report.findings.is_empty(), "{report:#}");
}
