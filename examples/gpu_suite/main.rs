//! The device-independent suites on a real GPU: one line for each check, a table at the end.
//!
//! `cargo run --release --features replay --example gpu_suite -- --recordings DIR --soak 600`
//!
//! It is one program without other files, to be carried to a machine with a GPU. `.ci/fake-cuda.sh --print-env` prints
//! the environment for a driver without one.

mod caps;
mod checks;
mod gpu;
mod kernels;
mod random;
mod recordings;
mod report;
mod soak;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use gpucache::device::Device;

use gpu::Gpu;
use report::Report;

const CONFIGURATIONS: [&str; 4] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:64,garbage_collection_threshold:0.6",
    "roundup_power2_divisions:4",
];

/// Runs gpucache's suites on a CUDA device.
#[derive(Parser)]
struct Arguments {
    /// Ordinal of the device.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// A folder with recordings (.req and .obs, plain or .zst); may be given several times.
    #[arg(long, value_name = "DIR")]
    recordings: Vec<PathBuf>,
    /// Seconds of soak in all, shared by three configurations; 0 leaves it out.
    #[arg(long, default_value_t = 15)]
    soak: u64,
    /// Only the soak and the checks that launch kernels (for compute-sanitizer).
    #[arg(long)]
    kernels_only: bool,
    #[arg(long, hide = true)]
    child_cap: Option<f64>,
    #[arg(long, hide = true, num_args = 2)]
    child_recording: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gpu_suite: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    if let Some(fraction) = arguments.child_cap {
        return caps::child(arguments.device, fraction).map(|()| true);
    }
    let gpu = Gpu::open(arguments.device)?;
    if let [req, obs] = arguments.child_recording.as_slice() {
        return recordings::alone(&gpu, req, obs);
    }
    let properties = gpu.device.properties();
    println!(
        "{}, {} bytes, compute capability {}.{}, driver {}; gpucache {}\n",
        properties.name,
        properties.total_memory,
        properties.compute_capability.0,
        properties.compute_capability.1,
        properties.driver_version,
        env!("CARGO_PKG_VERSION")
    );
    let mut report = Report::default();
    kernel_checks(&gpu, &mut report);
    if !arguments.kernels_only {
        memory_checks(&gpu, &mut report);
        for folder in &arguments.recordings {
            if let Err(error) = recordings::run(&gpu, &mut report, folder) {
                report.check(&format!("recordings: {}", folder.display()), || Err(error));
            }
        }
        if arguments.recordings.is_empty() {
            report.skip("recordings", "no --recordings DIR");
        }
    }
    soaks(&gpu, &mut report, arguments.soak);
    Ok(report.finish())
}

fn label(name: &str, options: &str) -> String {
    if options.is_empty() { name.to_owned() } else { format!("{name} ({options})") }
}

fn kernel_checks(gpu: &Gpu, report: &mut Report) {
    report.check("graph", || checks::graph(gpu, ""));
    report.check("graph (expandable_segments:True)", || checks::graph(gpu, "expandable_segments:True"));
    report.check("expandable segments", || checks::expandable(gpu));
    report.check("pinned copies", || checks::pinned(gpu));
}

fn memory_checks(gpu: &Gpu, report: &mut Report) {
    for (options, seed) in CONFIGURATIONS.into_iter().zip(1..) {
        report.check(&label("random requests", options), || random::run(gpu, options, seed));
    }
    for options in &CONFIGURATIONS[..2] {
        report.check(&label("out of memory at a cap", options), || checks::capped(gpu, options));
        report.check(&label("out of memory for real", options), || checks::exhausted(gpu, options));
    }
    report.check("two processes with caps", || caps::run(gpu));
}

fn soaks(gpu: &Gpu, report: &mut Report, seconds: u64) {
    if seconds == 0 {
        report.skip("soak", "--soak 0");
        return;
    }
    for options in &CONFIGURATIONS[..3] {
        report.check(&label("soak", options), || soak::run(gpu, options, Duration::from_secs(seconds) / 3));
    }
}
