//! The out-of-memory message against PyTorch's [spec 11].

use gpucache::Config;
use gpucache::device::ProcessMemory;
use gpucache::observe::oom::OomReport;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const ADVICE: &str = " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
const OUR_ADVICE: &str = " If reserved but unallocated memory is large try setting GPUCACHE_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (docs/diagnosis.md)";

fn report(segment_size: u64) -> OomReport {
    let mut report = OomReport::default();
    report.segment_size = segment_size;
    report.device_total = 10 * GIB;
    report.device_free = 10 * GIB;
    report
}

fn process(pid: u32, used: Option<u64>, is_self: bool) -> ProcessMemory {
    ProcessMemory { pid, used, is_self }
}

/// [spec 11.6], first sample.
#[test]
fn without_a_limit() {
    let report = report(11 * GIB);
    let start = "CUDA out of memory. Tried to allocate 11.00 GiB. GPU 0 has a total capacity of 10.00 GiB of which 10.00 GiB is free. Of the allocated memory 0 bytes is allocated by ";
    assert_eq!(
        report.pytorch_message(),
        format!("{start}PyTorch, and 0 bytes is reserved by PyTorch but unallocated.{ADVICE}")
    );
    assert_eq!(
        report.to_string(),
        format!("{start}gpucache, and 0 bytes is reserved by gpucache but unallocated.{OUR_ADVICE}")
    );
}

/// [spec 11.6], second sample.
#[test]
fn with_a_limit_and_processes() {
    let mut report = report(20 * GIB);
    report.allowed = Some(15 * GIB / 2);
    report.allocated = 1024;
    report.reserved = 2 * MIB;
    report.processes = Some(vec![process(1000, Some(5 * GIB), false), process(1, Some(3 * MIB), true)]);
    assert_eq!(
        report.pytorch_message(),
        format!(
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 10.00 GiB of which 10.00 GiB is free. Process 1000 has 5.00 GiB memory in use. Including non-PyTorch memory, this process has 3.00 MiB memory in use. 7.50 GiB allowed; Of the allocated memory 1024 bytes is allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but unallocated.{ADVICE}"
        )
    );
    assert!(
        report
            .to_string()
            .contains(" Including non-gpucache memory, this process has 3.00 MiB memory in use. ")
    );
}

/// [spec 11.6], third sample: PyTorch calls the pool's idle bytes allocated [spec 23.11]; we do not.
#[test]
fn idle_bytes_of_private_pools() {
    let mut report = report(20 * GIB);
    report.allocated = 30 * MIB;
    report.private_free = 300 * MIB;
    report.reserved = 334 * MIB;
    assert!(report.pytorch_message().contains(
        " Of the allocated memory 330.00 MiB is allocated by PyTorch, with 300.00 MiB allocated in private pools (e.g., CUDA Graphs), and 4.00 MiB is reserved by PyTorch but unallocated. If"
    ));
    assert!(report.to_string().contains(
        " Of the allocated memory 30.00 MiB is allocated by gpucache, and 304.00 MiB is reserved by gpucache but unallocated, of which 300.00 MiB is idle in private pools (e.g., CUDA Graphs). If"
    ));
}

/// [spec 24]: a request of one byte at the limit, and exactly 1 MiB free.
#[test]
fn sizes_at_the_limits_of_their_units() {
    let mut report = report(2 * MIB);
    report.requested = 1;
    report.device_free = MIB;
    let text = report.pytorch_message();
    assert!(text.contains("Tried to allocate 2.00 MiB. GPU 0 "), "{text}");
    assert!(text.contains(" of which 1024.00 KiB is free. Of "), "{text}");
}

/// [spec 11.3]
#[test]
fn a_process_whose_use_is_unknown() {
    let mut report = report(GIB);
    report.processes = Some(vec![process(7, None, false)]);
    assert!(report.pytorch_message().contains(" Process 7 has 17179869184.00 GiB memory in use. Of"));
    assert!(report.to_string().contains(" Process 7 has an unknown amount of memory in use. Of"));
}

/// Recorded on an H200 (rule `oom_real`).
#[test]
fn recorded_text() {
    let mut report = report(400 * GIB);
    report.device_total = 150_109_880_320;
    report.device_free = 146_919_587_840;
    let own = process(650, Some(518 * MIB), true);
    report.processes =
        Some(vec![process(648, Some(588 * MIB), false), own, process(679, Some(14 * MIB), false)]);
    assert_eq!(
        report.pytorch_message(),
        format!(
            "CUDA out of memory. Tried to allocate 400.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 136.83 GiB is free. Process 648 has 588.00 MiB memory in use. Including non-PyTorch memory, this process has 518.00 MiB memory in use. Process 679 has 14.00 MiB memory in use. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.{ADVICE}"
        )
    );
}

#[test]
fn the_alternate_form_adds_options_and_explanation() {
    let mut report = report(GIB);
    let sentence = report.to_string();
    assert_eq!(format!("{report:#}"), format!("{sentence}\nOptions in force: all at their defaults"));
    report.config = Config::parse("max_split_size_mb:200mb,roundup_power2_divisions,4").unwrap();
    report.explanation = Some("Cause: too small.\n".to_owned());
    assert_eq!(report.to_string(), sentence);
    assert_eq!(
        format!("{report:#}"),
        format!(
            "{sentence}\nOptions in force: max_split_size_mb:200,roundup_power2_divisions:4\nCause: too small."
        )
    );
}

/// Numbers that contradict each other still give a text.
#[test]
fn impossible_numbers_do_not_panic() {
    let mut report = report(u64::MAX);
    report.allocated = u64::MAX;
    report.private_free = u64::MAX;
    assert!(report.pytorch_message().contains("Tried to allocate 17179869184.00 GiB"));
    assert!(report.to_string().contains(" 0 bytes is reserved by gpucache but unallocated"));
}
