//! What a snapshot says: totals and fragmentation, the largest blocks, segments that few bytes keep, call sites.

use std::collections::HashMap;
use std::fmt;

use super::encode::CALLER;
use super::file::SnapshotFile;
use super::history::Frames;
use super::snapshot::{BlockInfo, BlockState, PoolId, PoolKind, SegmentInfo};
use crate::units::{count, short_size};

/// How much to list, and what counts as pinned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InspectOptions {
    /// Rows per list.
    pub top: usize,
    /// A segment is pinned when it has active bytes, but at most this part of it: 0 to 1.
    pub pinned_below: f64,
}

impl Default for InspectOptions {
    fn default() -> Self {
        InspectOptions { top: 10, pinned_below: 0.25 }
    }
}

/// One device's part of a snapshot, summed up. Bytes throughout.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// Device ordinal.
    pub device: u32,
    /// The sums.
    pub totals: Totals,
    /// Active blocks, largest first.
    pub largest: Vec<BlockLine>,
    /// Segments that few active bytes keep from being released, most idle bytes first.
    pub pinned: Vec<PinnedSegment>,
    /// How many segments are pinned in all, listed or not.
    pub pinned_segments: usize,
    /// Idle bytes in all pinned segments.
    pub pinned_idle: u64,
    /// Active bytes by call site, most first.
    pub sites: Vec<SiteLine>,
    /// How many call sites there are in all.
    pub site_count: usize,
}

/// Sums over all segments of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Held from the driver.
    pub reserved: u64,
    /// In clients' hands.
    pub allocated: u64,
    /// Allocated or waiting for another stream.
    pub active: u64,
    /// What clients asked for, of the active blocks.
    pub requested: u64,
    /// Inactive blocks.
    pub inactive: u64,
    /// Inactive blocks of segments that have active ones, which can't be released to the driver.
    pub inactive_split: u64,
    /// Largest inactive block.
    pub largest_inactive: u64,
    /// Number of segments.
    pub segments: usize,
    /// Number of active blocks.
    pub active_blocks: usize,
    /// Number of inactive blocks.
    pub inactive_blocks: usize,
}

impl Totals {
    /// The part of the inactive memory that is not in its largest block: 0 (one piece) to 1 (dust).
    pub fn fragmentation(&self) -> f64 {
        ratio(self.inactive - self.largest_inactive, self.inactive)
    }

    /// The part of the reserved memory that is not active: 0 to 1.
    pub fn idle(&self) -> f64 {
        ratio(self.inactive, self.reserved)
    }

    /// Bytes that rounding adds to the active requests.
    pub fn rounding(&self) -> u64 {
        self.active.saturating_sub(self.requested)
    }
}

/// One active block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockLine {
    /// Start address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that were requested.
    pub requested: u64,
    /// State.
    pub state: BlockState,
    /// Raw stream handle.
    pub stream: u64,
    /// Pool.
    pub pool: PoolId,
    /// Call site, as [`site`] names it.
    pub site: String,
}

/// A segment that is kept by few bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedSegment {
    /// Start address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes of its active blocks.
    pub active: u64,
    /// Largest hole, in bytes.
    pub largest_hole: u64,
    /// Raw stream handle.
    pub stream: u64,
    /// Small or large.
    pub kind: PoolKind,
    /// The active blocks that keep it, at most four, largest first.
    pub kept_by: Vec<BlockLine>,
}

/// The active blocks of one call site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteLine {
    /// Call site, as [`site`] names it.
    pub site: String,
    /// Bytes of its active blocks.
    pub bytes: u64,
    /// Number of its active blocks.
    pub blocks: usize,
}

/// The text for a call site: the innermost frame with a file, `file:line name`; `(not recorded)` without one.
pub fn site(frames: &Frames) -> String {
    match frames {
        Frames::None => "(not recorded)".into(),
        Frames::Site(location) => format!("{}:{}", location.file(), location.line()),
        Frames::Stack(stack) => {
            match stack.iter().find(|f| !f.filename.is_empty() && &*f.filename != "??").or(stack.first()) {
                Some(f) if &*f.name == CALLER => format!("{}:{}", f.filename, f.line),
                Some(f) => format!("{}:{} {}", f.filename, f.line, f.name),
                None => "(not recorded)".into(),
            }
        }
    }
}

/// Works through one device's segments.
pub fn inspect(file: &SnapshotFile, device: u32, options: InspectOptions) -> Inspection {
    let mut totals = Totals::default();
    let mut largest: Vec<(&SegmentInfo, &BlockInfo)> = Vec::new();
    let mut pinned: Vec<(&SegmentInfo, u64)> = Vec::new();
    for segment in file.segments_of(device) {
        totals.add(segment);
        largest.extend(active_blocks(segment).map(|b| (segment, b)));
        let active: u64 = active_blocks(segment).map(|b| b.size).sum();
        if active > 0 && active as f64 <= segment.total_size as f64 * options.pinned_below {
            pinned.push((segment, active));
        }
    }
    largest.sort_by_key(|(_, b)| (std::cmp::Reverse(b.size), b.address));
    let (sites, site_count) = by_site(&largest, options.top);
    pinned.sort_by_key(|(s, active)| (std::cmp::Reverse(s.total_size.saturating_sub(*active)), s.address));
    Inspection {
        device,
        totals,
        largest: largest.iter().take(options.top).map(|(s, b)| line(s, b)).collect(),
        pinned_segments: pinned.len(),
        pinned_idle: pinned.iter().map(|(s, active)| s.total_size.saturating_sub(*active)).sum(),
        pinned: pinned.iter().take(options.top).map(|(s, active)| pinned_line(s, *active)).collect(),
        sites,
        site_count,
    }
}

impl Totals {
    fn add(&mut self, segment: &SegmentInfo) {
        self.segments += 1;
        self.reserved += segment.total_size;
        let kept = active_blocks(segment).next().is_some();
        for block in &segment.blocks {
            if block.state == BlockState::Inactive {
                self.inactive_blocks += 1;
                self.inactive += block.size;
                self.inactive_split += if kept { block.size } else { 0 };
                self.largest_inactive = self.largest_inactive.max(block.size);
                continue;
            }
            self.active_blocks += 1;
            self.active += block.size;
            self.requested += block.requested_size;
            if block.state == BlockState::ActiveAllocated {
                self.allocated += block.size;
            }
        }
    }
}

fn active_blocks(segment: &SegmentInfo) -> impl Iterator<Item = &BlockInfo> {
    segment.blocks.iter().filter(|b| b.state != BlockState::Inactive)
}

fn line(segment: &SegmentInfo, block: &BlockInfo) -> BlockLine {
    BlockLine {
        address: block.address,
        size: block.size,
        requested: block.requested_size,
        state: block.state,
        stream: segment.stream,
        pool: segment.segment_pool_id,
        site: site(&block.frames),
    }
}

fn pinned_line(segment: &SegmentInfo, active: u64) -> PinnedSegment {
    let mut keepers: Vec<&BlockInfo> = active_blocks(segment).collect();
    keepers.sort_by_key(|b| (std::cmp::Reverse(b.size), b.address));
    let holes = segment.blocks.iter().filter(|b| b.state == BlockState::Inactive).map(|b| b.size);
    PinnedSegment {
        address: segment.address,
        size: segment.total_size,
        active,
        largest_hole: holes.max().unwrap_or(0),
        stream: segment.stream,
        kind: segment.segment_type,
        kept_by: keepers.into_iter().take(4).map(|b| line(segment, b)).collect(),
    }
}

fn by_site(blocks: &[(&SegmentInfo, &BlockInfo)], top: usize) -> (Vec<SiteLine>, usize) {
    let mut sums: HashMap<String, (u64, usize)> = HashMap::new();
    for (_, block) in blocks {
        let sum = sums.entry(site(&block.frames)).or_default();
        sum.0 += block.size;
        sum.1 += 1;
    }
    let count = sums.len();
    let mut lines: Vec<SiteLine> =
        sums.into_iter().map(|(site, (bytes, blocks))| SiteLine { site, bytes, blocks }).collect();
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.site.cmp(&b.site)));
    lines.truncate(top);
    (lines, count)
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.totals;
        writeln!(f, "Device {}", self.device)?;
        writeln!(f, "  reserved   {:>10}  in {}", short_size(t.reserved), count(t.segments, "segment"))?;
        writeln!(
            f,
            "  active     {:>10}  in {}, of which allocated {}, rounding {}",
            short_size(t.active),
            count(t.active_blocks, "block"),
            short_size(t.allocated),
            short_size(t.rounding())
        )?;
        writeln!(
            f,
            "  inactive   {:>10}  in {} ({:.1} % of reserved), largest {}",
            short_size(t.inactive),
            count(t.inactive_blocks, "block"),
            t.idle() * 100.0,
            short_size(t.largest_inactive)
        )?;
        writeln!(
            f,
            "  of which   {:>10}  in segments with active blocks (empty_cache keeps them); fragmentation {:.1} %",
            short_size(t.inactive_split),
            t.fragmentation() * 100.0
        )?;
        self.write_blocks(f)?;
        self.write_pinned(f)?;
        self.write_sites(f)
    }
}

impl Inspection {
    fn write_blocks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nLargest active blocks (of {})", self.totals.active_blocks)?;
        for b in &self.largest {
            let pending = if b.state == BlockState::ActivePendingFree { " (waits for a stream)" } else { "" };
            writeln!(
                f,
                "  {:>10}  {:#x}  stream {:#x}  {}{pending}",
                short_size(b.size),
                b.address,
                b.stream,
                b.site
            )?;
        }
        Ok(())
    }

    fn write_pinned(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nPinned segments: {}, with {} that can't go back to the driver",
            self.pinned_segments,
            short_size(self.pinned_idle)
        )?;
        for p in &self.pinned {
            writeln!(
                f,
                "  {:>10}  {:#x}  {}, kept by {} ({:.1} %), largest hole {}",
                short_size(p.size),
                p.address,
                p.kind.name(),
                short_size(p.active),
                ratio(p.active, p.size) * 100.0,
                short_size(p.largest_hole)
            )?;
            for b in &p.kept_by {
                writeln!(f, "              {:>10}  {}", short_size(b.size), b.site)?;
            }
        }
        Ok(())
    }

    fn write_sites(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nCall sites by active bytes (of {})", self.site_count)?;
        for s in &self.sites {
            writeln!(f, "  {:>10}  {:>12}  {}", short_size(s.bytes), count(s.blocks, "block"), s.site)?;
        }
        Ok(())
    }
}
