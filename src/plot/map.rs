//! The map: every segment as a bar, wrapped over rows like words, its blocks in colour.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::page::{Area, Drawn, MARGIN, failed, panel_heading, swatch};
use super::series::round_step;
use super::{PlotOptions, theme};
use crate::observe::file::SnapshotFile;
use crate::observe::snapshot::{BlockInfo, PoolId, PoolKind, SegmentInfo};
use crate::units::{count, short_size};

mod colors;

use colors::Colors;

const TOP: u32 = 44;
const KEY_LINE: u32 = 20;
const GROUP_LABEL: u32 = 30;
const ROW: u32 = 22;
const ROW_GAP: u32 = 5;
/// Rows of the largest group; smaller ones have fewer, but not in proportion: they are read as well.
const MOST_ROWS: f64 = 28.0;
/// Segments up to this size are not spread over rows for their own sake.
const WHOLE: f64 = 33_554_432.0;
/// Groups drawn; the rest is named in a line.
const MOST_GROUPS: usize = 24;

/// The segments of one pool and stream.
struct Group<'a> {
    stream: u64,
    kind: PoolKind,
    pool: PoolId,
    segments: Vec<&'a SegmentInfo>,
    bytes: u64,
    /// Bytes that one row shows.
    row_bytes: f64,
    rows: Vec<Vec<Piece<'a>>>,
}

/// A part of a segment in one row: bytes `from` to `to` of it at pixels `left` to `right`.
struct Piece<'a> {
    segment: &'a SegmentInfo,
    from: u64,
    to: u64,
    left: f64,
    right: f64,
}

/// Everything laid out.
pub(super) struct Map<'a> {
    groups: Vec<Group<'a>>,
    left_out: usize,
    colors: Colors,
}

impl<'a> Map<'a> {
    pub(super) fn new(file: &'a SnapshotFile, options: &PlotOptions) -> Self {
        let mut groups: Vec<Group<'a>> = Vec::new();
        let mut segments: Vec<&SegmentInfo> = file.segments_of(options.device).collect();
        let key = |s: &SegmentInfo| (s.segment_pool_id, s.stream, s.segment_type);
        segments.sort_by_key(|s| (key(s), s.address));
        for run in segments.chunk_by(|a, b| key(a) == key(b)) {
            let (pool, stream, kind) = key(run[0]);
            let bytes = run.iter().map(|s| s.total_size).sum();
            groups.push(Group {
                stream,
                kind,
                pool,
                segments: run.to_vec(),
                bytes,
                row_bytes: 0.0,
                rows: Vec::new(),
            });
        }
        groups.sort_by_key(|g| (std::cmp::Reverse(g.bytes), g.stream));
        let left_out = groups.len().saturating_sub(MOST_GROUPS);
        groups.truncate(MOST_GROUPS);
        let most = groups.first().map_or(1, |g| g.bytes) as f64;
        let width = f64::from(options.width - 2 * MARGIN);
        for group in &mut groups {
            group.lay_out((MOST_ROWS * (group.bytes as f64 / most).sqrt()).max(1.0), width);
        }
        Map { groups, left_out, colors: Colors::new(file, options) }
    }

    pub(super) fn height(&self) -> u32 {
        let rows = |g: &Group<'_>| GROUP_LABEL + g.rows.len() as u32 * (ROW + ROW_GAP);
        let rest = if self.left_out > 0 { GROUP_LABEL } else { 0 };
        TOP + self.key_height() + self.groups.iter().map(rows).sum::<u32>() + rest
    }

    fn key_height(&self) -> u32 {
        self.colors.long_key().len() as u32 * KEY_LINE
    }

    pub(super) fn draw(&self, area: &Area<'_>) -> Drawn {
        panel_heading(area, "Segments", &self.colors.short_key())?;
        let left = MARGIN as i32;
        let mut y = TOP;
        for (color, label) in self.colors.long_key() {
            swatch(area, (left, y as i32), *color)?;
            let style = theme::text(13, theme::INK);
            area.draw_text(label, &style, (left + 20, y as i32)).map_err(failed)?;
            y += KEY_LINE;
        }
        for group in &self.groups {
            let style = theme::text(13, theme::FAINT);
            area.draw_text(&group.label(), &style, (left, y as i32 + 9)).map_err(failed)?;
            y += GROUP_LABEL;
            for row in &group.rows {
                for piece in row {
                    piece.draw(area, y as i32, &self.colors)?;
                }
                y += ROW + ROW_GAP;
            }
        }
        if self.left_out > 0 {
            let text = format!("and {} more pools and streams with less memory each", self.left_out);
            area.draw_text(&text, &theme::text(13, theme::FAINT), (left, y as i32 + 9)).map_err(failed)?;
        }
        Ok(())
    }
}

impl Group<'_> {
    fn label(&self) -> String {
        let pool = match self.pool {
            PoolId::DEFAULT => String::new(),
            PoolId(a, b) => format!(", pool ({a}, {b})"),
        };
        let stream =
            if self.stream == 0 { "default stream".into() } else { format!("stream {:#x}", self.stream) };
        format!(
            "{} blocks, {stream}{pool}   ·   {} in {}   ·   a full row is {}",
            self.kind.name(),
            short_size(self.bytes),
            count(self.segments.len(), "segment"),
            short_size(self.row_bytes as u64),
        )
    }

    /// Puts the segments into rows. A segment that does not fit goes on in the next row; one that would fit a row of
    /// its own is not broken for a small rest.
    fn lay_out(&mut self, rows: f64, width: f64) {
        // Not so many rows that ordinary segments are torn apart: a quarter of the group may fill one row, and a few
        // megabytes need not fill several.
        let largest = self.segments.iter().map(|s| s.total_size).max().unwrap_or(1) as f64;
        let bytes = self.bytes as f64;
        self.row_bytes =
            round_step((bytes / rows).max(largest.min((bytes / 4.0).max(WHOLE))), 1.0, true).max(1.0);
        let scale = width / self.row_bytes;
        let gap = if self.segments.len() > 400 { 1.0 } else { 3.0 };
        let mut row = Vec::new();
        let mut x = 0.0;
        for segment in &self.segments {
            let wanted = segment.total_size as f64 * scale;
            if x > 0.0 && wanted > width - x + 0.5 && (wanted <= width || width - x < 24.0) && x > width * 0.6
            {
                self.rows.push(std::mem::take(&mut row));
                x = 0.0;
            }
            let mut from = 0;
            while from < segment.total_size {
                let left_over = (segment.total_size - from) as f64 * scale;
                let room = width - x;
                // Half a pixel of rest is not worth a row.
                let all = left_over <= room + 0.5;
                let to = if all { segment.total_size } else { from + ((room / scale) as u64).max(1) };
                let to = to.min(segment.total_size);
                let right = if all { (x + left_over).min(width) } else { width };
                row.push(Piece { segment, from, to, left: x, right });
                from = to;
                x = right + gap;
                if !all || x >= width {
                    self.rows.push(std::mem::take(&mut row));
                    x = 0.0;
                }
            }
        }
        if !row.is_empty() {
            self.rows.push(row);
        }
    }
}

impl Piece<'_> {
    fn draw(&self, area: &Area<'_>, y: i32, colors: &Colors) -> Drawn {
        let margin = MARGIN as i32;
        let (left, right) =
            (self.left.round() as i32, (self.right.round() as i32).max(self.left.round() as i32 + 1));
        let bottom = y + ROW as i32;
        for (from, to, block) in self.runs(right - left) {
            let (x0, x1) = (margin + left + from, margin + left + to);
            let color = colors.of(block);
            // A seam between blocks, where there is room for it.
            let seam = i32::from(to - from > 3 && to < right - left);
            area.draw(&Rectangle::new([(x0, y), (x1 - seam, bottom)], color.filled())).map_err(failed)?;
            let text = short_size(block.size);
            let begins = block.address - self.segment.address >= self.from;
            if begins && to - from > theme::width(&text, 11) as i32 + 10 {
                let ink = if theme::is_light(color) { theme::INK } else { theme::PAPER };
                let style = theme::text(11, ink).pos(Pos::new(HPos::Center, VPos::Center));
                area.draw_text(&text, &style, (i32::midpoint(x0, x1), y + ROW as i32 / 2)).map_err(failed)?;
            }
        }
        self.outline(area, (margin + left, y), (margin + right, bottom))
    }

    /// Which block fills which pixels: the one with most bytes in each, equal neighbours joined.
    fn runs(&self, pixels: i32) -> Vec<(i32, i32, &BlockInfo)> {
        let per_pixel = (self.to - self.from) as f64 / f64::from(pixels);
        let blocks = &self.segment.blocks;
        let base = self.segment.address;
        let end = |b: &BlockInfo| (b.address - base) as f64 + b.size as f64;
        let mut runs: Vec<(i32, i32, &BlockInfo)> = Vec::new();
        let mut first = blocks.partition_point(|b| end(b) <= self.from as f64);
        for pixel in 0..pixels {
            let from = self.from as f64 + f64::from(pixel) * per_pixel;
            let to = from + per_pixel;
            while first + 1 < blocks.len() && end(&blocks[first]) <= from {
                first += 1;
            }
            let inside =
                blocks[first.min(blocks.len())..].iter().take_while(|b| ((b.address - base) as f64) < to);
            let share = |b: &BlockInfo| end(b).min(to) - ((b.address - base) as f64).max(from);
            let Some(block) = inside.max_by(|a, b| share(a).total_cmp(&share(b))) else { continue };
            match runs.last_mut() {
                Some((_, until, last)) if last.address == block.address => *until = pixel + 1,
                _ => runs.push((pixel, pixel + 1, block)),
            }
        }
        runs
    }

    /// The segment's edge; open where it goes on in another row.
    fn outline(&self, area: &Area<'_>, (left, top): (i32, i32), (right, bottom): (i32, i32)) -> Drawn {
        let line = |from, to| area.draw(&PathElement::new(vec![from, to], theme::FAINT)).map_err(failed);
        line((left, top), (right, top))?;
        line((left, bottom), (right, bottom))?;
        if self.from == 0 {
            line((left, top), (left, bottom))?;
        }
        if self.to == self.segment.total_size {
            line((right, top), (right, bottom))?;
        }
        Ok(())
    }
}
