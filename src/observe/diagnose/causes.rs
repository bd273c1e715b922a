//! Each cause by itself: how many bytes, what speaks for it, what helps.

use super::evidence::{Evidence, Wanted};
use super::finding::{Cause, Confidence, Figure, Finding, Holder, Value};
use super::growth::growing_sites;
use super::measure::{Gain, Idle, Measure, NORMAL_CONTEXT};
use crate::observe::inspect::site;
use crate::observe::snapshot::{BlockState, PoolId, SegmentInfo};
use crate::units::format_size as size;

const MOST_HOLDERS: usize = 5;

/// A finding, and what its end would bring to a request.
pub(super) struct Candidate {
    pub(super) finding: Finding,
    pub(super) gain: Gain,
}

impl Candidate {
    pub(super) fn new(cause: Cause, bytes: u64, gain: Gain, confidence: Confidence) -> Self {
        let finding = Finding {
            cause,
            bytes,
            confidence,
            sufficient: None,
            figures: Vec::new(),
            holders: Vec::new(),
            explanation: String::new(),
            remedy: String::new(),
        };
        Candidate { finding, gain }
    }

    pub(super) fn figures(mut self, figures: impl IntoIterator<Item = Figure>) -> Self {
        self.finding.figures.extend(figures);
        self
    }

    pub(super) fn holders(mut self, holders: impl IntoIterator<Item = Holder>) -> Self {
        self.finding.holders = largest(holders);
        self
    }

    pub(super) fn says(mut self, explanation: impl Into<String>) -> Self {
        self.finding.explanation = explanation.into();
        self
    }

    pub(super) fn helps(mut self, remedy: impl Into<String>) -> Self {
        self.finding.remedy = remedy.into();
        self
    }
}

pub(super) fn blocks(n: u64) -> String {
    if n == 1 { "1 block".to_owned() } else { format!("{n} blocks") }
}

pub(super) fn largest(holders: impl IntoIterator<Item = Holder>) -> Vec<Holder> {
    let mut holders: Vec<Holder> = holders.into_iter().collect();
    holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.what.cmp(&b.what)));
    holders.truncate(MOST_HOLDERS);
    holders
}

/// Every cause that holds anything, the cap and the device's size aside.
pub(super) fn all(evidence: &Evidence, measure: &Measure<'_>, request: Option<&Wanted>) -> Vec<Candidate> {
    let causes = [
        other_process(evidence, measure),
        context(measure),
        growing(evidence),
        fragmented(measure, request),
        other_stream(measure),
        pending(evidence, measure),
        private_pool(measure, request),
        cached(evidence, measure, request),
    ];
    causes.into_iter().flatten().filter(|c| c.finding.bytes > 0).collect()
}

fn other_process(evidence: &Evidence, measure: &Measure<'_>) -> Option<Candidate> {
    let Some(others) = measure.others else {
        // Without NVML nobody can tell a context from other processes, but a context has an ordinary size.
        let bytes = Some(measure.unattributed).filter(|&b| b > NORMAL_CONTEXT)?;
        let gain = Gain::device(bytes - NORMAL_CONTEXT);
        return Some(
            Candidate::new(Cause::OtherProcess, bytes, gain, Confidence::Possible)
                .figures([Figure::bytes("in use outside the allocator", bytes)])
                .says(
                    "Much of the device is in use outside this allocator. The processes cannot be seen from here, so \
                     it may also be another library of this process.",
                )
                .helps("nvidia-smi on the host lists the processes (in a container: start it with --pid=host)"),
        );
    };
    let processes = evidence.processes.iter().flatten().filter(|p| !p.is_self);
    let holders = processes.map(|p| Holder { what: p.label(), bytes: p.used.unwrap_or(0) });
    let holders = largest(holders);
    let worst = holders.first().map_or_else(String::new, |h| h.what.clone());
    Some(
        Candidate::new(Cause::OtherProcess, others, Gain::device(others), Confidence::Certain)
            .figures([Figure::bytes("held by other processes", others)])
            .holders(holders)
            .says(format!(
                "Other processes hold {} of this device; nothing in this program frees that.",
                size(others)
            ))
            .helps(format!("end {worst} if nobody needs it, or use another GPU (CUDA_VISIBLE_DEVICES)")),
    )
}

fn context(measure: &Measure<'_>) -> Option<Candidate> {
    let outside = measure.outside.filter(|&b| b > NORMAL_CONTEXT)?;
    let gain = Gain::device(outside - NORMAL_CONTEXT);
    Some(
        Candidate::new(Cause::Context, outside, gain, Confidence::Likely)
            .figures([Figure::bytes("this process, outside the allocator", outside)])
            .says(format!(
                "This process holds {} outside gpucache: its CUDA context, loaded modules, and whatever other \
                 libraries allocate themselves. A context alone takes a few hundred MiB.",
                size(outside)
            ))
            .helps(
                "let the other library allocate through gpucache (alloc_raw), load kernels lazily \
                 (CUDA_MODULE_LOADING=LAZY), and make one allocator per device",
            ),
    )
}

fn growing(evidence: &Evidence) -> Option<Candidate> {
    let sites = growing_sites(&evidence.trace);
    let worst = sites.first()?;
    let bytes: u64 = sites.iter().map(|s| s.bytes).sum();
    let mut figures = vec![
        Figure::bytes("grown during the history", bytes),
        Figure::count("blocks", sites.iter().map(|s| s.blocks).sum()),
    ];
    if let Some(rate) = worst.bytes_per_second {
        let end = evidence.trace.last().map_or(0, |e| e.time_us);
        figures.push(Figure { name: "rate at the first site", value: Value::BytesPerSecond(rate) });
        let age = end.saturating_sub(worst.since_us) as f64 / 1e6;
        figures.push(Figure { name: "growing since, before the end", value: Value::Seconds(age) });
    }
    let holders =
        sites.iter().map(|s| Holder { what: format!("{} ({})", s.site, blocks(s.blocks)), bytes: s.bytes });
    Some(
        Candidate::new(Cause::Growing, bytes, Gain::own(bytes), Confidence::Likely)
            .figures(figures)
            .holders(holders)
            .says(format!(
                "Call sites allocate again and again, and their blocks stay live: the first of them has {} in {} so far.",
                size(worst.bytes),
                blocks(worst.blocks)
            ))
            .helps(
                "find what keeps the handles (a Vec that collects outputs, a cache without a limit, a cycle of Arc); \
                 mark() and since(&mark) around one iteration name the call sites",
            ),
    )
}

fn fragmented(measure: &Measure<'_>, request: Option<&Wanted>) -> Option<Candidate> {
    let Idle { bytes, largest, blocks: pieces } = measure.fragments;
    if pieces == 0 {
        return None;
    }
    let mut figures = vec![
        Figure::bytes("free beside live blocks", bytes),
        Figure::count("in pieces", pieces),
        Figure::bytes("largest of them", largest),
        Figure::count("segments that live blocks pin", measure.pinned.len() as u64),
    ];
    figures.extend(request.map(|r| Figure::bytes("the request needs one piece of", r.rounded)));
    let holders = measure.pinned.iter().take(MOST_HOLDERS).map(|p| pin(p.segment, p.idle));
    let says = match request {
        Some(r) if r.rounded > largest => format!(
            "{} are free, but in {pieces} pieces of at most {}; a block of {} fits in none of them, and live blocks \
             keep their segments from going back to the driver.",
            size(bytes),
            size(largest),
            size(r.rounded)
        ),
        Some(r) => format!(
            "{} are free beside live blocks, but none of it may serve {}: requests up to 1 MiB and larger ones have \
             segments of their own, and so has each stream; live blocks keep these from going back to the driver.",
            size(bytes),
            size(r.rounded)
        ),
        None => format!(
            "{} are free but cannot go back to the driver: each piece shares its segment with a live block. \
             empty_cache() frees nothing of it.",
            size(bytes)
        ),
    };
    let helps = if measure.pinned.iter().all(|p| p.segment.is_expandable) && !measure.pinned.is_empty() {
        "allocate what lives long first, and drop the blocks named here"
    } else {
        "set expandable_segments:True (or max_split_size_mb below the sizes that come in waves), or drop the blocks \
         named here"
    };
    let candidate = Candidate::new(Cause::Fragmented, bytes, Gain::own(bytes), Confidence::Certain);
    Some(candidate.figures(figures).holders(holders).says(says).helps(helps))
}

/// A pinned segment, by the live block that weighs most in it.
fn pin(segment: &SegmentInfo, idle: u64) -> Holder {
    let active = segment.blocks.iter().filter(|b| b.state != BlockState::Inactive);
    let count = active.clone().count();
    let text = active.max_by_key(|b| b.size).map_or_else(String::new, |b| {
        format!("{} at {:#x}, from {}", size(b.size), b.address, site(&b.frames))
    });
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    let what = format!(
        "idle in segment {:#x} of {}, pinned by {text}{more}",
        segment.address,
        size(segment.total_size)
    );
    Holder { what, bytes: idle }
}

fn streams<'a>(idle: impl Iterator<Item = (&'a u64, &'a Idle)>) -> Vec<Holder> {
    let text = |(stream, i): (&u64, &Idle)| Holder {
        what: format!("stream {stream:#x} ({}, largest {})", blocks(i.blocks), size(i.largest)),
        bytes: i.bytes,
    };
    idle.map(text).collect()
}

fn other_stream(measure: &Measure<'_>) -> Option<Candidate> {
    let bytes = measure.other_stream_bytes();
    let largest = measure.other_streams.values().map(|i| i.largest).max()?;
    Some(
        Candidate::new(Cause::OtherStream, bytes, Gain::own(bytes), Confidence::Certain)
            .figures([
                Figure::bytes("free on other streams, large enough", bytes),
                Figure::bytes("largest of them", largest),
            ])
            .holders(streams(measure.other_streams.iter()))
            .says("A free block that would fit is cached for another stream; blocks never change their stream.")
            .helps("allocate on that stream, use one stream for both, or drop the live blocks of its segments, so that they can \
                 go back to the driver"),
    )
}

fn pending(evidence: &Evidence, measure: &Measure<'_>) -> Option<Candidate> {
    let bytes = Some(measure.pending).filter(|&b| b > 0)?;
    let holders = evidence.waits.iter().map(|w| {
        let what = match w.stream {
            Some(stream) => format!("waits for stream {stream:#x} ({})", blocks(w.blocks)),
            None => format!("waits for the end of the capture or pool scope ({})", blocks(w.blocks)),
        };
        Holder { what, bytes: w.bytes }
    });
    let helps = if evidence.pool_active {
        "drop such blocks before the capture begins, or end it before large requests"
    } else {
        "synchronise the stream named here, record_stream only where a stream really uses the block, and drop early"
    };
    Some(
        Candidate::new(Cause::PendingFree, bytes, Gain::own(bytes), Confidence::Certain)
            .figures([
                Figure::bytes("freed, not yet reusable", bytes),
                Figure::count("blocks", measure.pending_blocks),
            ])
            .holders(holders)
            .says(format!(
                "{} were dropped after record_stream; they stay active until the other stream has done what was \
                 queued by then.",
                size(bytes)
            ))
            .helps(helps),
    )
}

fn private_pool(measure: &Measure<'_>, request: Option<&Wanted>) -> Option<Candidate> {
    let bytes = measure.other_pool_bytes();
    let largest = measure.other_pools.values().map(|i| i.largest).max()?;
    let holders = measure.other_pools.iter().map(|(id, i)| {
        let what = match id {
            &PoolId::DEFAULT => "the default pool".to_owned(),
            PoolId(0, n) => format!("pool (0, {n}) of the program"),
            PoolId(n, m) => format!("pool ({n}, {m}) of a captured graph"),
        };
        Holder { what, bytes: i.bytes }
    });
    let helps = if request.is_some_and(|r| r.pool != PoolId::DEFAULT) {
        "call empty_cache() before the capture begins"
    } else {
        "drop the MemPool or the graph when it is done, let its memory help out with set_use_on_oom(true), or give \
         graphs one pool together"
    };
    Some(
        Candidate::new(Cause::PrivatePool, bytes, Gain::own(bytes), Confidence::Certain)
            .figures([
                Figure::bytes("idle in pools that do not serve this", bytes),
                Figure::bytes("largest block", largest),
            ])
            .holders(holders)
            .says(format!(
                "{} are idle in private pools; requests of other pools cannot use them.",
                size(bytes)
            ))
            .helps(helps),
    )
}

fn cached(evidence: &Evidence, measure: &Measure<'_>, request: Option<&Wanted>) -> Option<Candidate> {
    // A request that fails has had the cache emptied for it, unless that was forbidden.
    if request.is_some() && !evidence.pool_active {
        return None;
    }
    let bytes = measure.cached_bytes();
    let candidate = Candidate::new(Cause::Cached, bytes, Gain::own(bytes), Confidence::Certain)
        .figures([Figure::bytes("cached, could go back to the driver", bytes)])
        .holders(streams(measure.cached.iter()));
    Some(if request.is_some() {
        candidate
            .says("The cache holds whole free segments, but nothing may be given back during a capture.")
            .helps("call empty_cache() before the capture begins")
    } else {
        candidate
            .says(format!(
                "The program freed {}; the cache keeps them for its next request, and nvidia-smi counts them.",
                size(bytes)
            ))
            .helps("nothing, unless another program needs the memory: then empty_cache()")
    })
}
