//! Live blocks by age and call site, and what came and went between two moments.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use super::history::{Frames, TraceAction, TraceEntry};
use super::inspect::site;
use super::snapshot::PoolId;
use crate::units::format_size as size;

/// Names a block for as long as a client has it: stream, record, generation.
pub(crate) type LifeId = (u64, u32, u32);

/// A block in a client's hands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBlock {
    /// Start address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// Raw stream handle.
    pub stream: u64,
    /// Pool.
    pub pool: PoolId,
    /// Call site.
    pub frames: Frames,
    /// How long it has been live; `None` if the history does not go back so far (or is off: no clock is read then).
    pub age: Option<Duration>,
    pub(crate) life: LifeId,
}

/// The live blocks of one call site.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteBlocks {
    /// Call site.
    pub site: String,
    /// Bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Age of the oldest, where the history tells.
    pub oldest: Option<Duration>,
}

/// What is live, by call site.
///
/// `Display` is a table; the largest sites come first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LeakReport {
    /// Bytes of all live blocks.
    pub bytes: u64,
    /// Their number.
    pub blocks: u64,
    /// By call site, most bytes first.
    pub sites: Vec<SiteBlocks>,
}

/// Ages from a history: the last allocation at each address, measured from `now_us`.
pub(crate) fn set_ages(blocks: &mut [LiveBlock], trace: &[TraceEntry], now_us: u64) {
    let mut births: HashMap<u64, u64> = HashMap::new();
    for entry in trace {
        match entry.action {
            TraceAction::Alloc => births.insert(entry.addr, entry.time_us),
            TraceAction::FreeRequested => births.remove(&entry.addr),
            _ => None,
        };
    }
    for block in blocks {
        block.age = births.get(&block.address).map(|&at| Duration::from_micros(now_us.saturating_sub(at)));
    }
}

impl LeakReport {
    /// Sums live blocks up by call site.
    pub fn new(blocks: &[LiveBlock]) -> Self {
        let mut sites: BTreeMap<String, SiteBlocks> = BTreeMap::new();
        for block in blocks {
            let name = site(&block.frames);
            let line = sites.entry(name.clone()).or_insert_with(|| SiteBlocks {
                site: name,
                bytes: 0,
                blocks: 0,
                oldest: None,
            });
            line.bytes += block.size;
            line.blocks += 1;
            line.oldest = line.oldest.max(block.age);
        }
        let mut sites: Vec<SiteBlocks> = sites.into_values().collect();
        sites.sort_by_key(|s| std::cmp::Reverse(s.bytes));
        LeakReport { bytes: blocks.iter().map(|b| b.size).sum(), blocks: blocks.len() as u64, sites }
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} live blocks", size(self.bytes), self.blocks)?;
        for line in &self.sites {
            write!(f, "\n  {:>12}  {:>7} blocks  {}", size(line.bytes), line.blocks, line.site)?;
            if let Some(age) = line.oldest {
                write!(f, ", the oldest {:.1} s old", age.as_secs_f64())?;
            }
        }
        Ok(())
    }
}

/// A moment to compare with; from [`Allocator::mark`](crate::Allocator::mark). It takes host memory in proportion to
/// the number of live blocks.
#[derive(Debug, Clone)]
pub struct Mark {
    taken: Instant,
    bytes: u64,
    live: HashMap<LifeId, (u64, Frames)>,
}

/// How one call site changed between two moments.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteGrowth {
    /// Call site.
    pub site: String,
    /// Bytes allocated since the mark and still live.
    pub new_bytes: u64,
    /// Their blocks.
    pub new_blocks: u64,
    /// Bytes that were live at the mark and are not any more.
    pub gone_bytes: u64,
    /// Their blocks.
    pub gone_blocks: u64,
}

impl SiteGrowth {
    /// New less gone bytes.
    pub fn net_bytes(&self) -> i64 {
        self.new_bytes as i64 - self.gone_bytes as i64
    }
}

/// What came and went since a mark.
///
/// `Display` is a table of the sites that grew.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrowthReport {
    /// Time since the mark.
    pub elapsed: Duration,
    /// Live bytes at the mark.
    pub before: u64,
    /// Live bytes now.
    pub now: u64,
    /// The call sites that changed, most growth first.
    pub sites: Vec<SiteGrowth>,
}

impl Mark {
    pub(crate) fn new(blocks: Vec<LiveBlock>) -> Self {
        let bytes = blocks.iter().map(|b| b.size).sum();
        let live = blocks.into_iter().map(|b| (b.life, (b.size, b.frames))).collect();
        Mark { taken: Instant::now(), bytes, live }
    }

    pub(crate) fn compare(&self, blocks: &[LiveBlock]) -> GrowthReport {
        let mut sites: BTreeMap<String, SiteGrowth> = BTreeMap::new();
        let mut old = self.live.clone();
        for block in blocks {
            if old.remove(&block.life).is_none() {
                let line = site_line(&mut sites, &block.frames);
                line.new_bytes += block.size;
                line.new_blocks += 1;
            }
        }
        for (bytes, frames) in old.values() {
            let line = site_line(&mut sites, frames);
            line.gone_bytes += bytes;
            line.gone_blocks += 1;
        }
        let mut sites: Vec<SiteGrowth> = sites.into_values().collect();
        sites.sort_by_key(|s| std::cmp::Reverse(s.net_bytes()));
        let now = blocks.iter().map(|b| b.size).sum();
        GrowthReport { elapsed: self.taken.elapsed(), before: self.bytes, now, sites }
    }
}

fn site_line<'a>(sites: &'a mut BTreeMap<String, SiteGrowth>, frames: &Frames) -> &'a mut SiteGrowth {
    let name = site(frames);
    sites.entry(name.clone()).or_insert_with(|| SiteGrowth {
        site: name,
        new_bytes: 0,
        new_blocks: 0,
        gone_bytes: 0,
        gone_blocks: 0,
    })
}

impl GrowthReport {
    /// Change of the live bytes.
    pub fn net_bytes(&self) -> i64 {
        self.now as i64 - self.before as i64
    }
}

impl fmt::Display for GrowthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} live at the mark, {} now", size(self.before), size(self.now))?;
        for s in self.sites.iter().filter(|s| s.net_bytes() > 0) {
            let net = size(s.net_bytes().unsigned_abs());
            write!(f, "\n  +{net:>11}  {:>6} new, {:>6} gone  {}", s.new_blocks, s.gone_blocks, s.site)?;
        }
        Ok(())
    }
}
