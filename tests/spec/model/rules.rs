//! Sizes and options: rules without state [spec 1, 2, 15].

use super::device::MIB;

pub(crate) const SMALL_SEGMENT: u64 = 2 * MIB;
const MIN_BLOCK: u64 = 512;
const SMALL_LIMIT: u64 = MIB;
const OWN_SEGMENT: u64 = 10 * MIB;
/// `max_split_size` when there is no limit.
pub(crate) const UNLIMITED: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Small,
    Large,
}

impl Kind {
    /// [spec 2.4]
    pub(crate) fn of(rounded: u64) -> Self {
        if rounded <= SMALL_LIMIT { Kind::Small } else { Kind::Large }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Conf {
    pub(crate) max_split: u64,
    /// `None`: the large segment size.
    pub(crate) max_non_split_rounding: Option<u64>,
    pub(crate) large_segment: u64,
    pub(crate) gc_threshold: f64,
    pub(crate) divisions: [u64; 16],
    pub(crate) expandable: bool,
    pub(crate) fraction: f64,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            max_split: UNLIMITED,
            max_non_split_rounding: None,
            large_segment: 20 * MIB,
            gc_threshold: 0.0,
            divisions: [0; 16],
            expandable: false,
            fraction: 1.0,
        }
    }
}

impl Conf {
    pub(crate) fn parse(text: &str) -> Self {
        let mut conf = Conf::default();
        conf.apply(text);
        conf
    }

    /// A settings call: four options fall back to their defaults, the rest is kept [spec 15.1].
    pub(crate) fn apply(&mut self, text: &str) {
        self.max_split = UNLIMITED;
        self.max_non_split_rounding = None;
        self.gc_threshold = 0.0;
        self.divisions = [0; 16];
        for (key, value) in options(text) {
            let mib = || value.parse::<u64>().expect("a number of MiB") * MIB;
            match key {
                "max_split_size_mb" => self.max_split = mib(),
                "max_non_split_rounding_mb" => self.max_non_split_rounding = Some(mib()),
                "large_segment_size_mb" => self.large_segment = mib(),
                "garbage_collection_threshold" => self.gc_threshold = value.parse().expect("a number"),
                "roundup_power2_divisions" => self.divisions = divisions(value),
                "expandable_segments" => self.expandable = value == "True",
                "per_process_memory_fraction" => self.fraction = value.parse().expect("a number"),
                _ => panic!("the model has no option {key}"),
            }
        }
    }

    pub(crate) fn non_split_rounding(&self) -> u64 {
        self.max_non_split_rounding.unwrap_or(self.large_segment)
    }

    /// [spec 2.1]
    pub(crate) fn round(&self, bytes: u64) -> u64 {
        if bytes < MIN_BLOCK {
            return MIN_BLOCK;
        }
        let slot = (bytes.ilog2().max(20) - 20).min(15);
        let divisions = self.divisions[slot as usize];
        if divisions > 1 && bytes > MIN_BLOCK * divisions {
            pow2_div(bytes, divisions)
        } else {
            bytes.next_multiple_of(MIN_BLOCK)
        }
    }

    /// [spec 2.3]
    pub(crate) fn segment_size(&self, rounded: u64) -> u64 {
        if rounded <= SMALL_LIMIT {
            SMALL_SEGMENT
        } else if rounded < OWN_SEGMENT {
            self.large_segment
        } else {
            rounded.next_multiple_of(2 * MIB)
        }
    }

    /// [spec 3.3] rules 2 and 3
    pub(crate) fn should_split(&self, kind: Kind, size: u64, rounded: u64, expandable: bool) -> bool {
        let rest = size - rounded;
        if kind == Kind::Small || expandable {
            rest >= MIN_BLOCK
        } else {
            rounded < self.max_split && rest > SMALL_LIMIT
        }
    }
}

fn pow2_div(bytes: u64, divisions: u64) -> u64 {
    if bytes.is_power_of_two() {
        return bytes;
    }
    let floor = 1 << bytes.ilog2();
    match floor >> divisions.ilog2() {
        0 => 2 * floor,
        step => bytes.next_multiple_of(step),
    }
}

/// `key:value` pairs; commas inside brackets do not separate.
fn options(text: &str) -> Vec<(&str, &str)> {
    let mut pairs = Vec::new();
    let (mut start, mut depth) = (0, 0);
    for (at, c) in text.char_indices().chain([(text.len(), ',')]) {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                pairs.extend(text[start..at].split_once(':'));
                start = at + 1;
            }
            _ => {}
        }
    }
    pairs
}

/// [spec 15.4]
fn divisions(value: &str) -> [u64; 16] {
    let Some(list) = value.strip_prefix('[') else {
        return [value.parse().expect("a division count"); 16];
    };
    let mut slots = [0; 16];
    let mut last: Option<usize> = None;
    for entry in list.trim_end_matches(']').split(',').filter(|entry| !entry.is_empty()) {
        let (key, count) = entry.split_once(':').expect("SIZE:COUNT");
        let count = count.parse().expect("a division count");
        if key == ">" {
            slots[last.unwrap_or(0) + 1..].fill(count);
        } else {
            let slot = (key.parse::<u64>().expect("a size in MiB").ilog2() as usize).min(15);
            let from = if last.is_none() { 0 } else { slot };
            slots[from..=slot].fill(count);
            last = Some(slot);
        }
    }
    slots
}
