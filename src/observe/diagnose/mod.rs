//! Why memory is short, or where it is: evidence in, causes out. Nothing here asks a device or an allocator.
//!
//! Every idle byte is put down to one reason (cached, fragmented, another stream, another pool, pending), and so is
//! every byte outside the allocator (other processes, this process's context). For a request that fails, each cause
//! is tried: would the request succeed without it? Those for which the answer is yes come first. If the end of all
//! of them together would not be enough, the device is too small, and that comes first.

mod causes;
mod evidence;
mod finding;
mod growth;
mod limits;
mod measure;
mod text;

use std::cmp::Reverse;

pub use self::evidence::{Evidence, StreamWait, Wanted};
pub use self::finding::{Cause, Confidence, Diagnosis, Figure, Finding, Holder, Outcome, Value};
pub use self::growth::{GrowingSite, growing_sites};
pub(crate) use self::text::write_findings;

use self::causes::Candidate;
use self::measure::{Gain, Measure, Room};

/// Explains where the memory is, or why the request of the evidence fails.
///
/// ```
/// use gpucache::observe::diagnose::{Cause, Evidence, diagnose};
/// use gpucache::{Allocator, device::sim::SimDevice};
///
/// let gpu = Allocator::simulated(SimDevice::new(1 << 30));
/// drop(gpu.alloc(400 << 20)?);
/// let diagnosis = gpu.diagnose()?;
/// assert_eq!(diagnosis.first(), Some(Cause::Cached));
/// # Ok::<(), gpucache::Error>(())
/// ```
pub fn diagnose(evidence: &Evidence) -> Diagnosis {
    let measure = Measure::new(evidence);
    let (outcome, findings) = match &evidence.request {
        None => (Outcome::Overview, overview(evidence, &measure)),
        Some(request) => {
            let room = Room::new(evidence, &measure, request);
            let fits = room.fits_with(Gain::default()) || measure.largest_usable >= request.rounded;
            if request.fails.unwrap_or(!fits) {
                (Outcome::Fails, failure(evidence, &measure, &room, request))
            } else {
                (Outcome::Fits, Vec::new())
            }
        }
    };
    Diagnosis {
        device: evidence.device,
        request: evidence.request,
        outcome,
        allocated: measure.live,
        reserved: measure.reserved,
        device_used: measure.device_used,
        findings,
    }
}

/// Bytes that matter: this part of what is in use, but never less than one small segment.
const PART_THAT_MATTERS: u64 = 20;
const LEAST_THAT_MATTERS: u64 = 2 << 20;

/// No request: every cause that accounts for enough of what is in use.
fn overview(evidence: &Evidence, measure: &Measure<'_>) -> Vec<Finding> {
    let used = measure.device_used.unwrap_or(0).max(measure.reserved);
    let threshold = (used / PART_THAT_MATTERS).max(LEAST_THAT_MATTERS);
    let all = causes::all(evidence, measure, None);
    let mut findings: Vec<Finding> =
        all.into_iter().map(|c| c.finding).filter(|f| f.bytes >= threshold).collect();
    findings.extend(limits::nearly_full(evidence, measure));
    sort(&mut findings);
    findings
}

/// A request that fails.
fn failure(evidence: &Evidence, measure: &Measure<'_>, room: &Room, request: &Wanted) -> Vec<Finding> {
    if room.fits_with(Gain::default()) {
        return limits::unseen_cap(evidence, room).into_iter().collect();
    }
    let mut all: Vec<Candidate> = causes::all(evidence, measure, Some(request));
    all.extend(limits::cap(evidence, measure, room));
    let together = all.iter().fold(Gain::default(), |sum, c| sum.and(c.gain));
    for candidate in &mut all {
        candidate.finding.sufficient = Some(room.fits_with(candidate.gain));
    }
    // A cause that would bring next to nothing of what lacks is no news.
    let least = (room.deficit() / 8).max(1);
    let mut findings: Vec<Finding> = all
        .into_iter()
        .map(|c| c.finding)
        .filter(|f| f.sufficient == Some(true) || f.bytes >= least)
        .collect();
    sort(&mut findings);
    if !room.fits_with(together) || findings.is_empty() {
        findings.insert(0, limits::too_small(evidence, measure, room));
    }
    findings
}

fn sort(findings: &mut [Finding]) {
    findings.sort_by_key(|f| {
        (Reverse(f.sufficient == Some(true)), Reverse(f.confidence), Reverse(f.bytes), f.cause)
    });
}
