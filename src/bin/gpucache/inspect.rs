//! `gpucache inspect`: what a snapshot says.

use std::path::PathBuf;
use std::process::ExitCode;

use gpucache::import::read_snapshot;
use gpucache::observe::inspect::{BlockLine, InspectOptions, Inspection, PinnedSegment, inspect};
use serde_json::{Value, json};

use crate::CommandResult;

/// Sum up a snapshot: fragmentation, largest blocks, segments kept by few bytes, memory by call site
///
/// Reads pickles and JSON of gpucache's SnapshotFile and of torch.cuda.memory._dump_snapshot.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The snapshot
    snapshot: PathBuf,
    /// Only this device
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Rows per list
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// A segment counts as pinned with at most this part of it in use, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u8).range(0..=100))]
    pinned_below: u8,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let file = read_snapshot(&args.snapshot)?;
    let options = InspectOptions { top: args.top, pinned_below: f64::from(args.pinned_below) / 100.0 };
    let mut devices = file.devices();
    if let Some(wanted) = args.device {
        if !devices.contains(&wanted) {
            return Err(
                format!("{}: no device {wanted}, there are {devices:?}", args.snapshot.display()).into()
            );
        }
        devices = vec![wanted];
    }
    let all: Vec<Inspection> = devices.iter().map(|&device| inspect(&file, device, options)).collect();
    if args.json {
        let all: Vec<Value> = all.iter().map(as_json).collect();
        say!("{}", serde_json::to_string_pretty(&all)?);
    } else if all.is_empty() {
        say!("The snapshot holds no memory and no history.");
    } else {
        let texts: Vec<String> = all.iter().map(Inspection::to_string).collect();
        print!("{}", texts.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(i: &Inspection) -> Value {
    let t = &i.totals;
    json!({
        "device": i.device,
        "reserved_bytes": t.reserved,
        "allocated_bytes": t.allocated,
        "active_bytes": t.active,
        "requested_bytes": t.requested,
        "inactive_bytes": t.inactive,
        "inactive_split_bytes": t.inactive_split,
        "largest_inactive_bytes": t.largest_inactive,
        "segments": t.segments,
        "active_blocks": t.active_blocks,
        "inactive_blocks": t.inactive_blocks,
        "fragmentation": t.fragmentation(),
        "idle": t.idle(),
        "largest_blocks": i.largest.iter().map(block).collect::<Vec<_>>(),
        "pinned_segments": i.pinned_segments,
        "pinned_idle_bytes": i.pinned_idle,
        "pinned": i.pinned.iter().map(pinned).collect::<Vec<_>>(),
        "call_site_count": i.site_count,
        "call_sites": i.sites.iter()
            .map(|s| json!({ "site": s.site, "bytes": s.bytes, "blocks": s.blocks }))
            .collect::<Vec<_>>(),
    })
}

fn block(b: &BlockLine) -> Value {
    json!({
        "address": b.address,
        "bytes": b.size,
        "requested_bytes": b.requested,
        "state": b.state.name(),
        "stream": b.stream,
        "pool": [b.pool.0, b.pool.1],
        "site": b.site,
    })
}

fn pinned(p: &PinnedSegment) -> Value {
    json!({
        "address": p.address,
        "bytes": p.size,
        "active_bytes": p.active,
        "largest_hole_bytes": p.largest_hole,
        "stream": p.stream,
        "type": p.kind.name(),
        "kept_by": p.kept_by.iter().map(block).collect::<Vec<_>>(),
    })
}
