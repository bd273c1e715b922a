//! Whether live memory grows: call sites that allocate again and again and whose blocks stay.

use std::collections::HashMap;

use crate::observe::history::{TraceAction, TraceEntry};
use crate::observe::inspect::site;

/// The history is cut into this many parts of equally many entries.
const PARTS: usize = 8;
/// Blocks of a site must stay from so many parts. The last part does not count: what is in use just now is young.
const PARTS_WITH_SURVIVORS: u32 = 5;
const FEWEST_SURVIVORS: u64 = 6;

/// A call site whose live bytes grow.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GrowingSite {
    /// The call site, as [`site`] names it.
    pub site: String,
    /// Bytes allocated there during the history and still live.
    pub bytes: u64,
    /// How many blocks they are.
    pub blocks: u64,
    /// When the first of them was allocated: microseconds since the epoch.
    pub since_us: u64,
    /// Growth from the first of them to the history's end; `None` if both are the same moment.
    pub bytes_per_second: Option<f64>,
}

#[derive(Default)]
struct Survivors {
    bytes: u64,
    blocks: u64,
    since_us: u64,
    /// One bit for each part of the history that some of them are from.
    parts: u8,
}

/// The call sites whose memory grows steadily over a history, most bytes first.
///
/// A program that frees next to nothing is building something up, say loading a model: that is no leak. One that loads
/// with temporary buffers in between does look like a leak until it is done.
pub fn growing_sites(trace: &[TraceEntry]) -> Vec<GrowingSite> {
    let mut live: HashMap<u64, usize> = HashMap::new();
    let mut frees = 0_u64;
    for (at, entry) in trace.iter().enumerate() {
        match entry.action {
            TraceAction::Alloc => {
                live.insert(entry.addr, at);
            }
            TraceAction::FreeRequested => {
                frees += 1;
                live.remove(&entry.addr);
            }
            _ => {}
        }
    }
    let mut sites: HashMap<String, Survivors> = HashMap::new();
    for at in live.into_values() {
        let entry = &trace[at];
        let survivors = sites.entry(site(&entry.frames)).or_default();
        let first = survivors.blocks == 0 || entry.time_us < survivors.since_us;
        survivors.since_us = if first { entry.time_us } else { survivors.since_us };
        survivors.bytes += entry.size;
        survivors.blocks += 1;
        survivors.parts |= 1 << (at * PARTS / trace.len());
    }
    let end_us = trace.last().map_or(0, |e| e.time_us);
    let mut growing: Vec<GrowingSite> = sites
        .into_iter()
        .filter(|(_, s)| s.is_steady() && frees >= s.blocks)
        .map(|(site, s)| s.describe(site, end_us))
        .collect();
    growing.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.site.cmp(&b.site)));
    growing
}

impl Survivors {
    fn is_steady(&self) -> bool {
        let without_last = self.parts & !(1 << (PARTS - 1));
        self.blocks >= FEWEST_SURVIVORS && without_last.count_ones() >= PARTS_WITH_SURVIVORS
    }

    fn describe(self, site: String, end_us: u64) -> GrowingSite {
        let seconds = end_us.saturating_sub(self.since_us) as f64 / 1e6;
        GrowingSite {
            site,
            bytes: self.bytes,
            blocks: self.blocks,
            since_us: self.since_us,
            bytes_per_second: (seconds > 0.0).then(|| self.bytes as f64 / seconds),
        }
    }
}
