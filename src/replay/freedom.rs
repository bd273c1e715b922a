//! What a recording leaves open: the order in which frees that wait for different streams complete.
//!
//! PyTorch takes such frees in the order of a hash table. Addresses and current values do not depend on it, but
//! some statistics and the stale sizes of merged blocks do [spec 6.3]. Where it happened they are not compared.

use std::collections::{BTreeSet, HashMap};

use super::observation::{Observation, Outcome};
use super::request::Request;
use crate::observe::history::TraceAction;

/// Follows a recording and knows what may differ.
#[derive(Debug, Default)]
pub(crate) struct OrderFreedom {
    /// Address and stream by allocation number.
    allocations: Vec<(u64, u32)>,
    uses: HashMap<u64, BTreeSet<u32>>,
    /// Streams that each freed block waits for, by its address.
    pending: HashMap<u64, BTreeSet<u32>>,
    peaks: bool,
    sums: bool,
    stale_sizes: bool,
}

impl OrderFreedom {
    /// Takes in one request and its recorded answer.
    pub(crate) fn follow(&mut self, request: &Request, observed: &Observation) {
        let number = |back: u64| (self.allocations.len() as u64).saturating_sub(back);
        match *request {
            Request::Alloc { stream, .. } => {
                let address = if let Outcome::Address(a) = observed.outcome { a } else { 0 };
                self.allocations.push((address, stream));
            }
            Request::RecordStream { back, stream } => {
                let number = number(back);
                if self.allocations.get(number as usize).is_some_and(|(_, own)| *own != stream) {
                    self.uses.entry(number).or_default().insert(stream);
                }
            }
            Request::Free { back } => {
                let number = number(back);
                if let Some(streams) = self.uses.remove(&number) {
                    let address = self.allocations.get(number as usize).map_or(0, |(a, _)| *a);
                    self.pending.insert(address, streams);
                }
            }
            // After these the values are exact again.
            Request::ResetPeak => self.peaks = false,
            Request::ResetAccumulated => self.sums = false,
            _ => {}
        }
        self.complete(observed);
    }

    fn complete(&mut self, observed: &Observation) {
        let mut blocks = 0;
        let mut streams = BTreeSet::new();
        for event in observed.events.iter().filter(|e| e.action == TraceAction::FreeCompleted) {
            if let Some(waited) = self.pending.remove(&event.address) {
                blocks += 1;
                streams.extend(waited);
            }
        }
        if blocks > 1 && streams.len() > 1 {
            (self.peaks, self.sums, self.stale_sizes) = (true, true, true);
        }
    }

    /// Whether the statistic of this name may differ.
    pub(crate) fn allows(&self, name: &str) -> bool {
        if !name.starts_with("inactive_split") {
            return false;
        }
        match name.rsplit('.').next() {
            Some("peak") => self.peaks,
            Some("allocated" | "freed") => self.sums,
            _ => false,
        }
    }

    /// Whether a text made of all statistics may differ.
    pub(crate) fn allows_summary(&self) -> bool {
        self.peaks || self.sums
    }

    /// Whether the requested sizes that inactive blocks still show may differ.
    pub(crate) fn allows_stale_sizes(&self) -> bool {
        self.stale_sizes
    }
}

#[cfg(test)]
mod tests {
    use super::super::observation::TraceEvent;
    use super::*;

    fn answer(outcome: Outcome, events: &[&str]) -> Observation {
        let events = events.iter().map(|line| TraceEvent::parse(line).unwrap()).collect();
        Observation { events, outcome, deltas: None, full: None, notes: Vec::new() }
    }

    /// Two blocks used on the streams given and freed; both completions in one call.
    fn completed_together(uses: [u32; 2]) -> OrderFreedom {
        let mut freedom = OrderFreedom::default();
        for (back, address) in [(1, 0x1000), (1, 0x2000)] {
            freedom.follow(&Request::Alloc { size: 1, stream: 0 }, &answer(Outcome::Address(address), &[]));
            let stream = uses[freedom.allocations.len() - 1];
            freedom.follow(&Request::RecordStream { back, stream }, &answer(Outcome::None, &[]));
        }
        freedom.follow(&Request::Free { back: 2 }, &answer(Outcome::None, &["+ fr 1000 1 0"]));
        freedom.follow(&Request::Free { back: 1 }, &answer(Outcome::None, &["+ fr 2000 1 0"]));
        freedom.follow(&Request::EmptyCache, &answer(Outcome::None, &["+ fc 2000 1 0", "+ fc 1000 1 0"]));
        freedom
    }

    #[test]
    fn only_completions_of_different_streams_leave_the_order_open() {
        let peak = "inactive_split_bytes.all.peak";
        let current = "inactive_split_bytes.all.current";
        let freed = "inactive_split.small_pool.freed";
        assert!(!completed_together([1, 1]).allows(peak));
        assert!(!completed_together([0, 1]).allows(peak), "its own stream does not count");
        let mut freedom = completed_together([1, 2]);
        assert!(freedom.allows(peak) && freedom.allows(freed) && !freedom.allows(current));
        assert!(freedom.allows_stale_sizes() && freedom.allows_summary());
        freedom.follow(&Request::ResetPeak, &answer(Outcome::None, &[]));
        assert!(!freedom.allows(peak) && freedom.allows(freed));
        freedom.follow(&Request::ResetAccumulated, &answer(Outcome::None, &[]));
        assert!(!freedom.allows(freed) && !freedom.allows_summary() && freedom.allows_stale_sizes());
    }
}
