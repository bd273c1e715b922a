//! `gpucache doctor`: is this machine fit for CUDA, who uses it, and what does a snapshot say.

mod checks;
mod facts;
mod json;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gpucache::import::read_snapshot;
use gpucache::observe::diagnose::{Diagnosis, Evidence, Outcome, Wanted, diagnose};
use gpucache::units;

use self::checks::{Check, Level};
use self::facts::Facts;
use crate::CommandResult;

/// Check driver, GPUs, container and options, and who uses which GPU; or diagnose a snapshot
///
/// Without a file the machine is checked: exit status 1 if something is wrong. With a snapshot (a pickle of PyTorch or
/// gpucache, or JSON) the memory in it is explained: where it is, or why the last request that failed did; exit
/// status 1 if a request fails. Status 2: the file cannot be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A snapshot to diagnose, instead of the machine
    snapshot: Option<PathBuf>,
    /// Only this device of the snapshot
    #[arg(long, value_name = "N", requires = "snapshot")]
    device: Option<u32>,
    /// Explain a request of this size, such as 2G
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, requires = "capacity")]
    request: Option<u64>,
    /// The stream of the request: its raw handle
    #[arg(long, value_name = "HANDLE", default_value_t = 0, requires = "request")]
    stream: u64,
    /// Memory of the snapshot's device, such as 80G, of which nothing else is in use
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, requires = "snapshot")]
    capacity: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    match &args.snapshot {
        Some(path) => snapshot(path, args),
        None => machine(args.json),
    }
}

fn machine(as_json: bool) -> CommandResult {
    let facts = Facts::gather();
    let checks = checks::all(&facts);
    if as_json {
        println!("{}", serde_json::to_string_pretty(&json::machine(&facts, &checks))?);
    } else {
        checks.iter().for_each(print_check);
        print!("{}", checks::gpu_table(&facts));
    }
    let wrong = checks.iter().any(|c| c.level == Level::Problem);
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_check(check: &Check) {
    println!("{:<8} {:<14} {}", check.level.name(), check.what, check.detail);
    if let Some(remedy) = &check.remedy {
        println!("{:<23} -> {remedy}", "");
    }
}

fn snapshot(path: &Path, args: &Args) -> CommandResult {
    let file = read_snapshot(path)?;
    let mut devices = file.devices();
    if let Some(only) = args.device {
        if !devices.contains(&only) {
            let text = format!("{}: no device {only} in it (it has {devices:?})", path.display());
            return Err(text.into());
        }
        devices = vec![only];
    }
    let diagnoses: Vec<Diagnosis> = devices.iter().map(|&d| of_device(&file, d, args)).collect();
    if args.json {
        let all: Vec<_> = diagnoses.iter().map(json::diagnosis).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else if diagnoses.is_empty() {
        println!("{}: no segments and no history in it", path.display());
    } else {
        for diagnosis in &diagnoses {
            print!("{diagnosis}");
        }
    }
    let fails = diagnoses.iter().any(|d| d.outcome == Outcome::Fails);
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn of_device(file: &gpucache::observe::file::SnapshotFile, device: u32, args: &Args) -> Diagnosis {
    let mut evidence = Evidence::from_file(file, device);
    if let Some(total) = args.capacity {
        evidence = evidence.with_capacity(total);
    }
    if let Some(bytes) = args.request {
        evidence = evidence.with_request(Wanted::new(bytes, args.stream));
    }
    diagnose(&evidence)
}
