//! The golden traces of the specification, section 20: every column after every operation.

use std::collections::BTreeMap;

use crate::model::Model;
use crate::model::device::{Call, MIB};
use crate::model::real::Real;
use crate::model::rules::Conf;
use crate::model::stats::ARRAYS;
use crate::model::subject::Subject;

const DEVICE_MEMORY: u64 = 1024 * MIB;

/// Names of a trace and what they stand for.
#[derive(Default)]
struct Names {
    allocations: BTreeMap<String, u64>,
    streams: BTreeMap<String, u64>,
}

impl Names {
    /// Streams get ascending handles in the order of their appearance; no name is the default stream.
    fn stream(&mut self, name: Option<&&str>) -> u64 {
        let next = (self.streams.len() as u64 + 1) * 0x100;
        name.map_or(0, |name| *self.streams.entry((*name).to_owned()).or_insert(next))
    }
}

fn run(trace: &str, subject: &mut impl Subject) {
    let mut lines = trace.lines();
    let columns: Vec<&str> = lines.next().expect("a header").split(',').skip(2).collect();
    let mut names = Names::default();
    for line in lines {
        // Settings hold no comma in these traces.
        let cells: Vec<&str> = line.split(',').collect();
        let result = apply(cells[0], subject, &mut names);
        assert_eq!(result, cells[1], "result of `{}`", cells[0]);
        let stats = subject.stats();
        for (column, expected) in columns.iter().zip(&cells[2..]) {
            let key =
                if ARRAYS.contains(column) { format!("{column}.all.current") } else { (*column).to_owned() };
            assert_eq!(stats[&key].to_string(), *expected, "{column} after `{}`", cells[0]);
        }
    }
    subject.verify();
}

fn apply(operation: &str, subject: &mut impl Subject, names: &mut Names) -> String {
    let words: Vec<&str> = operation.split(' ').collect();
    match words[0] {
        "alloc" => {
            let stream = names.stream(words.get(3));
            let Ok(address) = subject.alloc(words[2].parse().expect("bytes"), stream) else {
                return "OOM".into();
            };
            names.allocations.insert(words[1].to_owned(), address);
            return place(address, subject.calls());
        }
        "free" => subject.free(names.allocations[words[1]]).expect("a live address"),
        "record" => {
            let stream = names.stream(words.get(2));
            subject.record_stream(names.allocations[words[1]], stream);
        }
        "stream" => drop(names.stream(words.get(1))),
        "busy" => subject.hold(names.stream(words.get(1))),
        "done" => subject.release(names.stream(words.get(1))),
        "empty" => subject.empty_cache(),
        "fraction" => subject.set_fraction(words[1].parse().expect("a fraction")),
        "conf" => subject.set_settings(words[1]),
        other => panic!("unknown operation {other}"),
    }
    String::new()
}

/// `S{n}+{offset}`: in the n-th ordinary segment ever obtained; `E{n}+{offset}`: in the n-th reservation.
fn place(address: u64, calls: &[Call]) -> String {
    let mut place = None;
    let (mut segments, mut reservations) = (0, 0);
    for call in calls {
        let (letter, start, bytes, ordinal) = match *call {
            Call::Malloc { bytes, address: Some(start) } => ('S', start, bytes, &mut segments),
            Call::Reserve { address: start, bytes } => ('E', start, bytes, &mut reservations),
            _ => continue,
        };
        if (start..start + bytes).contains(&address) {
            place = Some(format!("{letter}{ordinal}+{}", address - start));
        }
        *ordinal += 1;
    }
    place.expect("the address lies in memory that the driver gave")
}

/// Current, peak, allocated, freed of `all`, `small_pool`, `large_pool` at the end of trace 20.1.
const FINAL_20_1: [(&str, [[i64; 4]; 3]); 9] = [
    ("allocation", [[0, 9, 15, 15], [0, 4, 5, 5], [0, 5, 10, 10]]),
    ("segment", [[0, 6, 6, 6], [0, 2, 2, 2], [0, 4, 4, 4]]),
    ("active", [[0, 9, 15, 15], [0, 4, 5, 5], [0, 5, 10, 10]]),
    ("inactive_split", [[0, 5, 9, 9], [0, 3, 4, 4], [0, 4, 5, 5]]),
    ("allocated_bytes", BYTES_20_1),
    (
        "reserved_bytes",
        [
            [0, 88_080_384, 88_080_384, 88_080_384],
            [0, 4_194_304, 4_194_304, 4_194_304],
            [0, 83_886_080, 83_886_080, 83_886_080],
        ],
    ),
    ("active_bytes", BYTES_20_1),
    (
        "inactive_split_bytes",
        [
            [0, 32_505_344, 68_772_864, 68_772_864],
            [0, 2_097_152, 3_146_752, 3_146_752],
            [0, 31_456_768, 65_626_112, 65_626_112],
        ],
    ),
    (
        "requested_bytes",
        [
            [0, 62_914_562, 109_668_119, 109_668_119],
            [0, 2_098_664, 2_098_964, 2_098_964],
            [0, 61_865_986, 107_569_155, 107_569_155],
        ],
    ),
];
const BYTES_20_1: [[i64; 4]; 3] = [
    [0, 63_963_648, 111_766_528, 111_766_528],
    [0, 2_098_688, 2_099_200, 2_099_200],
    [0, 62_915_072, 109_667_328, 109_667_328],
];

fn check_final_20_1(stats: &BTreeMap<String, i64>) {
    for (array, pools) in FINAL_20_1 {
        for (pool, values) in ["all", "small_pool", "large_pool"].iter().zip(pools) {
            for (field, value) in ["current", "peak", "allocated", "freed"].iter().zip(values) {
                let key = format!("{array}.{pool}.{field}");
                assert_eq!(stats[&key], value, "{key}");
            }
        }
    }
    assert_eq!(stats.len(), 122);
}

const TRACES: [&str; 6] = [
    include_str!("traces/20_1.csv"),
    include_str!("traces/20_2.csv"),
    include_str!("traces/20_3.csv"),
    include_str!("traces/20_4.csv"),
    include_str!("traces/20_5.csv"),
    include_str!("traces/20_6.csv"),
];

fn follow(trace: usize, mut subject: impl Subject) {
    run(TRACES[trace], &mut subject);
    if trace == 0 {
        check_final_20_1(&subject.stats());
    }
}

macro_rules! traces {
    ($($name:ident $trace:literal)+) => {
        mod model_follows {
            use super::*;
            $(#[test] fn $name() { follow($trace, Model::new(DEVICE_MEMORY, Conf::default(), true)) })+
        }
        mod allocator_follows {
            use super::*;
            $(
                #[test]
                fn $name() {
                    // 20.3 ends with the trap of [spec 3.5], which the default cures [spec 23.5].
                    let modes: &[bool] = if $trace == 2 { &[true] } else { &[true, false] };
                    for &mirror in modes {
                        follow($trace, Real::new(DEVICE_MEMORY, &Conf::default(), mirror));
                    }
                }
            )+
        }
    };
}

traces! {
    spec_20_1_splitting_merging_accounting 0
    spec_20_2_streams_and_deferred_frees 1
    spec_20_3_oversize_blocks 2
    spec_20_4_out_of_memory_retries_fraction 3
    spec_20_5_expandable_segments 4
    spec_20_6_garbage_collection 5
}
