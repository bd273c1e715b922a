//! `gpucache plot`: pictures of a snapshot or of a recording.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use gpucache::device::sim::{AddressPolicy, SimDevice};
use gpucache::import::read_snapshot;
use gpucache::observe::file::SnapshotFile;
use gpucache::plot::{ColorBy, Panel, PlotOptions, TimeAxis, png, svg};
use gpucache::replay::Workload;
use gpucache::{Allocator, Config, HistoryOptions, units};

use crate::CommandResult;

/// Draw memory over time, fragmentation and the map of the segments as SVG or PNG
///
/// The input is a snapshot (pickle or JSON), or a recording (.req, .req.zst), which is played on a simulated GPU
/// first; the map then shows the end of the recording.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The snapshot or recording
    input: PathBuf,
    /// The picture: NAME.svg or NAME.png
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// What to draw, from top to bottom
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Timeline, Part::Fragmentation, Part::Segments])]
    panels: Vec<Part>,
    /// What the colours of blocks tell
    #[arg(long, value_enum, default_value_t = Color::State)]
    color: Color,
    /// What the horizontal axis counts
    #[arg(long, value_enum, default_value_t = Axis::Time)]
    axis: Axis,
    /// Which device of the snapshot
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// Draw a line at this much memory, such as 12G; a recording brings its own
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    cap: Option<u64>,
    /// Options for playing a recording, instead of its own
    #[arg(long, value_name = "CONF")]
    config: Option<String>,
    /// Heading; the input's name if not given
    #[arg(long)]
    title: Option<String>,
    /// Width in pixels (a PNG has twice as many)
    #[arg(long, value_name = "PIXELS", default_value_t = 1400)]
    width: u32,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Part {
    Timeline,
    Fragmentation,
    Segments,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Color {
    /// Allocated, waiting for a stream, or cached
    State,
    /// How long ago it was allocated
    Age,
    /// Who allocated it
    Site,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Axis {
    /// Wall clock
    Time,
    /// Entries of the history
    Events,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let as_png = match args.output.extension().and_then(|e| e.to_str()) {
        Some("svg") => false,
        Some("png") => true,
        _ => return Err(format!("{}: the output must end in .svg or .png", args.output.display()).into()),
    };
    let (file, own_cap) =
        if is_recording(&args.input) { play(args)? } else { (read_snapshot(&args.input)?, None) };
    let options = options(args, own_cap);
    let bytes = if as_png { png(&file, &options) } else { svg(&file, &options).map(String::into_bytes) };
    let bytes = bytes.map_err(|e| format!("{}: {e}", args.input.display()))?;
    fs::write(&args.output, bytes).map_err(|e| format!("{}: {e}", args.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn is_recording(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    [".req", ".req.zst"].iter().any(|ending| name.ends_with(ending))
}

fn options(args: &Args, own_cap: Option<u64>) -> PlotOptions {
    let name = args.input.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let panel = |part: &Part| match part {
        Part::Timeline => Panel::Timeline,
        Part::Fragmentation => Panel::Fragmentation,
        Part::Segments => Panel::Segments,
    };
    PlotOptions {
        title: args.title.clone().unwrap_or_else(|| name.to_owned()),
        device: args.device,
        cap: args.cap.or(own_cap),
        panels: args.panels.iter().map(panel).collect(),
        color: match args.color {
            Color::State => ColorBy::State,
            Color::Age => ColorBy::Age,
            Color::Site => ColorBy::Site,
        },
        axis: match args.axis {
            Axis::Time => TimeAxis::Time,
            Axis::Events => TimeAxis::Events,
        },
        width: args.width,
    }
}

/// Plays a recording on a simulated GPU with the history on. Answers the state at its end, and its memory limit.
fn play(args: &Args) -> Result<(SnapshotFile, Option<u64>), Box<dyn std::error::Error>> {
    let work = Workload::read(&args.input)?;
    let header = work.header();
    let gpu = SimDevice::builder()
        .total_memory(header.total_memory)
        .address_policy(AddressPolicy::FirstFit)
        .build();
    let config = Config::parse(args.config.as_deref().unwrap_or(&header.alloc_conf))?;
    let allocator = Allocator::builder().device(Arc::new(gpu.clone())).config(config).build()?;
    if let Some(fraction) = header.fraction {
        allocator.set_per_process_memory_fraction(fraction)?;
    }
    // Each allocation and free writes at most three entries, and growing the cache a few more.
    allocator.record_memory_history(Some(HistoryOptions::with_max_entries(
        work.len().saturating_mul(4).max(1024),
    )));
    let snapshot = work.play_and_look(&allocator, Some(&gpu), || allocator.memory_snapshot())?;
    Ok((SnapshotFile::merge([snapshot]), header.allowed_bytes))
}
