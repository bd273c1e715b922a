//! Recordings of PyTorch, replayed on the GPU.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use gpucache::cudarc::driver::CudaStream;
use gpucache::replay::{Agreement, DeviceReplay, verify_on_device};

use crate::gpu::{Gpu, MIB, raw};
use crate::report::{Finding, Report};

const STREAMS: usize = 16;

/// All recordings in a folder and below: the requests and the observations.
pub(crate) fn find(folder: &Path) -> std::io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(start) = name.strip_suffix(".req.zst") {
                found.push((path, PathBuf::from(format!("{start}.obs.zst"))));
            } else if let Some(start) = name.strip_suffix(".req") {
                found.push((path, PathBuf::from(format!("{start}.obs"))));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// How many of a folder's recordings agree, and how.
#[derive(Default)]
struct Tally {
    exact: usize,
    exact_alone: usize,
    by_address: usize,
    same_driver_use: usize,
    too_large: usize,
    failed: usize,
    requests: u64,
    driver_calls: u64,
}

/// Replays every recording; one row in the report for each folder.
pub(crate) fn run(gpu: &Gpu, report: &mut Report, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let streams = (0..STREAMS).map(|_| gpu.stream()).collect::<Result<Vec<_>, _>>()?;
    let found = find(folder)?;
    if found.is_empty() {
        return Err(format!("{} holds no .req or .req.zst files", folder.display()).into());
    }
    for group in found.chunk_by(|a, b| a.0.parent() == b.0.parent()) {
        let name =
            group[0].0.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        report.check(&format!("recordings: {name}"), || {
            let mut tally = Tally::default();
            for (req, obs) in group {
                tally.add(gpu, &streams, req, obs);
            }
            tally.finding(group.len())
        });
    }
    Ok(())
}

/// One recording in this process: for a second try in a fresh one, where the driver's addresses are the recording's.
pub(crate) fn alone(gpu: &Gpu, req: &Path, obs: &Path) -> Result<bool, Box<dyn std::error::Error>> {
    let streams = (0..STREAMS).map(|_| gpu.stream()).collect::<Result<Vec<_>, _>>()?;
    Ok(replay(gpu, &streams, req, obs)?.agreement == Agreement::Exact)
}

fn replay(
    gpu: &Gpu,
    streams: &[Arc<CudaStream>],
    req: &Path,
    obs: &Path,
) -> Result<DeviceReplay, gpucache::replay::Divergence> {
    let streams: Vec<_> = streams.iter().map(|stream| raw(stream)).collect();
    verify_on_device(req, obs, &gpu.as_device(), &streams, &AtomicU64::new(0))
}

fn exact_in_a_fresh_process(gpu: &Gpu, req: &Path, obs: &Path) -> bool {
    let Ok(program) = std::env::current_exe() else { return false };
    let mut command = Command::new(program);
    command
        .args(["--device", &gpu.device.context().ordinal().to_string(), "--child-recording"])
        .args([req, obs]);
    command.status().is_ok_and(|status| status.success())
}

impl Tally {
    fn add(&mut self, gpu: &Gpu, streams: &[Arc<CudaStream>], req: &Path, obs: &Path) {
        let name = req.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.trim_end_matches(".zst").trim_end_matches(".req");
        match replay(gpu, streams, req, obs) {
            Ok(replay) => {
                self.note(gpu, name, &replay, req, obs);
            }
            Err(failure) if failure.reason.contains("too little free memory") => {
                self.too_large += 1;
                println!("  skipped    {name}: {}", failure.reason);
            }
            Err(failure) => {
                self.failed += 1;
                println!("  FAILED     {name}: {failure}");
                for line in &failure.context {
                    println!("             {line}");
                }
            }
        }
    }

    fn note(&mut self, gpu: &Gpu, name: &str, replay: &DeviceReplay, req: &Path, obs: &Path) {
        self.requests += replay.requests;
        self.driver_calls += replay.replayed.calls();
        let (recorded, replayed) = (replay.recorded, replay.replayed);
        let same_use = recorded == replayed;
        self.same_driver_use += usize::from(same_use);
        let word = match &replay.agreement {
            Agreement::Exact => {
                self.exact += 1;
                "exact"
            }
            Agreement::ByAddress(_) if exact_in_a_fresh_process(gpu, req, obs) => {
                self.exact_alone += 1;
                "exact when alone"
            }
            Agreement::ByAddress(difference) => {
                self.by_address += 1;
                println!("  by address {name}: {difference}");
                "by address"
            }
        };
        println!(
            "  {word:<10} {name}: {} requests; driver calls {} (recorded {}), peak reserved {} MiB (recorded {})",
            replay.requests,
            replayed.calls(),
            recorded.calls(),
            replayed.peak_reserved / MIB as u64,
            recorded.peak_reserved / MIB as u64,
        );
    }

    fn finding(&self, cases: usize) -> Finding {
        let text = format!(
            "{cases} recordings, {} requests, {} driver calls: {} exact, {} exact in a fresh process, {} the same up to \
             the driver's order of addresses, {} need a larger GPU, {} differ; driver calls and reserved bytes as \
             recorded in {}",
            self.requests,
            self.driver_calls,
            self.exact,
            self.exact_alone,
            self.by_address,
            self.too_large,
            self.failed,
            self.same_driver_use,
        );
        if self.failed > 0 { Err(text.into()) } else { Ok(text) }
    }
}
