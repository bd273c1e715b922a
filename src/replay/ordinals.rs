//! Recorded addresses as those of another run: segments are told apart by their order [spec 24].

use std::collections::BTreeMap;

use serde_json::Value;

use super::observation::{Observation, Outcome, TraceEvent};
use crate::observe::history::TraceAction;

/// A segment, or the address range of an expandable one.
#[derive(Debug, Clone, Copy)]
struct Range {
    here: u64,
    bytes: u64,
    /// Mapped bytes of an expandable segment.
    mapped: u64,
}

/// The recording's live segments, by their recorded start.
#[derive(Debug)]
pub(crate) struct Ordinals {
    ranges: BTreeMap<u64, Range>,
    /// More than any expandable segment reserves, less than the distance between two of them.
    reservation: u64,
}

impl Ordinals {
    /// For a recording on a device with that much memory.
    pub(crate) fn new(total_memory: u64) -> Self {
        // A reservation is 9/8 of the memory [spec 13.1].
        Ordinals { ranges: BTreeMap::new(), reservation: total_memory / 8 * 9 }
    }

    /// What was observed, with the addresses of the run whose events are `got`: its n-th new segment in a request
    /// stands for the recording's n-th.
    pub(crate) fn translate(&mut self, observed: &Observation, got: &[TraceEvent]) -> Observation {
        let mut here = observed.clone();
        let new = |action| got.iter().filter(move |e: &&TraceEvent| e.action == action).map(|e| e.address);
        let mut segments = new(TraceAction::SegmentAlloc);
        let mut maps = new(TraceAction::SegmentMap);
        for event in &mut here.events {
            self.event(event, &mut segments, &mut maps);
        }
        // After the events: its segment may be new.
        if let Outcome::Address(address) = &mut here.outcome {
            *address = self.address(*address);
        }
        for note in here.notes.iter_mut().filter(|note| note.key == "segments") {
            self.segments(&mut note.value);
        }
        here
    }

    fn event(
        &mut self,
        event: &mut TraceEvent,
        segments: &mut impl Iterator<Item = u64>,
        maps: &mut impl Iterator<Item = u64>,
    ) {
        let recorded = event.address;
        match event.action {
            TraceAction::SegmentAlloc => {
                let here = segments.next().unwrap_or(recorded);
                self.ranges.insert(recorded, Range { here, bytes: event.size, mapped: 0 });
                event.address = here;
            }
            TraceAction::SegmentFree => {
                event.address = self.address(recorded);
                self.ranges.remove(&recorded);
            }
            TraceAction::SegmentMap => {
                let here = maps.next().unwrap_or(recorded);
                if self.find(recorded).is_none() {
                    self.ranges.insert(recorded, Range { here, bytes: self.reservation, mapped: 0 });
                }
                self.note_mapped(recorded, event.size as i64);
                event.address = self.address(recorded);
            }
            TraceAction::SegmentUnmap => {
                event.address = self.address(recorded);
                self.note_mapped(recorded, -(event.size as i64));
            }
            TraceAction::Oom | TraceAction::Snapshot => {}
            TraceAction::Alloc | TraceAction::FreeRequested | TraceAction::FreeCompleted => {
                event.address = self.address(recorded);
            }
        }
    }

    /// A reservation with nothing mapped is given back.
    fn note_mapped(&mut self, recorded: u64, change: i64) {
        let Some(start) = self.find(recorded) else { return };
        let Some(range) = self.ranges.get_mut(&start) else { return };
        range.mapped = range.mapped.saturating_add_signed(change);
        if range.mapped == 0 {
            self.ranges.remove(&start);
        }
    }

    fn find(&self, recorded: u64) -> Option<u64> {
        let (start, range) = self.ranges.range(..=recorded).next_back()?;
        (recorded - start < range.bytes).then_some(*start)
    }

    /// An address outside all segments stays as it is; it will not be equal to anything.
    fn address(&self, recorded: u64) -> u64 {
        let range = self.find(recorded).and_then(|start| Some((start, self.ranges.get(&start)?)));
        range.map_or(recorded, |(start, range)| range.here + (recorded - start))
    }

    /// The note with the final segments, which are listed by address.
    fn segments(&self, note: &mut Value) {
        let Some(segments) = note.as_array_mut() else { return };
        for segment in &mut *segments {
            self.hexadecimal(&mut segment["address"]);
            for block in segment["blocks"].as_array_mut().into_iter().flatten() {
                self.hexadecimal(&mut block[0]);
            }
        }
        segments.sort_by_key(|segment| hex(&segment["address"]));
    }

    fn hexadecimal(&self, value: &mut Value) {
        if let Some(address) = hex(value) {
            *value = Value::from(format!("{:x}", self.address(address)));
        }
    }
}

fn hex(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(outcome: u64, events: &[&str]) -> Observation {
        let events = events.iter().map(|line| TraceEvent::parse(line).unwrap()).collect();
        Observation {
            events,
            outcome: Outcome::Address(outcome),
            deltas: None,
            full: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn segments_and_pages_move_with_their_blocks() {
        let mut ordinals = Ordinals::new(1 << 30);
        let recorded = observation(0x1200, &["+ sa 1000 4096 0", "+ al 1200 512 0"]);
        let got = observation(0, &["+ sa 9000 4096 0"]).events;
        let here = ordinals.translate(&recorded, &got);
        assert_eq!(here, observation(0x9200, &["+ sa 9000 4096 0", "+ al 9200 512 0"]));

        let recorded = observation(0x8000_0000, &["+ sm 80000000 2097152 0"]);
        let got = observation(0, &["+ sm f0000000 2097152 0"]).events;
        assert_eq!(ordinals.translate(&recorded, &got).outcome, Outcome::Address(0xf000_0000));
        // A second page of the same range does not begin another one.
        let recorded = observation(0x8020_0000, &["+ sm 80200000 2097152 0"]);
        let got = observation(0, &["+ sm f0200000 2097152 0"]).events;
        assert_eq!(
            ordinals.translate(&recorded, &got),
            observation(0xf020_0000, &["+ sm f0200000 2097152 0"])
        );

        let gone = ordinals.translate(&observation(0x1200, &["+ sf 1000 4096 0"]), &[]);
        assert_eq!(gone, observation(0x1200, &["+ sf 9000 4096 0"]));
    }

    #[test]
    fn the_final_segments_are_listed_by_the_new_addresses() {
        let mut ordinals = Ordinals::new(1 << 30);
        let recorded = observation(0, &["+ sa 1000 4096 0", "+ sa 5000 4096 0"]);
        ordinals.translate(&recorded, &observation(0, &["+ sa 9000 4096 0", "+ sa 3000 4096 0"]).events);
        let mut note = serde_json::json!([
            {"address": "1000", "blocks": [["1200", 1, 1, "inactive"]]},
            {"address": "5000", "blocks": []},
        ]);
        ordinals.segments(&mut note);
        assert_eq!(note[0]["address"], "3000");
        assert_eq!(note[1]["blocks"][0][0], "9200");
    }
}
