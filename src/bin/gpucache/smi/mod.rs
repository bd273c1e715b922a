//! `gpucache smi`: GPUs and processes as nvidia-smi shows them, with gpucache's own figures beside.

mod fields;
mod table;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use fields::{AppRow, Format, GpuRow, choose, csv, of_apps, of_gpus};

use crate::CommandResult;
use crate::machine::{Gpu, Machine};

/// GPUs and their processes, with gpucache's figures beside each process that exports them
///
/// A process exports when it calls Allocator::export or runs with GPUCACHE_EXPORT=1. Without an NVIDIA driver the
/// exporting processes are shown alone. Exit status 1 if there is neither.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print these fields of every GPU: index,name,memory.used,gpucache.reserved,... (a wrong name lists them)
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', conflicts_with_all = ["query_compute_apps", "json"])]
    query_gpu: Option<Vec<String>>,
    /// Print these fields of every process: pid,name,used_memory,gpucache.allocated,... (a wrong name lists them)
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', conflicts_with = "json")]
    query_compute_apps: Option<Vec<String>>,
    /// How: csv[,noheader][,nounits]
    #[arg(long, default_value = "csv")]
    format: Format,
    /// Only these GPUs, by index or UUID
    #[arg(long, short, value_name = "GPU", value_delimiter = ',')]
    id: Vec<String>,
    /// Again and again, every so many seconds
    #[arg(long, short = 'l', value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = parse_seconds)]
    watch: Option<Duration>,
    /// Print everything as JSON, one line per reading with --watch
    #[arg(long)]
    json: bool,
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no interval: write seconds, from 0.1 to 86400");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.1..=86_400.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

pub(crate) fn run(args: &Args) -> CommandResult {
    // What is wrong with the fields is said before the first reading, and also on a machine without a GPU.
    show(args, &Machine::default())?;
    loop {
        let machine = select(Machine::read(), &args.id)?;
        let text = show(args, &machine)?;
        let mut out = anstream::stdout();
        if args.watch.is_some() && !args.json && std::io::stdout().is_terminal() {
            // Clear the screen, as `watch` does.
            write!(out, "\u{1b}[H\u{1b}[2J")?;
        }
        write!(out, "{text}")?;
        out.flush()?;
        match args.watch {
            Some(interval) => thread::sleep(interval),
            None if machine.gpus.is_empty() => return Ok(nothing(&machine)),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn nothing(machine: &Machine) -> ExitCode {
    let reason = machine.nvml_error.as_deref().unwrap_or("NVML lists none");
    eprintln!(
        "gpucache: no GPU ({reason}) and no process that exports its figures. Start one with GPUCACHE_EXPORT=1; \
         `gpucache doctor` checks driver and container"
    );
    ExitCode::FAILURE
}

/// The GPUs that were asked for.
fn select(mut machine: Machine, ids: &[String]) -> Result<Machine, String> {
    let is = |gpu: &Gpu, id: &str| gpu.index.to_string() == id || gpu.uuid.as_deref() == Some(id);
    if let Some(unknown) = ids.iter().find(|id| !machine.gpus.iter().any(|gpu| is(gpu, id))) {
        let known: Vec<String> = machine.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
        return Err(format!("there is no GPU '{unknown}'; there are: {}", known.join(", ")));
    }
    machine.gpus.retain(|gpu| ids.is_empty() || ids.iter().any(|id| is(gpu, id)));
    Ok(machine)
}

fn show(args: &Args, machine: &Machine) -> Result<String, String> {
    if args.json {
        let text = if args.watch.is_some() {
            serde_json::to_string(machine)
        } else {
            serde_json::to_string_pretty(machine)
        };
        return text.map(|text| text + "\n").map_err(|e| e.to_string());
    }
    if let Some(names) = &args.query_gpu {
        let rows: Vec<GpuRow<'_>> = machine.gpus.iter().map(|gpu| (machine, gpu)).collect();
        return Ok(csv(&choose(&of_gpus(), names)?, &rows, args.format));
    }
    if let Some(names) = &args.query_compute_apps {
        let rows: Vec<AppRow<'_>> = machine.processes().collect();
        return Ok(csv(&choose(&of_apps(), names)?, &rows, args.format));
    }
    Ok(table::table(machine))
}
