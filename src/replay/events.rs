//! The allocator's history in the form of a recording.

use std::collections::HashMap;

use super::header::EventSet;
use super::observation::TraceEvent;
use crate::observe::history::{TraceAction, TraceEntry};

/// Entries of the history as events; streams become indices, and stay handles where they have none.
pub(crate) fn from_history(history: &[TraceEntry], streams: &HashMap<u64, u64>) -> Vec<TraceEvent> {
    let recorded = history.iter().filter(|entry| entry.action != TraceAction::Snapshot);
    let event = |entry: &TraceEntry| TraceEvent {
        action: entry.action,
        address: entry.addr,
        size: entry.size,
        stream: streams.get(&entry.stream).copied().unwrap_or(entry.stream),
    };
    recorded.map(event).collect()
}

/// Compares the events of one request. The error says where they part.
pub(crate) fn compare(set: EventSet, expected: &[TraceEvent], got: &[TraceEvent]) -> Result<(), String> {
    let (expected, got) = (comparable(set, expected), comparable(set, got));
    if expected == got {
        return Ok(());
    }
    let same = expected.iter().zip(&got).take_while(|(e, g)| e == g).count();
    let show =
        |events: &[TraceEvent]| events.get(same).map_or("nothing more".to_owned(), |e| format!("'{e}'"));
    Err(format!("event {} is {}, expected {}", same + 1, show(&got), show(&expected)))
}

/// The first events that differ, of those that are compared.
pub(crate) fn first_difference(
    set: EventSet,
    expected: &[TraceEvent],
    got: &[TraceEvent],
) -> Option<(Option<TraceEvent>, Option<TraceEvent>)> {
    let (expected, got) = (comparable(set, expected), comparable(set, got));
    let same = expected.iter().zip(&got).take_while(|(e, g)| e == g).count();
    let pair = (expected.get(same).copied(), got.get(same).copied());
    (pair != (None, None)).then_some(pair)
}

/// What is compared: the events that the recording keeps, without what varies between runs.
fn comparable(set: EventSet, events: &[TraceEvent]) -> Vec<TraceEvent> {
    let mut kept = match set {
        EventSet::All => events.to_vec(),
        EventSet::SegmentAndDeferred => without_immediate_frees(events),
        EventSet::Segment => {
            let minor = [TraceAction::Alloc, TraceAction::FreeRequested, TraceAction::FreeCompleted];
            events.iter().filter(|e| !minor.contains(&e.action)).copied().collect()
        }
    };
    for event in kept.iter_mut().filter(|e| e.action == TraceAction::Oom) {
        // The free memory that the device reported: other processes change it.
        event.address = 0;
    }
    // Frees that complete in one call may do so in any order of their streams.
    let is_completion = |e: &TraceEvent| e.action == TraceAction::FreeCompleted;
    for run in kept.chunk_by_mut(|a, b| is_completion(a) && is_completion(b)) {
        run.sort_unstable_by_key(|e| (e.address, e.size, e.stream));
    }
    kept
}

/// Drops `al`, and each `fr` that its own `fc` follows directly.
fn without_immediate_frees(events: &[TraceEvent]) -> Vec<TraceEvent> {
    let mut kept = Vec::new();
    let mut rest = events;
    while let Some((event, after)) = rest.split_first() {
        let completed = after.first().is_some_and(|next| {
            event.action == TraceAction::FreeRequested
                && next.action == TraceAction::FreeCompleted
                && next.address == event.address
        });
        if !completed && event.action != TraceAction::Alloc {
            kept.push(*event);
        }
        rest = if completed { &after[1..] } else { after };
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(lines: &[&str]) -> Vec<TraceEvent> {
        lines.iter().map(|line| TraceEvent::parse(line).unwrap()).collect()
    }

    #[test]
    fn each_set_compares_what_its_recordings_keep() {
        let got =
            events(&["+ sa 1000 20 0", "+ al 1000 5 0", "+ fr 1000 5 0", "+ fc 1000 5 0", "+ fr 2000 5 0"]);
        compare(EventSet::All, &got, &got).unwrap();
        compare(EventSet::SegmentAndDeferred, &events(&["+ sa 1000 20 0", "+ fr 2000 5 0"]), &got).unwrap();
        compare(EventSet::Segment, &events(&["+ sa 1000 20 0"]), &got).unwrap();
    }

    #[test]
    fn the_first_difference_is_named() {
        let (a, b) =
            (events(&["+ sa 1000 20 0", "+ sf 1000 20 0"]), events(&["+ sa 1000 20 0", "+ sf 3000 20 0"]));
        let error = compare(EventSet::Segment, &a, &b).unwrap_err();
        assert_eq!(error, "event 2 is '+ sf 3000 20 0', expected '+ sf 1000 20 0'");
        let error = compare(EventSet::Segment, &a, &a[..1]).unwrap_err();
        assert_eq!(error, "event 2 is nothing more, expected '+ sf 1000 20 0'");
        assert!(compare(EventSet::Segment, &a[..1], &a).is_err());
    }

    #[test]
    fn completions_may_change_places_but_not_with_others() {
        let a = events(&["+ fc 1000 5 0", "+ fc 2000 5 1", "+ al 3000 5 0"]);
        let b = events(&["+ fc 2000 5 1", "+ fc 1000 5 0", "+ al 3000 5 0"]);
        let c = events(&["+ fc 2000 5 1", "+ al 3000 5 0", "+ fc 1000 5 0"]);
        compare(EventSet::All, &a, &b).unwrap();
        assert!(compare(EventSet::All, &a, &c).is_err());
    }

    #[test]
    fn the_free_memory_of_an_oom_varies_and_its_size_does_not() {
        let om = |text| events(&[text]);
        compare(EventSet::Segment, &om("+ om 1000 512 0"), &om("+ om 2000 512 0")).unwrap();
        assert!(compare(EventSet::Segment, &om("+ om 1000 512 0"), &om("+ om 1000 1024 0")).is_err());
    }
}
