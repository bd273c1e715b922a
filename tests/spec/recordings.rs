//! The model against recordings of PyTorch, where `../shared/golden` is present: this is why the model can be trusted.
//!
//! `GPUCACHE_RECORDINGS=all` takes every fuzz case instead of a selection.

use std::collections::BTreeMap;
use std::path::Path;

use crate::model::device::{AddressPolicy, Script};
use crate::model::pools::Filter;
use crate::model::recording::{Recording, Step, cases, golden, read};
use crate::model::rules::Conf;
use crate::model::{Event, Failure, Model, PoolId};

/// Replays a recording; allocations and their failures by number.
struct Replay<'a> {
    recording: &'a Recording,
    model: Model,
    allocations: Vec<Result<u64, Failure>>,
    /// What a captured graph allocates for itself.
    of_graphs: BTreeMap<PoolId, Vec<u64>>,
}

impl<'a> Replay<'a> {
    fn new(recording: &'a Recording) -> Self {
        let mut conf = Conf::parse(&recording.conf);
        conf.fraction = recording.fraction.unwrap_or(conf.fraction);
        let policy = if recording.stand_in { AddressPolicy::FirstFit } else { AddressPolicy::Scripted };
        let model = Model::with_policy(recording.total_memory, conf, true, policy);
        Replay { recording, model, allocations: Vec::new(), of_graphs: BTreeMap::new() }
    }

    fn run(mut self) -> Result<(), String> {
        let mut before = self.model.stats.flat();
        for (number, step) in self.recording.steps.iter().enumerate() {
            self.model.device.script = script(self.recording, step);
            self.model.history.clear();
            let result = self.apply(step);
            self.compare(step, &result, &before)
                .map_err(|difference| format!("request {number} `{}`: {difference}", step.request))?;
            before = self.model.stats.flat();
        }
        Ok(())
    }

    fn apply(&mut self, step: &Step) -> String {
        let words: Vec<&str> = step.request.split(' ').collect();
        let stream = |word: usize| self.recording.streams[words[word].parse::<usize>().expect("a stream")];
        match words[0] {
            "a" => {
                let outcome = self.model.alloc(words[1].parse().expect("bytes"), stream(2));
                self.allocations.push(outcome.clone());
                return outcome.map_or("oom".to_owned(), |address| format!("{address:x}"));
            }
            "f" => self.model.free(self.back(words[1])).expect("a live address"),
            "x" => {}
            "r" => {
                let stream = stream(2);
                self.model.record_stream(self.back(words[1]), stream);
            }
            "b" => self.model.hold(stream(1)),
            "s" => self.model.release_every_stream(),
            "e" => self.model.empty_cache(),
            "F" => self.model.set_fraction(words[1].parse().expect("a fraction")),
            "p" => self.model.reset_peak(),
            "P" => self.model.reset_accumulated(),
            "c" => self.model.set_settings(words[1]),
            _ => self.apply_to_pool(&words, step),
        }
        "-".to_owned()
    }

    fn apply_to_pool(&mut self, words: &[&str], step: &Step) {
        let number: u64 = words[1].parse().expect("a pool");
        let (user, graph) = ((0, number + 1), (number + 1, 0));
        match words[0] {
            "pool+" => {
                if !self.model.knows_pool(user) {
                    self.model.create_or_increment(user);
                    self.model.set_use_on_oom(user, words.contains(&"use_on_oom"));
                    if self.recording.case.contains("no_split") {
                        self.model.set_no_split(user);
                    }
                }
                self.model.begin_allocate(user, Filter::Thread).expect("the pool is not active");
            }
            "pool-" => {
                self.model.end_allocate(user).expect("the pool is active");
                self.model.release_pool(user);
            }
            "pooldel" => self.model.destroy_pool(user),
            "graph+" => {
                let stream = self.recording.streams[words[2].parse::<usize>().expect("a stream")];
                // The graph's own two allocations come before the capture, from the default pool.
                for event in step.events.iter().filter(|event| event[0] == "al") {
                    let bytes = event[2].parse().expect("bytes");
                    let address = self.model.alloc(bytes, stream).expect("memory for the graph");
                    self.of_graphs.entry(graph).or_default().push(address);
                }
                self.model.begin_allocate(graph, Filter::Streams([stream].into())).expect("not active");
            }
            "graph-" => self.model.end_allocate(graph).expect("the capture is active"),
            "graphdel" => {
                for address in self.of_graphs.remove(&graph).unwrap_or_default() {
                    self.model.free(address).expect("a live address");
                }
                self.model.release_pool(graph);
            }
            other => panic!("unknown request {other}"),
        }
    }

    fn back(&self, distance: &str) -> u64 {
        let number = self.allocations.len() - distance.parse::<usize>().expect("a distance");
        self.allocations[number].clone().expect("an allocation that succeeded")
    }

    fn compare(&self, step: &Step, result: &str, before: &BTreeMap<String, i64>) -> Result<(), String> {
        if result != step.result {
            return Err(format!("the model answers {result}, the recording {}", step.result));
        }
        let events: Vec<String> = self.model.history.iter().map(shown).collect();
        let recorded: Vec<String> =
            step.events.iter().filter_map(|event| shown_recorded(self.recording, event)).collect();
        if events != recorded {
            return Err(format!("the model's events are {events:?}, the recording's {recorded:?}"));
        }
        let now = self.model.stats.flat();
        for (key, delta) in self.recording.row.iter().zip(&step.deltas) {
            if now[key] - before[key] != *delta {
                return Err(format!(
                    "{key} changes by {} in the model, by {delta} in the recording",
                    now[key] - before[key]
                ));
            }
        }
        for (key, value) in self.recording.full.iter().zip(step.full.iter().flatten()) {
            if now[key] != *value && !self.depends_on_event_order(key) {
                return Err(format!("{key} is {} in the model, {value} in the recording", now[key]));
            }
        }
        Ok(())
    }

    /// [spec 6.3]: PyTorch polls its streams in the order of a hash table.
    fn depends_on_event_order(&self, key: &str) -> bool {
        self.recording.streams.len() > 1 && key.starts_with("inactive_split") && !key.ends_with("current")
    }
}

/// The driver's answers within one request.
fn script(recording: &Recording, step: &Step) -> Script {
    let addresses = |code: &str| {
        let of_code = step.events.iter().filter(move |event| event[0] == code).cloned().collect::<Vec<_>>();
        of_code.into_iter().map(|event| u64::from_str_radix(&event[1], 16).expect("an address"))
    };
    // Where no cap explains a release or a failure, the driver refused the first attempt.
    let refused =
        recording.fraction.is_none() && step.events.iter().any(|event| event[0] == "sf" || event[0] == "om");
    let mallocs = refused.then_some(None).into_iter().chain(addresses("sa").map(Some)).collect();
    Script { mallocs, maps: addresses("sm").collect() }
}

fn shown(event: &Event) -> String {
    match *event {
        Event::SegmentAlloc { address, bytes, stream } => format!("sa {address:x} {bytes} {stream:x}"),
        Event::SegmentFree { address, bytes, stream } => format!("sf {address:x} {bytes} {stream:x}"),
        Event::SegmentMap { address, bytes, stream } => format!("sm {address:x} {bytes} {stream:x}"),
        Event::SegmentUnmap { address, bytes, stream } => format!("su {address:x} {bytes} {stream:x}"),
        Event::Oom { rounded, stream } => format!("om {rounded} {stream:x}"),
    }
}

/// The same words for a recorded event; `None` for those that the model does not keep.
fn shown_recorded(recording: &Recording, [code, address, size, stream]: &[String; 4]) -> Option<String> {
    let stream = recording.streams[stream.parse::<usize>().expect("a stream")];
    match code.as_str() {
        "sa" | "sf" | "sm" | "su" => Some(format!("{code} {address} {size} {stream:x}")),
        // Its address column is the driver's free memory, which other processes share.
        "om" => Some(format!("om {size} {stream:x}")),
        _ => None,
    }
}

/// Replays every `stride`-th case of a folder.
fn check(folder: &str, stride: usize) {
    if let Some(golden) = golden() {
        check_folder(&golden.join(folder), stride);
    }
}

fn check_folder(folder: &Path, stride: usize) {
    let mut failures = Vec::new();
    let mut passed = 0;
    // Pinned host memory is not the model's business.
    for stem in cases(folder).into_iter().filter(|stem| !stem.contains("host_pinned")).step_by(stride) {
        let recording = read(&stem);
        match Replay::new(&recording).run() {
            Ok(()) => passed += 1,
            Err(difference) => failures.push(format!("{}: {difference}", recording.case)),
        }
    }
    println!("{}: {passed} recordings agree", folder.display());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn model_agrees_with_recorded_rules() {
    check("rules", 1);
}

#[test]
fn model_agrees_with_recorded_fuzz() {
    let all = std::env::var("GPUCACHE_RECORDINGS").is_ok_and(|which| which == "all");
    // 10 is prime to the nine configurations of each seed, so every configuration is met.
    check("fuzz", if all { 1 } else { 10 });
}

/// A folder of one's own: fresh answers of the oracle, see `oracle_requests.rs`.
#[test]
fn model_agrees_with_recordings_of_ones_own() {
    if let Ok(folder) = std::env::var("GPUCACHE_RECORDED") {
        check_folder(Path::new(&folder), 1);
    }
}
