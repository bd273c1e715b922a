//! The page: heading, the panels over time, and the map below them.

use std::fmt::Display;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::map::Map;
use super::series::{Curve, curve, positions, round_step};
use super::{Panel, PlotError, PlotOptions, TimeAxis, theme};
use crate::observe::file::SnapshotFile;
use crate::observe::history::TraceAction;
use crate::observe::inspect::{InspectOptions, Totals, inspect};
use crate::observe::timeline::{Point, points};
use crate::units::{count, short_size};

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn<T = ()> = Result<T, PlotError>;

pub(super) const MARGIN: u32 = 28;
const HEADING: u32 = 84;
const TIMELINE: u32 = 400;
const FRAGMENTATION: u32 = 230;
/// Room for the labels left of the panels over time.
const LABELS: u32 = 84;
const WIDTHS: std::ops::RangeInclusive<u32> = 640..=8192;

/// An error of the drawing library as ours.
pub(super) fn failed(e: impl Display) -> PlotError {
    PlotError::Drawing(e.to_string())
}

pub(super) fn draw(file: &SnapshotFile, options: &PlotOptions) -> Drawn<String> {
    let devices = file.devices();
    if !devices.contains(&options.device) {
        return Err(PlotError::NoSuchDevice { device: options.device, devices });
    }
    if !WIDTHS.contains(&options.width) {
        let what = format!("width {} is not in {} to {}", options.width, WIDTHS.start(), WIDTHS.end());
        return Err(PlotError::Option(what));
    }
    let traced = !file.trace(options.device).is_empty();
    let drawable = |p: &&Panel| traced || **p == Panel::Segments;
    let panels: Vec<Panel> = options.panels.iter().filter(drawable).copied().collect();
    if panels.is_empty() {
        return Err(PlotError::NoHistory);
    }
    let map = Map::new(file, options);
    let height = |panel: &Panel| match panel {
        Panel::Timeline => TIMELINE,
        Panel::Fragmentation => FRAGMENTATION,
        Panel::Segments => map.height(),
    };
    let total = HEADING + panels.iter().map(height).sum::<u32>() + MARGIN;
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, (options.width, total)).into_drawing_area();
        root.fill(&theme::PAPER).map_err(failed)?;
        let (heading, mut rest) = root.split_vertically(HEADING);
        draw_heading(&heading, file, options)?;
        let history = History::of(file, options);
        for panel in &panels {
            let (area, below) = rest.split_vertically(height(panel));
            match panel {
                Panel::Timeline => history.draw_timeline(&area, options)?,
                Panel::Fragmentation => history.draw_fragmentation(&area)?,
                Panel::Segments => map.draw(&area)?,
            }
            rest = below;
        }
        root.present().map_err(failed)?;
    }
    Ok(out)
}

fn draw_heading(area: &Area<'_>, file: &SnapshotFile, options: &PlotOptions) -> Drawn {
    let left = MARGIN as i32;
    let title = if options.title.is_empty() { "GPU memory" } else { &options.title };
    area.draw_text(title, &theme::bold(24, theme::INK), (left, 22)).map_err(failed)?;
    let totals: Totals =
        inspect(file, options.device, InspectOptions { top: 0, ..InspectOptions::default() }).totals;
    let line = format!(
        "GPU {}   ·   reserved {} in {}   ·   allocated {}   ·   active {} in {}   ·   cached {}, \
         largest {}",
        options.device,
        short_size(totals.reserved),
        count(totals.segments, "segment"),
        short_size(totals.allocated),
        short_size(totals.active),
        count(totals.active_blocks, "block"),
        short_size(totals.inactive),
        short_size(totals.largest_inactive),
    );
    area.draw_text(&line, &theme::text(14, theme::FAINT), (left, 54)).map_err(failed)
}

/// Heading of a panel, and the key of its colours at the right.
pub(super) fn panel_heading(area: &Area<'_>, name: &str, key: &[(RGBColor, String)]) -> Drawn {
    area.draw_text(name, &theme::bold(16, theme::INK), (MARGIN as i32, 10)).map_err(failed)?;
    let mut right = area.dim_in_pixel().0.saturating_sub(MARGIN) as i32;
    for (color, label) in key.iter().rev() {
        right -= theme::width(label, 13) as i32;
        let style = theme::text(13, theme::INK);
        area.draw_text(label, &style, (right, 12)).map_err(failed)?;
        right -= 18;
        swatch(area, (right, 13), *color)?;
        right -= 22;
    }
    Ok(())
}

/// A small square of a colour.
pub(super) fn swatch(area: &Area<'_>, (x, y): (i32, i32), color: RGBColor) -> Drawn {
    area.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], color.filled())).map_err(failed)
}

/// The history of the device, ready to draw.
struct History {
    points: Vec<Point>,
    xs: Vec<f64>,
    axis: TimeAxis,
    columns: u32,
    /// Positions of failed requests.
    failures: Vec<f64>,
}

impl History {
    fn of(file: &SnapshotFile, options: &PlotOptions) -> Self {
        let points = points(file, options.device);
        let xs = positions(&points, options.axis);
        let failures = file.trace(options.device).iter().zip(xs.iter().skip(1));
        let failures = failures.filter(|(t, _)| t.action == TraceAction::Oom).map(|(_, &x)| x).collect();
        let columns = options.width.saturating_sub(2 * MARGIN + LABELS);
        History { points, xs, axis: options.axis, columns, failures }
    }

    fn curve(&self, value: impl Fn(&Point) -> f64) -> Curve {
        curve(&self.xs, self.columns, |i| value(&self.points[i]))
    }

    fn peak(&self, value: fn(&Point) -> u64) -> u64 {
        self.points.iter().map(value).max().unwrap_or(0)
    }

    fn draw_timeline(&self, area: &Area<'_>, options: &PlotOptions) -> Drawn {
        let peak = self.peak(|p| p.reserved);
        let key = |name: &str, bytes: u64| format!("{name} (peak {})", short_size(bytes));
        let mut keys = vec![
            (theme::ALLOCATED, key("allocated", self.peak(|p| p.allocated))),
            (theme::PENDING, key("active", self.peak(|p| p.active))),
            (theme::RESERVED, key("reserved", peak)),
        ];
        if !self.failures.is_empty() {
            keys.push((RGBColor(200, 0, 0), format!("out of memory ({})", self.failures.len())));
        }
        // A cap far above everything would flatten the curves; then its line is left out and the key names it.
        let cap = options.cap.filter(|&cap| cap <= peak.saturating_mul(4));
        if let Some(cap) = options.cap {
            keys.push((theme::CAP, format!("cap {}", short_size(cap))));
        }
        panel_heading(area, "Memory over time", &keys)?;
        let top = peak.max(cap.unwrap_or(0)).max(1) as f64 * 1.06;
        let y = Axis { end: top, step: round_step(top, 6.0, true) };
        let mut chart = self.chart(area, y, &|v| short_size(*v as u64))?;
        let reserved = self.curve(|p| p.reserved as f64);
        let active = self.curve(|p| p.active as f64);
        let allocated = self.curve(|p| p.allocated as f64);
        for (curve, color, strength) in [
            (&reserved, theme::RESERVED, 0.22),
            (&active, theme::PENDING, 0.75),
            (&allocated, theme::ALLOCATED, 0.75),
        ] {
            let fill = theme::tint(color, strength).filled();
            chart.draw_series(AreaSeries::new(curve.iter().copied(), 0.0, fill)).map_err(failed)?;
        }
        chart.draw_series(LineSeries::new(reserved, theme::RESERVED.stroke_width(2))).map_err(failed)?;
        chart.draw_series(LineSeries::new(allocated, theme::ALLOCATED.stroke_width(1))).map_err(failed)?;
        for &x in &self.failures {
            let line = [(x, 0.0), (x, top)];
            chart.draw_series(LineSeries::new(line, RGBColor(200, 0, 0).stroke_width(1))).map_err(failed)?;
        }
        if let Some(cap) = cap {
            let line = [(0.0, cap as f64), (self.end(), cap as f64)];
            chart
                .draw_series(DashedLineSeries::new(line, 8, 5, theme::CAP.stroke_width(2)))
                .map_err(failed)?;
        }
        Ok(())
    }

    fn draw_fragmentation(&self, area: &Area<'_>) -> Drawn {
        let values = self.points.iter().map(Point::fragmentation);
        let highest = values.clone().fold(0.0, f64::max);
        let mean = values.sum::<f64>() / self.points.len().max(1) as f64;
        let key = format!(
            "reserved, but not allocated (mean {:.0} %, highest {:.0} %)",
            mean * 100.0,
            highest * 100.0
        );
        panel_heading(area, "Fragmentation over time", &[(theme::WASTE, key)])?;
        let percent = |v: &f64| format!("{:.0} %", v * 100.0);
        let mut chart = self.chart(area, Axis { end: 1.0, step: 0.25 }, &percent)?;
        let curve = self.curve(Point::fragmentation);
        let fill = theme::tint(theme::WASTE, 0.35).filled();
        chart.draw_series(AreaSeries::new(curve.iter().copied(), 0.0, fill)).map_err(failed)?;
        chart.draw_series(LineSeries::new(curve, theme::WASTE.stroke_width(2))).map_err(failed)?;
        Ok(())
    }

    fn end(&self) -> f64 {
        self.xs.last().copied().filter(|&x| x > 0.0).unwrap_or(1.0)
    }

    /// Axes and grid.
    fn chart<'a, 'b>(
        &self,
        area: &'a Area<'b>,
        y: Axis,
        y_label: &dyn Fn(&f64) -> String,
    ) -> Drawn<Chart<'a, 'b>> {
        let end = self.end();
        let (unit, name) = unit(end, self.axis);
        let x_step = round_step(end / unit, 10.0, false) * unit;
        let mut chart = ChartBuilder::on(area)
            .margin_left(MARGIN)
            .margin_right(MARGIN)
            .margin_top(40)
            .x_label_area_size(52)
            .y_label_area_size(LABELS)
            .build_cartesian_2d(Axis { end, step: x_step }, y)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(theme::GRID)
            .axis_style(theme::FAINT)
            .label_style(theme::text(13, theme::INK))
            .x_label_formatter(&|v| number(v / unit))
            .y_label_formatter(y_label)
            .x_labels(100)
            .y_labels(100)
            .draw()
            .map_err(failed)?;
        let (width, height) = area.dim_in_pixel();
        let style = theme::text(13, theme::FAINT).pos(Pos::new(HPos::Center, VPos::Center));
        let middle = u32::midpoint(width, LABELS) as i32;
        area.draw_text(name, &style, (middle, height as i32 - 18)).map_err(failed)?;
        Ok(chart)
    }
}

/// An axis from 0 to `end` with marks at chosen places.
struct Axis {
    end: f64,
    step: f64,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (value / self.end * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Only the bold lines carry labels; there are no light ones between them.
        let most = hint.max_num_points();
        (0..most).map(|i| i as f64 * self.step).take_while(|&mark| mark <= self.end).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.end
    }
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// The unit for a span of microseconds, and what to write below the axis.
fn unit(span: f64, axis: TimeAxis) -> (f64, &'static str) {
    match axis {
        TimeAxis::Events => (1.0, "entries of the history"),
        TimeAxis::Time if span < 2e3 => (1.0, "microseconds since the first entry"),
        TimeAxis::Time if span < 2e6 => (1e3, "milliseconds since the first entry"),
        TimeAxis::Time if span < 300e6 => (1e6, "seconds since the first entry"),
        TimeAxis::Time if span < 10_800e6 => (60e6, "minutes since the first entry"),
        TimeAxis::Time => (3600e6, "hours since the first entry"),
    }
}

fn number(v: f64) -> String {
    let rounded = (v * 1000.0).round() / 1000.0;
    format!("{rounded}")
}
