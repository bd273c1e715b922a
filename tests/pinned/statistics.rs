//! The 28 statistics [spec 17.5], and what PyTorch has wrong there [spec 23.1].

use std::collections::HashMap;

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, SimDevice};
use gpucache::stats::Nested;

use super::Bed;

#[test]
fn twenty_eight_keys_sorted() {
    let keys: Vec<String> = Bed::new("").host_memory_stats().to_map().into_keys().collect();
    let mut expected: Vec<String> = vec!["num_host_alloc".into(), "num_host_free".into()];
    for group in ["active_bytes", "active_requests", "allocated_bytes", "allocations"] {
        expected.extend(["allocated", "current", "freed", "peak"].map(|field| format!("{group}.{field}")));
    }
    for group in ["host_alloc_time", "host_free_time"] {
        expected.extend(["avg", "count", "max", "min", "total"].map(|field| format!("{group}.{field}")));
    }
    expected.sort();
    assert_eq!((keys.len(), keys), (28, expected));
}

#[test]
fn nested_order() {
    let Nested::Group(top) = Bed::new("").host_memory_stats().to_nested() else { unreachable!() };
    let names: Vec<&str> = top.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names.join(", "),
        "num_host_alloc, num_host_free, allocations, active_requests, allocated_bytes, active_bytes, \
         host_alloc_time, host_free_time"
    );
    let fields = |index: usize| match &top[index].1 {
        Nested::Group(fields) => fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        Nested::Value(_) => String::new(),
    };
    assert_eq!(fields(2), "current, peak, allocated, freed");
    assert_eq!(fields(6), "total, max, min, count, avg");
}

/// `[current, peak, allocated, freed]` of the four groups.
fn figures(bed: &Bed) -> [[i64; 4]; 4] {
    bed.host_memory_stats().stats().map(|(_, stat)| stat.fields().map(|(_, value)| value))
}

/// A sequence with a direct return, one after an event, resets; the figures after each of its steps.
fn sequence(options: &str) -> Vec<[[i64; 4]; 4]> {
    let bed = Bed::on(SimDevice::new(1 << 30), options);
    let s: Stream = bed.device.create_stream();
    let mut seen = Vec::new();
    let mut see = || seen.push(figures(&bed));
    let first = bed.host_alloc_raw(5000).unwrap();
    see();
    let second = bed.host_alloc_raw(100).unwrap();
    bed.device.hold(s);
    bed.record_event(first, s).unwrap();
    bed.host_free_raw(first).unwrap();
    see();
    let third = bed.host_alloc_raw(5000).unwrap();
    see();
    bed.device.release(s);
    bed.host_free_raw(third).unwrap();
    see();
    let fourth = bed.host_alloc_raw(1).unwrap();
    see();
    bed.reset_peak_host_memory_stats();
    see();
    for address in [second, fourth] {
        bed.host_free_raw(address).unwrap();
    }
    bed.host_empty_cache().unwrap();
    see();
    bed.reset_accumulated_host_memory_stats();
    see();
    assert_eq!(bed.host_memory_stats().host_alloc_time.count, 0);
    assert_eq!(bed.host_memory_stats().host_free_time.total, 0);
    seen
}

#[test]
fn defect_1_correct_without_mirror_defects() {
    let expected = [
        [[1, 1, 1, 0], [1, 1, 1, 0], [8192, 8192, 8192, 0], [8192, 8192, 8192, 0]],
        [[2, 2, 2, 0], [2, 2, 2, 0], [8320, 8320, 8320, 0], [8320, 8320, 8320, 0]],
        [[3, 3, 3, 0], [3, 3, 3, 0], [16512, 16512, 16512, 0], [16512, 16512, 16512, 0]],
        [[3, 3, 3, 0], [2, 3, 3, 1], [16512, 16512, 16512, 0], [8320, 16512, 16512, 8192]],
        // The event is seen, then one more byte.
        [[4, 4, 4, 0], [2, 3, 4, 2], [16513, 16513, 16513, 0], [129, 16512, 16513, 16384]],
        [[4, 4, 4, 0], [2, 2, 4, 2], [16513, 16513, 16513, 0], [129, 129, 16513, 16384]],
        [[0, 4, 4, 4], [0, 2, 4, 4], [0, 16513, 16513, 16513], [0, 129, 16513, 16513]],
        [[0, 4, 0, 0], [0, 2, 0, 0], [0, 16513, 0, 0], [0, 129, 0, 0]],
    ];
    assert_eq!(sequence(""), expected);
}

/// What PyTorch 2.11 itself answered to this sequence.
#[test]
fn defect_1_reproduced_with_mirror_defects() {
    let expected = [
        [[1, 1, 1, 0], [1, 1, 1, 0], [8192, 8192, 8192, 0], [8192, 8192, 8192, 0]],
        [[2, 2, 2, 0], [2, 2, 2, 0], [8320, 8320, 8320, 0], [8320, 8320, 8320, 0]],
        [[3, 3, 3, 0], [3, 3, 3, 0], [16512, 16512, 16512, 0], [16512, 16512, 16512, 0]],
        [[3, 3, 3, 0], [3, 3, 3, 0], [16512, 16512, 16512, 0], [16512, 16512, 16512, 0]],
        [[4, 4, 4, 0], [3, 4, 4, 1], [16513, 16513, 16513, 0], [16514, 16513, 16513, -1]],
        [[4, 4, 4, 0], [3, 3, 4, 1], [16513, 16513, 16513, 0], [16514, 16514, 16513, -1]],
        [[0, 4, 4, 4], [3, 3, 4, 1], [0, 16513, 16513, 16513], [16514, 16514, 16513, -1]],
        [[0, 4, 0, 0], [3, 3, 0, 0], [0, 16513, 0, 0], [16514, 16514, 0, 0]],
    ];
    assert_eq!(sequence("mirror_defects:True"), expected);
}

#[test]
fn peaks_are_those_of_the_sum() {
    let bed = Bed::new("");
    for bytes in [4096, 8192, 16384] {
        let address = bed.host_alloc_raw(bytes).unwrap();
        bed.host_free_raw(address).unwrap();
    }
    assert_eq!((bed.stat("active_requests.peak"), bed.stat("active_bytes.peak")), (1, 16384));
}

/// Plays one line of `events.tsv`; a new block for an `a`.
fn play(bed: &Bed, request: &str, blocks: &[u64], streams: &[Stream; 2]) -> Option<u64> {
    let (code, rest) = request.split_once(' ').unwrap_or((request, ""));
    let numbers: Vec<usize> = rest.split_whitespace().map(|word| word.parse().unwrap()).collect();
    match code {
        "a" => return Some(bed.host_alloc_raw(numbers[0]).unwrap()),
        "f" => bed.host_free_raw(blocks[numbers[0]]).unwrap(),
        "r" => bed.record_event(blocks[numbers[0]], streams[numbers[1]]).unwrap(),
        "b" => bed.device.hold(streams[numbers[0]]),
        "s" => bed.device.release(streams[numbers[0]]),
        "e" => drop(bed.host_empty_cache().unwrap()),
        "p" => bed.reset_peak_host_memory_stats(),
        "P" => bed.reset_accumulated_host_memory_stats(),
        other => panic!("{other}"),
    }
    None
}

#[test]
fn pytorch_answers_to_random_requests_with_events() {
    let bed = Bed::new("mirror_defects:True");
    let streams = [bed.device.create_stream(), bed.device.create_stream()];
    let mut blocks = Vec::new();
    let mut ours: HashMap<&str, u64> = HashMap::new();
    let lines = include_str!("../data/pinned/events.tsv").lines().filter(|line| !line.starts_with('#'));
    for (number, line) in lines.enumerate() {
        let mut fields = line.split('\t');
        let (request, expected) = (fields.next().unwrap(), fields.next().unwrap());
        let calls = bed.calls(CallKind::HostMalloc);
        if let Some(address) = play(&bed, request, &blocks, &streams) {
            blocks.push(address);
            let theirs = fields.next().unwrap();
            if bed.calls(CallKind::HostMalloc) == calls {
                assert_eq!(ours.get(theirs), Some(&address), "line {number}: another block was reused");
            } else {
                ours.insert(theirs, address);
            }
        }
        let got = figures(&bed).map(|figure| figure.map(|value| value.to_string()).join(" ")).join(" ");
        assert_eq!(got, expected, "line {number}: {request}");
    }
    // Those that were freed already are refused, or free their successor.
    for address in blocks {
        let _ = bed.host_free_raw(address);
    }
}
