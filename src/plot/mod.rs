//! Pictures of a snapshot: memory over time, fragmentation over time, and the map of the segments. SVG or PNG.
//!
//! All panels are drawn as SVG; a PNG is that SVG rendered with a font of this crate, so that both look alike on every
//! machine.

mod map;
mod page;
mod png;
mod series;
mod theme;

use crate::observe::file::SnapshotFile;

/// What to draw and how.
#[derive(Debug, Clone, PartialEq)]
pub struct PlotOptions {
    /// Heading; empty: none.
    pub title: String,
    /// Which device.
    pub device: u32,
    /// The memory that the process may use, in bytes: drawn as a line.
    pub cap: Option<u64>,
    /// Which panels, from top to bottom.
    pub panels: Vec<Panel>,
    /// Colours of the blocks in the map.
    pub color: ColorBy,
    /// What the horizontal axis of the panels over time counts.
    pub axis: TimeAxis,
    /// Width of the picture in pixels, 640 to 8192. The height follows from the panels.
    pub width: u32,
}

impl Default for PlotOptions {
    fn default() -> Self {
        PlotOptions {
            title: String::new(),
            device: 0,
            cap: None,
            panels: vec![Panel::Timeline, Panel::Fragmentation, Panel::Segments],
            color: ColorBy::State,
            axis: TimeAxis::Time,
            width: 1400,
        }
    }
}

/// A part of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Panel {
    /// Allocated, active and reserved memory over time. Needs a history.
    Timeline,
    /// The part of the reserved memory that is not allocated, over time. Needs a history.
    Fragmentation,
    /// Every segment as a bar with its blocks.
    Segments,
}

/// What the colour of a block tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorBy {
    /// Allocated, waiting for a stream, or cached.
    State,
    /// How long ago the block was allocated. Needs a history.
    Age,
    /// Who allocated it. Needs call sites.
    Site,
}

/// The horizontal axis of the panels over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeAxis {
    /// Wall clock since the first entry.
    Time,
    /// Entries of the history: busy phases get room.
    Events,
}

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The device is not in the snapshot.
    #[error("the snapshot has nothing about device {device}{}", known(.devices))]
    NoSuchDevice {
        /// The device asked for.
        device: u32,
        /// The devices that are there.
        devices: Vec<u32>,
    },
    /// The panels asked for need a history.
    #[error("the snapshot has no history: record one with record_memory_history, or draw the segments only")]
    NoHistory,
    /// An option out of range.
    #[error("{0}")]
    Option(String),
    /// The drawing library refused.
    #[error("drawing failed: {0}")]
    Drawing(String),
}

fn known(devices: &[u32]) -> String {
    let list: Vec<String> = devices.iter().map(u32::to_string).collect();
    if list.is_empty() { String::new() } else { format!("; it has {}", list.join(", ")) }
}

/// Draws a snapshot as SVG.
///
/// Panels that need a history are left out where there is none, if another panel remains.
///
/// # Errors
/// The device is not in the snapshot, nothing can be drawn, or an option is out of range.
pub fn svg(file: &SnapshotFile, options: &PlotOptions) -> Result<String, PlotError> {
    page::draw(file, options)
}

/// Draws a snapshot as PNG, with two pixels per unit so that small text is sharp.
///
/// # Errors
/// As [`svg`].
pub fn png(file: &SnapshotFile, options: &PlotOptions) -> Result<Vec<u8>, PlotError> {
    png::render(&page::draw(file, options)?)
}
