//! `gpucache import`: foreign recordings into gpucache's, and snapshots from one format into another.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gpucache::import::{Imported, read_rmm_log, read_snapshot, requests};
use gpucache::observe::file::SnapshotFile;
use gpucache::replay::TraceWriter;
use gpucache::units;
use serde_json::json;

use crate::CommandResult;

/// Make a request stream for `replay` and `tune` from a PyTorch snapshot with history or an RMM log
///
/// The ending of OUT decides what is written: .req or .req.zst a request stream; .pickle or .pkl a snapshot for
/// PyTorch's tools; .trace.json trace events for Perfetto; other .json a snapshot as JSON.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The snapshot (pickle or JSON) or the log (CSV)
    input: PathBuf,
    /// What to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// What the input is
    #[arg(long, value_enum, default_value_t = Kind::Auto)]
    from: Kind,
    /// Which device's history
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// Memory of the device, such as 80G; otherwise worked out from the recording
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    total_memory: Option<u64>,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Found out from the file's first bytes
    Auto,
    /// A snapshot by PyTorch or gpucache
    Snapshot,
    /// A log of RMM's logging resource adaptor
    Rmm,
}

/// What the output's name asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Requests,
    Pickle,
    Json,
    TraceEvents,
}

impl Target {
    fn of(path: &Path) -> Result<Self, String> {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let ends = |endings: &[&str]| endings.iter().any(|e| name.ends_with(e));
        match () {
            () if ends(&[".req", ".req.zst"]) => Ok(Target::Requests),
            () if ends(&[".pickle", ".pkl"]) => Ok(Target::Pickle),
            () if ends(&[".trace.json"]) => Ok(Target::TraceEvents),
            () if ends(&[".json"]) => Ok(Target::Json),
            () => Err(format!(
                "{}: the output must end in .req, .req.zst, .pickle, .pkl, .json or .trace.json",
                path.display()
            )),
        }
    }
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let target = Target::of(&args.output)?;
    let rmm = match args.from {
        Kind::Auto => looks_like_rmm(&args.input),
        kind => kind == Kind::Rmm,
    };
    if target == Target::Requests {
        let imported = if rmm {
            read_rmm_log(&args.input, args.total_memory)?
        } else {
            requests(&read_snapshot(&args.input)?, args.device, args.total_memory)
                .map_err(|e| format!("{}: {e}", args.input.display()))?
        };
        write_requests(args, imported)?;
    } else if rmm {
        return Err("an RMM log has no snapshot: only .req and .req.zst can be made of it".into());
    } else {
        write_snapshot(args, target, &read_snapshot(&args.input)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the first line has the names of RMM's columns. An unreadable file is left to the reader to report.
fn looks_like_rmm(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = fs::File::open(path).and_then(|f| f.take(256).read_to_end(&mut head));
    let line = head.split(|&b| b == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    read.is_ok() && line.contains("Action") && line.contains("Pointer")
}

fn write_requests(args: &Args, mut imported: Imported) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(name) = args.input.file_stem().and_then(|n| n.to_str()) {
        name.clone_into(&mut imported.header.case);
    }
    let mut writer = TraceWriter::create(&args.output, &imported.header)?;
    for request in &imported.requests {
        writer.request(request)?;
    }
    writer.finish()?;
    let header = &imported.header;
    if args.json {
        let done = json!({
            "output": args.output.display().to_string(),
            "requests": header.requests,
            "streams": header.streams,
            "total_memory": header.total_memory,
            "notes": imported.notes,
        });
        say!("{}", serde_json::to_string_pretty(&done)?);
    } else {
        let streams = units::count(header.streams as usize, "stream");
        say!("{}: {} requests on {}", args.output.display(), header.requests, streams);
        for note in &imported.notes {
            say!("note: {note}");
        }
    }
    Ok(())
}

fn write_snapshot(
    args: &Args,
    target: Target,
    file: &SnapshotFile,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    match target {
        Target::Pickle => file.write_pickle(&mut bytes)?,
        Target::TraceEvents => file.write_chrome(&mut bytes)?,
        Target::Json | Target::Requests => file.write_json(&mut bytes)?,
    }
    fs::write(&args.output, bytes).map_err(|e| format!("{}: {e}", args.output.display()))?;
    let entries: usize = file.device_traces.iter().map(Vec::len).sum();
    let segments = file.segments.len();
    if args.json {
        let output = args.output.display().to_string();
        let done = json!({ "output": output, "segments": segments, "entries": entries });
        say!("{}", serde_json::to_string_pretty(&done)?);
    } else {
        say!(
            "{}: {}, {entries} entries of history",
            args.output.display(),
            units::count(segments, "segment")
        );
    }
    Ok(())
}
