//! What colour a block has, and the key that explains it.

use std::collections::HashMap;

use plotters::style::RGBColor;

use crate::observe::file::SnapshotFile;
use crate::observe::history::TraceAction;
use crate::observe::inspect::site;
use crate::observe::snapshot::{BlockInfo, BlockState};
use crate::plot::{ColorBy, PlotOptions, theme};
use crate::units::{count, short_size};

/// Longest text of a call site in the key.
const LONGEST_SITE: usize = 110;

/// The colours for one snapshot.
pub(in crate::plot) struct Colors {
    by: ColorBy,
    /// Colour of each call site that has one of its own.
    sites: HashMap<String, RGBColor>,
    /// Time of the last allocation at each address.
    born: HashMap<u64, u64>,
    /// First and last entry of the history.
    span: (u64, u64),
    short: Vec<(RGBColor, String)>,
    long: Vec<(RGBColor, String)>,
}

impl Colors {
    pub(super) fn new(file: &SnapshotFile, options: &PlotOptions) -> Self {
        let trace = file.trace(options.device);
        let span = (trace.first().map_or(0, |t| t.time_us), trace.last().map_or(0, |t| t.time_us));
        let births = trace.iter().filter(|t| t.action == TraceAction::Alloc).map(|t| (t.addr, t.time_us));
        let born = if options.color == ColorBy::Age { births.collect() } else { HashMap::new() };
        let (sites, long) =
            if options.color == ColorBy::Site { site_key(file, options) } else { Default::default() };
        let mut colors = Colors { by: options.color, sites, born, span, short: Vec::new(), long };
        colors.short = colors.states(file, options.device);
        colors
    }

    pub(super) fn of(&self, block: &BlockInfo) -> RGBColor {
        match (block.state, self.by) {
            (BlockState::Inactive, _) => theme::CACHED,
            (BlockState::ActivePendingFree, ColorBy::State) => theme::PENDING,
            (_, ColorBy::State) => theme::ALLOCATED,
            (_, ColorBy::Age) => match self.born.get(&block.address) {
                Some(&time) => theme::AGES[self.age(time)],
                None => theme::RESERVED,
            },
            (_, ColorBy::Site) => {
                self.sites.get(&site(&block.frames)).copied().unwrap_or(theme::SITES[theme::SITES.len() - 1])
            }
        }
    }

    /// One line, right of the heading.
    pub(super) fn short_key(&self) -> Vec<(RGBColor, String)> {
        self.short.clone()
    }

    /// Lines below the heading.
    pub(super) fn long_key(&self) -> &[(RGBColor, String)] {
        &self.long
    }

    /// Which fifth of the history ago, counted from the end.
    fn age(&self, time: u64) -> usize {
        let (first, last) = self.span;
        let ago = last.saturating_sub(time) as f64 / last.saturating_sub(first).max(1) as f64;
        ((ago * theme::AGES.len() as f64) as usize).min(theme::AGES.len() - 1)
    }

    fn states(&self, file: &SnapshotFile, device: u32) -> Vec<(RGBColor, String)> {
        let bytes = |state: BlockState| -> u64 {
            let blocks = file.segments_of(device).flat_map(|s| &s.blocks);
            blocks.filter(|b| b.state == state).map(|b| b.size).sum()
        };
        let cached = (theme::CACHED, format!("cached {}", short_size(bytes(BlockState::Inactive))));
        match self.by {
            ColorBy::State => vec![
                (theme::ALLOCATED, format!("allocated {}", short_size(bytes(BlockState::ActiveAllocated)))),
                (
                    theme::PENDING,
                    format!("waiting for a stream {}", short_size(bytes(BlockState::ActivePendingFree))),
                ),
                cached,
            ],
            ColorBy::Age => {
                let fifth = self.span.1.saturating_sub(self.span.0) as f64 / theme::AGES.len() as f64;
                let label = |i: usize| format!("up to {} old", duration_text(fifth * (i + 1) as f64));
                let mut key: Vec<_> = theme::AGES.iter().enumerate().map(|(i, &c)| (c, label(i))).collect();
                key.push((theme::RESERVED, "older than the history".into()));
                key.push(cached);
                key
            }
            ColorBy::Site => vec![cached],
        }
    }
}

type Key = (HashMap<String, RGBColor>, Vec<(RGBColor, String)>);

/// The call sites with most active bytes get a colour each.
fn site_key(file: &SnapshotFile, options: &PlotOptions) -> Key {
    let mut sums: HashMap<String, (u64, usize)> = HashMap::new();
    for block in file.segments_of(options.device).flat_map(|s| &s.blocks) {
        if block.state != BlockState::Inactive {
            let sum = sums.entry(site(&block.frames)).or_default();
            *sum = (sum.0 + block.size, sum.1 + 1);
        }
    }
    let mut order: Vec<(String, (u64, usize))> = sums.into_iter().collect();
    order.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    let own = order.len().min(theme::SITES.len() - 1);
    let line = |name: &str, bytes: u64, blocks: usize| {
        format!("{}, {}: {name}", short_size(bytes), count(blocks, "block"))
    };
    let colored = order.iter().zip(theme::SITES).take(own);
    let mut key: Vec<(RGBColor, String)> =
        colored.clone().map(|((name, (bytes, n)), c)| (c, line(&shortened(name), *bytes, *n))).collect();
    let rest = &order[own..];
    if !rest.is_empty() {
        let (bytes, blocks) = rest.iter().fold((0, 0), |sum, (_, (b, n))| (sum.0 + b, sum.1 + n));
        let name = format!("{} other call sites", rest.len());
        key.push((theme::SITES[theme::SITES.len() - 1], line(&name, bytes, blocks)));
    }
    (colored.map(|((name, _), color)| (name.clone(), color)).collect(), key)
}

/// The end of a long text tells more than its beginning: it has the file, the line and the function.
fn shortened(text: &str) -> String {
    let length = text.chars().count();
    if length <= LONGEST_SITE {
        return text.to_owned();
    }
    format!("…{}", text.chars().skip(length - LONGEST_SITE).collect::<String>())
}

fn duration_text(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{:.3} ms", us / 1e3).replace(".000", ""),
        us if us < 120e6 => format!("{:.1} s", us / 1e6),
        us => format!("{:.0} min", us / 60e6),
    }
}
