//! Figures that are explained rather than cured: fragmentation, `nvidia-smi`, what `empty_cache` can give.

use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;
use gpucache::observe::diagnose::{Cause, Diagnosis};
use gpucache::observe::file::SnapshotFile;
use gpucache::observe::inspect::{InspectOptions, inspect};
use gpucache::{Allocation, Allocator};

use super::{MIB, SIDE, fresh, on, reserved};

/// MiB that a diagnosis puts down to one cause.
fn held(diagnosis: &Diagnosis, cause: Cause) -> u64 {
    diagnosis.findings.iter().filter(|f| f.cause == cause).map(|f| f.bytes >> 20).sum()
}

/// A segment of 100 MiB with holes of 20 MiB between live blocks.
fn comb(allocator: &Allocator, stream: Stream) -> Vec<Allocation> {
    drop(allocator.alloc_on(100 * MIB, stream).unwrap());
    let teeth: Vec<_> = (0..5).map(|_| allocator.alloc_on(20 * MIB, stream).unwrap()).collect();
    teeth.into_iter().step_by(2).collect()
}

/// Hard: pinned by live blocks. Soft: whole segments, which `empty_cache` gives back. Stream: another stream's.
#[test]
fn hard_soft_and_stream_fragmentation_are_told_apart__torchrec_4584() {
    let (_, allocator) = fresh(300, "");
    let _comb = comb(&allocator, Stream::DEFAULT);
    drop(allocator.alloc_on(60 * MIB, SIDE).unwrap());
    let [large, _pin] = [40, 20].map(|mib| allocator.alloc_on(mib * MIB, SIDE).unwrap());
    drop(large);
    drop(allocator.alloc_on(120 * MIB, SIDE).unwrap());

    let idle = allocator.diagnose().unwrap();
    assert_eq!((held(&idle, Cause::Fragmented), held(&idle, Cause::Cached)), (80, 120));
    allocator.empty_cache().unwrap();
    let after = allocator.diagnose().unwrap();
    assert_eq!((held(&after, Cause::Fragmented), held(&after, Cause::Cached)), (80, 0), "the comb stays");
    let _rest = allocator.alloc(140 * MIB).unwrap();
    // Nothing is left at the driver; 30 MiB would fit beside the pin, were it not another stream's.
    let failing = allocator.diagnose_request(30 * MIB, Stream::DEFAULT).unwrap();
    assert_eq!((held(&failing, Cause::Fragmented), held(&failing, Cause::OtherStream)), (40, 40));
}

/// A buffer that is made anew at twice its size, with a small block beside it that stays: reserved memory rises in
/// pieces that never merge, while nothing live is lost.
#[test]
fn growth_in_pieces_is_fragmentation_not_a_leak__rmm_75() {
    let (_, allocator) = fresh(4000, "");
    allocator.record_memory_history(Some(gpucache::HistoryOptions::default()));
    let (mut buffer, mut beside) = (None, Vec::new());
    for mib in [40, 80, 160, 320] {
        drop(allocator.alloc(mib * MIB).unwrap());
        let grown = allocator.alloc((mib - 20) * MIB).unwrap();
        beside.push(allocator.alloc(12 * MIB).unwrap());
        drop(buffer.replace(grown));
    }
    let diagnosis = allocator.diagnose().unwrap();
    assert_eq!(held(&diagnosis, Cause::Fragmented), 20 + 60 + 140 + 4 * 8, "{diagnosis:?}");
    assert!(!diagnosis.causes().contains(&Cause::Growing), "{diagnosis:?}");
    assert_eq!((reserved(&allocator), allocator.leaks().bytes >> 20), (600, 300 + 4 * 12));

    // One that is a leak is called so.
    for _ in 0..40 {
        beside.push(allocator.alloc(3 * MIB).unwrap());
        drop(allocator.alloc(3 * MIB).unwrap());
    }
    assert!(allocator.diagnose().unwrap().causes().contains(&Cause::Growing));
}

fn shared_device() -> (SimDevice, Allocator) {
    let device = SimDevice::builder().total_memory(2 << 30).context_overhead(300 << 20).build();
    device.set_other_process(4242, 500 << 20);
    let allocator = on(&device, "");
    (device, allocator)
}

#[test]
fn every_row_of_nvidia_smi_has_a_holder__pytorch_37250_101159() {
    let (device, allocator) = shared_device();
    let live = allocator.alloc(100 * MIB).unwrap();
    drop(allocator.alloc(50 * MIB).unwrap());
    let at_first = allocator.reconcile().unwrap();
    assert_eq!(at_first.reserved >> 20, 150);
    // Another library of this process asks the driver itself.
    let foreign = gpucache::device::Device::malloc(&device, 70 << 20).unwrap();
    let now = allocator.reconcile().unwrap();
    for r in [&at_first, &now] {
        let rows = r.reserved + r.context.unwrap() + r.other_own.unwrap() + r.others_bytes().unwrap();
        assert_eq!((rows, r.residual()), (r.used(), Some(0)));
    }
    assert_eq!(now.other_own, Some(70 << 20));
    gpucache::device::Device::free(&device, foreign).unwrap();
    drop(live);
}

/// What stays when everything is freed is the context, and it is called so.
#[test]
fn the_context_is_named__pytorch_28113_60150() {
    let (_, allocator) = shared_device();
    drop(allocator.alloc(100 * MIB).unwrap());
    allocator.empty_cache().unwrap();
    let r = allocator.reconcile().unwrap();
    assert_eq!((r.reserved, r.context, r.other_own), (0, Some(300 << 20), Some(0)));
    assert!(r.to_string().contains("CUDA context and modules"), "{r}");
}

#[test]
fn reserved_is_split_into_used_and_cached__pytorch_40989() {
    let (_, allocator) = shared_device();
    let _live = allocator.alloc(100 * MIB).unwrap();
    drop(allocator.alloc(50 * MIB).unwrap());
    let text = allocator.reconcile().unwrap().to_string();
    let row = |name: &str, figure: &str| text.lines().any(|l| l.contains(name) && l.contains(figure));
    assert!(row("reserved by gpucache", "150.00 MiB"), "{text}");
    assert!(row("in use", "100.00 MiB") && row("cached", "50.00 MiB"), "{text}");
}

#[test]
fn other_processes_are_shown__pytorch_103243() {
    let (_, allocator) = shared_device();
    let r = allocator.reconcile().unwrap();
    let others: Vec<_> = r.others.iter().flatten().map(|p| (p.pid, p.used.map(|b| b >> 20))).collect();
    assert_eq!(others, [(4242, Some(500))]);
    assert_eq!(held(&allocator.diagnose().unwrap(), Cause::OtherProcess), 500);
}

/// The advice names `empty_cache` where it gives something, and says so where it gives nothing.
#[test]
fn what_empty_cache_can_and_cannot_give__pytorch_4879() {
    let (_, allocator) = fresh(300, "");
    let _comb = comb(&allocator, Stream::DEFAULT);
    drop(allocator.alloc_on(60 * MIB, SIDE).unwrap());
    let diagnosis = allocator.diagnose().unwrap();
    let find = |cause| diagnosis.findings.iter().find(|f| f.cause == cause).unwrap();
    let (soft, hard) = (find(Cause::Cached), find(Cause::Fragmented));
    assert!(soft.remedy.contains("empty_cache()"), "{}", soft.remedy);
    assert!(hard.explanation.contains("empty_cache() frees nothing of it"), "{}", hard.explanation);
    assert_eq!(allocator.empty_cache().unwrap().freed_bytes, soft.bytes);
    // Nor does it cure an out of memory: the allocator has tried by then.
    let failing = allocator.diagnose_request(250 * MIB, Stream::DEFAULT).unwrap();
    assert!(!failing.causes().contains(&Cause::Cached));
    assert!(failing.findings.iter().all(|f| !f.remedy.contains("empty_cache")), "{failing:?}");
}

#[test]
fn a_number_for_fragmentation__byroredux_503() {
    let (_, allocator) = fresh(4000, "");
    let number = || {
        let file = SnapshotFile::merge([allocator.memory_snapshot()]);
        inspect(&file, 0, InspectOptions::default()).totals.fragmentation()
    };
    assert!(number().abs() < 1e-9);
    let comb = comb(&allocator, Stream::DEFAULT);
    assert!((number() - 0.5).abs() < 1e-9, "two holes of one size");
    drop(comb);
    assert!(number().abs() < 1e-9, "one piece again");
}
