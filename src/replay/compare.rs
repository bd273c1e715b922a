//! Compares what the allocator answered with what was recorded, one request at a time.

use std::collections::HashMap;

use super::events;
use super::freedom::OrderFreedom;
use super::header::{EventSet, Header};
use super::notes;
use super::observation::{COLUMNS, Observation, Outcome, TraceEvent};
use super::request::Request;
use super::run::{Played, Player};
use crate::observe::history::TraceAction;
use crate::stats::MemoryStats;

/// Compares request after request; keeps what has to be known from one to the next.
#[derive(Debug)]
pub(crate) struct Comparison {
    event_set: EventSet,
    stream_index: HashMap<u64, u64>,
    row: Vec<String>,
    full: Vec<String>,
    previous: [i64; COLUMNS],
    freedom: OrderFreedom,
}

impl Comparison {
    /// `header` is that of the observations.
    pub(crate) fn new(header: &Header) -> Result<Self, String> {
        let handles = header.stream_handles();
        Ok(Comparison {
            event_set: header.events.unwrap_or(EventSet::All),
            stream_index: handles.iter().zip(0..).map(|(stream, index)| (stream.raw(), index)).collect(),
            row: columns(&header.row)?,
            full: columns(&header.full)?,
            previous: [0; COLUMNS],
            freedom: OrderFreedom::default(),
        })
    }

    /// Compares one request. The error says what differs.
    pub(crate) fn check(
        &mut self,
        player: &Player,
        request: &Request,
        played: &Played,
        observed: &Observation,
    ) -> Result<(), String> {
        let got = self.events(player);
        self.check_with(&got, player, request, played, observed)
    }

    /// The events since the last time, which are taken out of the allocator's history.
    pub(crate) fn events(&self, player: &Player) -> Vec<TraceEvent> {
        events::from_history(&player.allocator().take_history(), &self.stream_index)
    }

    /// Compares one request whose events were taken.
    pub(crate) fn check_with(
        &mut self,
        got: &[TraceEvent],
        player: &Player,
        request: &Request,
        played: &Played,
        observed: &Observation,
    ) -> Result<(), String> {
        self.freedom.follow(request, observed);
        self.check_outcome(request, played, observed, got)?;
        events::compare(self.event_set, &observed.events, got)?;
        if observed.deltas.is_some() || observed.full.is_some() {
            let stats = player.allocator().memory_stats();
            self.check_row(&stats, observed)?;
            self.check_full(&stats, observed)?;
        }
        observed
            .notes
            .iter()
            .try_for_each(|note| notes::compare(note, player, played, &self.stream_index, &self.freedom))
    }

    /// Whether a request that differs chose another address for the same thing: one of several blocks of equal size.
    pub(crate) fn parted_by_address(
        &self,
        got: &[TraceEvent],
        played: &Played,
        observed: &Observation,
    ) -> bool {
        match (played.outcome, observed.outcome) {
            (Outcome::Address(here), Outcome::Address(there)) if here != there => return true,
            (here, there) if here != there => return false,
            _ => {}
        }
        let alike = |e: &TraceEvent, g: &TraceEvent| {
            // How much of a block can be unmapped depends on where it lies in its pages.
            e.action == g.action && (e.size == g.size || e.action == TraceAction::SegmentUnmap)
        };
        match events::first_difference(self.event_set, &observed.events, got) {
            Some((Some(expected), Some(got))) => alike(&expected, &got) && expected.address != got.address,
            _ => false,
        }
    }

    fn check_outcome(
        &self,
        request: &Request,
        played: &Played,
        observed: &Observation,
        got: &[TraceEvent],
    ) -> Result<(), String> {
        if played.outcome == observed.outcome {
            return Ok(());
        }
        let why = match (&played.error, observed.outcome) {
            (Some(error), Outcome::OutOfMemory) => format!(" ({error})"),
            (Some(error), _) => format!(": {error}"),
            (None, _) => String::new(),
        };
        let events = events::compare(self.event_set, &observed.events, got).err();
        let events = events.map(|e| format!("; {e}")).unwrap_or_default();
        Err(format!("'{request}' gives {}, expected {}{why}{events}", played.outcome, observed.outcome))
    }

    fn check_row(&mut self, stats: &MemoryStats, observed: &Observation) -> Result<(), String> {
        let Some(deltas) = &observed.deltas else { return Ok(()) };
        if self.row.len() != COLUMNS {
            return Err("the recording has columns that its header does not name".to_owned());
        }
        let before = self.previous;
        let mut differences = Vec::new();
        for (k, name) in self.row.iter().enumerate() {
            let value = stats.get(name).unwrap_or_default();
            let got = value - before[k];
            if got != deltas[k] {
                let expected = before[k].wrapping_add(deltas[k]);
                differences.push(format!(
                    "{name} is {value}, expected {expected} (change {got}, expected {})",
                    deltas[k]
                ));
            }
            self.previous[k] = value;
        }
        if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
    }

    fn check_full(&self, stats: &MemoryStats, observed: &Observation) -> Result<(), String> {
        let Some(full) = &observed.full else { return Ok(()) };
        let mut differences = Vec::new();
        for (name, expected) in self.full.iter().zip(full) {
            let value = stats.get(name).unwrap_or_default();
            if value != *expected && !self.freedom.allows(name) {
                differences.push(format!("{name} is {value}, expected {expected}"));
            }
        }
        if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
    }
}

/// The names, if all of them are names of statistics.
fn columns(names: &[String]) -> Result<Vec<String>, String> {
    let stats = MemoryStats::default();
    match names.iter().find(|name| stats.get(name).is_none()) {
        Some(name) => Err(format!("the header names an unknown statistic '{name}'")),
        None => Ok(names.to_vec()),
    }
}
