//! The two limits that memory can meet: the program's own, and the device's size.

use std::collections::HashMap;

use super::causes::{Candidate, blocks, largest};
use super::evidence::Evidence;
use super::finding::{Cause, Confidence, Figure, Finding, Holder};
use super::measure::{Gain, Measure, Room};
use crate::observe::inspect::site;
use crate::observe::snapshot::{BlockState, SegmentInfo};
use crate::units::format_size as size;

/// The program's own limit, where it binds before the device does.
pub(super) fn cap(evidence: &Evidence, measure: &Measure<'_>, room: &Room) -> Option<Candidate> {
    let allowed = evidence.allowed?;
    let bytes = room.device.saturating_sub(room.cap);
    if bytes == 0 || room.need <= room.cap {
        return None;
    }
    let gain = Gain { device: 0, cap: u64::MAX };
    Some(
        Candidate::new(Cause::Cap, bytes, gain, Confidence::Certain)
            .figures([
                Figure::bytes("allowed", allowed),
                Figure::bytes("reserved", measure.reserved),
                Figure::bytes("left below the limit", room.cap),
                Figure::bytes("free on the device", room.device),
            ])
            .says(format!(
                "The device has {} free, but the program limited itself to {} and holds {}.",
                size(room.device),
                size(allowed),
                size(measure.reserved)
            ))
            .helps("raise the limit: set_per_process_memory_fraction (1 lifts it)"),
    )
}

/// A snapshot says how much was free when a request failed, but not whether the program had a limit.
pub(super) fn unseen_cap(evidence: &Evidence, room: &Room) -> Option<Finding> {
    let free = evidence.memory.filter(|m| m.total == 0)?.free;
    let candidate = Candidate::new(Cause::Cap, free, Gain::default(), Confidence::Likely)
        .figures([Figure::bytes("free on the device", free), Figure::bytes("asked of the driver", room.need)])
        .says("The device had enough free when the request failed: a limit of the program's own stood in the way.")
        .helps("raise the limit: set_per_process_memory_fraction (1 lifts it)");
    Some(candidate.finding)
}

/// No request failed, but the next larger one may: in use up to the limit, or to the device's size.
pub(super) fn nearly_full(evidence: &Evidence, measure: &Measure<'_>) -> Option<Finding> {
    const FULL: f64 = 0.9;
    let total = evidence.memory.map(|m| m.total).filter(|&t| t > 0);
    let used = measure.live + measure.pending;
    let (cause, limit, helps) = match (evidence.allowed, total) {
        (Some(allowed), _) => {
            (Cause::Cap, allowed, "raise the limit (set_per_process_memory_fraction), or use less")
        }
        (None, Some(total)) => (Cause::TooSmall, total, TOO_SMALL_HELPS),
        (None, None) => return None,
    };
    if (used as f64) < limit as f64 * FULL {
        return None;
    }
    let candidate = Candidate::new(cause, used, Gain::default(), Confidence::Likely)
        .figures([Figure::bytes("in use", used), Figure::bytes("of", limit)])
        .holders(sites(&evidence.segments))
        .says(format!("{} of {} are in use at the same time.", size(used), size(limit)))
        .helps(helps);
    Some(candidate.finding)
}

const TOO_SMALL_HELPS: &str = "less at the same time: smaller batches, gradient accumulation, activation checkpointing, \
     lower precision, several GPUs; max_memory_allocated() per stage shows where the peak is";

/// Even with every other cause gone the request would not fit.
pub(super) fn too_small(evidence: &Evidence, measure: &Measure<'_>, room: &Room) -> Finding {
    let used = measure.live;
    let missing = room.deficit();
    let mut figures = vec![
        Figure::bytes("asked of the driver", room.need),
        Figure::bytes("in use", used),
        Figure::bytes("missing", missing),
    ];
    let total = evidence.memory.map_or(0, |m| m.total);
    if total > 0 {
        figures.push(Figure::bytes("on the device", total));
    }
    let outside =
        measure.outside.zip(measure.others).map_or(measure.unattributed, |(own, others)| own + others);
    if outside > 0 {
        figures.push(Figure::bytes("of that, outside the allocator", outside));
    }
    let candidate = Candidate::new(Cause::TooSmall, missing, Gain::default(), Confidence::Certain)
        .figures(figures)
        .holders(sites(&evidence.segments))
        .says(format!(
            "{} are in use and {} more were asked for: that is more than there is, however the memory is arranged.",
            size(used),
            size(room.need)
        ))
        .helps(TOO_SMALL_HELPS);
    Finding { sufficient: Some(false), ..candidate.finding }
}

/// Live bytes by call site.
fn sites(segments: &[SegmentInfo]) -> Vec<Holder> {
    let mut sums = HashMap::<String, (u64, u64)>::new();
    let all = segments.iter().flat_map(|s| &s.blocks);
    for block in all.filter(|b| b.state == BlockState::ActiveAllocated) {
        let sum = sums.entry(site(&block.frames)).or_default();
        *sum = (sum.0 + block.size, sum.1 + 1);
    }
    let holders =
        sums.into_iter().map(|(site, (bytes, n))| Holder { what: format!("{site} ({})", blocks(n)), bytes });
    largest(holders)
}
