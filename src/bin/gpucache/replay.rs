//! `gpucache replay`: plays the allocations and frees of a recording for time and peaks.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use gpucache::device::Device;
use gpucache::device::sim::{AddressPolicy, SimDevice};
use gpucache::replay::{Header, ReplayReport, TraceResult, Workload};
use gpucache::{Allocator, Config, units};

use crate::{CommandResult, cases};

/// Play the allocations and frees of a recording: time, driver calls, peaks, utilisation
///
/// Without --config and --capacity the recording's own configuration and memory limit apply, and on a simulated GPU
/// the recorded addresses of segments, if the recording's other file lies beside it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The recording's NAME.req or NAME.req.zst
    file: PathBuf,
    /// Options in the syntax of PYTORCH_CUDA_ALLOC_CONF, instead of the recording's
    #[arg(long, value_name = "CONF")]
    config: Option<String>,
    /// Memory limit, such as 8.6G, instead of the recording's
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    capacity: Option<u64>,
    /// Where to play: `sim`, or `cuda:N` for a real GPU
    #[arg(long, default_value = "sim", value_parser = parse_target)]
    device: Target,
    /// How many passes; the first and the others are reported apart
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Simulated,
    Cuda(u32),
}

fn parse_target(text: &str) -> Result<Target, String> {
    let wrong = || format!("'{text}' is no device: use sim, or cuda:0, cuda:1, ...");
    match text.split_once(':') {
        None if text == "sim" => Ok(Target::Simulated),
        Some(("cuda", ordinal)) => ordinal.parse().map(Target::Cuda).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let work = Workload::read(&args.file)?;
    let (device, simulated) = open_device(args, work.header())?;
    if let Some(gpu) = &simulated {
        for address in recorded_addresses(args, &work)? {
            gpu.push_address(address);
        }
    }
    let allocator = allocator(args, work.header(), device)?;
    let report = work.play(&allocator, simulated.as_ref(), args.repeat)?;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report)?;
    }
    Ok(ExitCode::SUCCESS)
}

type OpenDevice = (Arc<dyn Device>, Option<SimDevice>);

fn open_device(args: &Args, header: &Header) -> gpucache::Result<OpenDevice> {
    match args.device {
        Target::Cuda(ordinal) => Ok((Allocator::cuda(ordinal)?.device().clone(), None)),
        Target::Simulated => {
            let total = header.total_memory.max(args.capacity.unwrap_or(0));
            // A driver gives freed addresses out again; which one, a simulation can only guess.
            let builder = SimDevice::builder().total_memory(total).address_policy(AddressPolicy::FirstFit);
            let gpu = builder.build();
            Ok((Arc::new(gpu.clone()), Some(gpu)))
        }
    }
}

/// Where the recorded driver placed segments, if the replay will ask for the same ones. Of equally large free blocks
/// the one at the lowest address is taken, so that peaks depend a little on the driver's choice.
fn recorded_addresses(args: &Args, work: &Workload) -> TraceResult<Vec<u64>> {
    let obs = cases::of_file(&args.file).map(|case| case.obs).filter(|obs| obs.exists());
    match obs {
        Some(obs) if work.is_whole() && args.config.is_none() && args.capacity.is_none() => {
            Workload::driver_addresses(&obs)
        }
        _ => Ok(Vec::new()),
    }
}

fn allocator(args: &Args, header: &Header, device: Arc<dyn Device>) -> gpucache::Result<Allocator> {
    let config = Config::parse(args.config.as_deref().unwrap_or(&header.alloc_conf))?;
    let total = device.properties().total_memory;
    let allocator = Allocator::builder().device(device).config(config).build()?;
    if let Some(limit) = args.capacity.or(header.allowed_bytes).filter(|limit| *limit < total) {
        allocator.set_per_process_memory_fraction(fraction(limit, total))?;
    }
    Ok(allocator)
}

/// The smallest fraction whose limit, rounded down to bytes, is not below `limit`.
pub(crate) fn fraction(limit: u64, total: u64) -> f64 {
    let exact = limit as f64 / total as f64;
    if (exact * total as f64) as u64 >= limit { exact } else { exact.next_up() }
}

fn print(report: &ReplayReport) -> std::io::Result<()> {
    let first = &report.first_pass;
    say!(
        "{}: {} requests per pass, {} of other kinds left out",
        report.case,
        report.requests,
        report.skipped
    );
    for (what, bytes) in [
        ("peak allocated", report.peaks.peak_allocated_bytes),
        ("peak active", report.peaks.peak_active_bytes),
        ("peak reserved", report.peaks.peak_reserved_bytes),
    ] {
        say!("{what:<16} {bytes:>16} bytes  {:>12}", units::format_size(bytes.unsigned_abs()));
    }
    say!("{:<16} {:>16.4} (peak active / peak reserved)", "utilisation", report.peaks.utilisation);
    say!(
        "{:<16} {:>16} ns per request, {} driver calls, {} retries, {} out of memory",
        "first pass",
        first.ns_per_request,
        first.driver_calls,
        first.retries,
        first.out_of_memory_events
    );
    if let Some(steady) = &report.steady_state {
        say!(
            "{:<16} {:>16} ns per request (median of {}; shortest {}), {:.1} driver calls per pass, {} retries, \
             {} out of memory, utilisation {:.4}",
            "steady state",
            steady.median_ns_per_request,
            steady.passes,
            steady.min_ns_per_request,
            steady.driver_calls_per_pass,
            steady.retries,
            steady.out_of_memory_events,
            steady.peaks.utilisation
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_gives_back_its_limit() {
        let total = 150_109_880_320;
        for limit in [1, 512, 41_943_040, 9_234_179_686, total - 1] {
            let allowed = (fraction(limit, total) * total as f64) as u64;
            assert!((limit..=limit + 1).contains(&allowed), "{limit}: {allowed}");
        }
    }

    #[test]
    fn devices_are_named_sim_or_cuda() {
        assert!(matches!(parse_target("sim"), Ok(Target::Simulated)));
        assert!(matches!(parse_target("cuda:3"), Ok(Target::Cuda(3))));
        for text in ["", "cuda", "cuda:", "cuda:x", "gpu", "sim:0"] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }
}
