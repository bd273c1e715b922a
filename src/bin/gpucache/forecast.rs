//! `gpucache forecast`: the largest batch that fits.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gpucache::Config;
use gpucache::replay::{BatchModel, Growth, ReplayReport, Workload};
use gpucache::units::{format_size, parse_size};
use serde::Serialize;

use crate::style::{BAD, GOOD, HEAD, paint};
use crate::{CommandResult, simulate};

/// From recordings at two batch sizes, forecast the largest batch that fits
///
/// Each allocation's size is taken as a straight line through its two recorded sizes. The requests at a batch size
/// are put together from that and replayed on a simulated GPU under the limit; the answer is the largest batch size
/// without a request out of memory. --check compares a forecast with a third recording. Exit status 1 if not even
/// batch size 1 fits, 2 if the recordings do not go together.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A recording and its batch size: NAME.req.zst@16
    #[arg(value_name = "FILE@BATCH", value_parser = parse_recording)]
    first: Recording,
    /// The same program at another batch size
    #[arg(value_name = "FILE@BATCH", value_parser = parse_recording)]
    second: Recording,
    /// Memory that the allocator may reserve, such as 40G [default: the recorded limit or device]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,
    /// Options in the syntax of PYTORCH_CUDA_ALLOC_CONF, instead of the recording's
    #[arg(long, value_name = "CONF")]
    config: Option<String>,
    /// A third recording to compare a forecast with
    #[arg(long, value_name = "FILE@BATCH", value_parser = parse_recording)]
    check: Option<Recording>,
    /// Print the forecast as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone)]
struct Recording {
    file: PathBuf,
    batch: u64,
}

fn parse_recording(text: &str) -> Result<Recording, String> {
    let wrong = || format!("'{text}': write the file and its batch size, such as step.req.zst@16");
    let (file, batch) = text.rsplit_once('@').ok_or_else(wrong)?;
    let batch = batch.parse().ok().filter(|batch| *batch > 0).ok_or_else(wrong)?;
    Ok(Recording { file: Path::new(file).to_owned(), batch })
}

/// No batch is larger, so that a workload that does not grow ends the search.
const LARGEST: u64 = 1 << 20;

/// What one batch size needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Need {
    batch: u64,
    peak_allocated_bytes: i64,
    peak_reserved_bytes: i64,
    retries: i64,
    out_of_memory_events: i64,
}

impl Need {
    fn new(batch: u64, report: &ReplayReport) -> Self {
        Need {
            batch,
            peak_allocated_bytes: report.peaks.peak_allocated_bytes,
            peak_reserved_bytes: report.peaks.peak_reserved_bytes,
            retries: report.first_pass.retries,
            out_of_memory_events: report.first_pass.out_of_memory_events,
        }
    }

    fn fits(&self) -> bool {
        self.out_of_memory_events == 0
    }
}

#[derive(Debug, Serialize)]
struct Forecast {
    case: String,
    capacity_bytes: u64,
    config: String,
    allocations: Allocations,
    /// The recorded batch sizes without the limit, what is forecast for them.
    recorded: [Need; 2],
    /// The largest batch size that fits; `null`: none.
    largest: Option<Need>,
    /// The largest that fits without giving the cache back in between.
    largest_without_retries: Option<Need>,
    /// The next batch size, which does not fit; `null`: the search ended at 2^20.
    next: Option<Need>,
    check: Option<Check>,
}

#[derive(Debug, Serialize)]
struct Allocations {
    fixed: u64,
    even: u64,
    uneven: u64,
    left_out_requests: u64,
}

impl From<Growth> for Allocations {
    fn from(growth: Growth) -> Self {
        Allocations {
            fixed: growth.fixed,
            even: growth.even,
            uneven: growth.uneven,
            left_out_requests: growth.left_out,
        }
    }
}

/// A forecast beside a recording.
#[derive(Debug, Serialize)]
struct Check {
    forecast: Need,
    recorded: Need,
    /// Forecast / recorded peak reserved - 1.
    error: f64,
}

/// Plays batch sizes under one configuration and limit.
struct Player<'a> {
    model: &'a BatchModel,
    config: Config,
    capacity: u64,
}

impl Player<'_> {
    fn need(&self, batch: u64) -> Result<Need, String> {
        let report = simulate::play(&self.model.at(batch), &self.config, Some(self.capacity))?;
        Ok(Need::new(batch, &report))
    }

    /// What a workload needs if nothing limits it.
    fn free_need(&self, work: &Workload, batch: u64) -> Result<Need, String> {
        Ok(Need::new(batch, &simulate::play(work, &self.config, Some(u64::MAX >> 8))?))
    }

    /// The largest batch size with which all is well, and the next one. Larger ones need more, so that halving finds
    /// it; the retries of a cache under pressure can make exceptions, and the answer is then one of the borders.
    fn largest(&self, well: impl Fn(&Need) -> bool) -> Result<(Option<Need>, Option<Need>), String> {
        let (mut good, mut bad): (Option<Need>, Option<Need>) = (None, None);
        let mut batch = 1;
        while bad.is_none() && batch <= LARGEST {
            let need = self.need(batch)?;
            *(if well(&need) { &mut good } else { &mut bad }) = Some(need);
            batch *= 2;
        }
        while let (Some(low), Some(high)) = (good, bad)
            && high.batch - low.batch > 1
        {
            let need = self.need(low.batch.midpoint(high.batch))?;
            *(if well(&need) { &mut good } else { &mut bad }) = Some(need);
        }
        Ok((good, bad))
    }
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let forecast = forecast(args)?;
    let mut out = anstream::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&forecast)?)?;
    } else {
        print(&mut out, &forecast)?;
    }
    Ok(if forecast.largest.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn forecast(args: &Args) -> Result<Forecast, Box<dyn std::error::Error>> {
    let (first, second) = (&args.first, &args.second);
    let model = BatchModel::fit((&first.file, first.batch), (&second.file, second.batch))?;
    let header = model.header();
    let text = args.config.as_deref().unwrap_or(&header.alloc_conf).to_owned();
    let capacity = args.capacity.or(header.allowed_bytes).unwrap_or(header.total_memory);
    let player = Player { model: &model, config: Config::parse(&text)?, capacity };
    let recorded = [first.batch, second.batch].map(|batch| player.free_need(&model.at(batch), batch));
    let [low, high] = recorded;
    let (largest, next) = player.largest(Need::fits)?;
    let (largest_without_retries, _) = player.largest(|need| need.fits() && need.retries == 0)?;
    let check = args.check.as_ref().map(|recording| check(&player, recording)).transpose()?;
    Ok(Forecast {
        case: header.case.clone(),
        capacity_bytes: capacity,
        config: text,
        allocations: model.growth().into(),
        recorded: [low?, high?],
        largest,
        largest_without_retries,
        next,
        check,
    })
}

fn check(player: &Player<'_>, recording: &Recording) -> Result<Check, Box<dyn std::error::Error>> {
    let forecast = player.free_need(&player.model.at(recording.batch), recording.batch)?;
    let recorded = player.free_need(&Workload::read(&recording.file)?, recording.batch)?;
    let error = forecast.peak_reserved_bytes as f64 / (recorded.peak_reserved_bytes as f64).max(1.0) - 1.0;
    Ok(Check { forecast, recorded, error })
}

fn print(out: &mut impl Write, forecast: &Forecast) -> io::Result<()> {
    let Allocations { fixed, even, uneven, left_out_requests } = forecast.allocations;
    writeln!(
        out,
        "{}: {fixed} allocations of fixed size, {even} that grow evenly with the batch, {uneven} unevenly",
        forecast.case
    )?;
    if left_out_requests > 0 {
        writeln!(out, "{left_out_requests} requests of iterations that only one recording has are left out")?;
    }
    let head = format!(
        "{:>10} {:>15} {:>15} {:>8} {:>5}",
        "batch", "peak allocated", "peak reserved", "retries", "OOM"
    );
    writeln!(out, "{}", paint(HEAD, &head))?;
    for need in &forecast.recorded {
        print_need(out, need, "recorded")?;
    }
    let best = forecast.largest.as_ref();
    if let Some(calm) = forecast.largest_without_retries.filter(|calm| best != Some(calm)) {
        print_need(out, &calm, "fits without retries")?;
    }
    if let Some(best) = best {
        print_need(out, best, "fits")?;
    }
    if let Some(next) = &forecast.next {
        print_need(out, next, "does not fit")?;
    }
    if let Some(check) = &forecast.check {
        print_need(out, &check.forecast, "forecast")?;
        print_need(out, &check.recorded, "third recording")?;
        writeln!(out, "The forecast of the peak is off by {:+.2} %.", check.error * 100.0)?;
    }
    writeln!(out)?;
    let limit = format_size(forecast.capacity_bytes);
    let answer = match best {
        Some(best) if best.batch >= LARGEST => format!("Every batch size up to {LARGEST} fits {limit}."),
        Some(best) => format!("Largest batch that fits {limit}: {}", paint(GOOD, &best.batch.to_string())),
        None => paint(BAD, &format!("Not even batch size 1 fits {limit}.")),
    };
    writeln!(out, "{answer}")
}

fn print_need(out: &mut impl Write, need: &Need, what: &str) -> io::Result<()> {
    writeln!(
        out,
        "{:>10} {:>15} {:>15} {:>8} {:>5}  {what}",
        need.batch,
        format_size(need.peak_allocated_bytes.unsigned_abs()),
        format_size(need.peak_reserved_bytes.unsigned_abs()),
        need.retries,
        need.out_of_memory_events
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_have_a_batch_size() {
        let recording = parse_recording("a@b/step.req@16").unwrap();
        assert_eq!((recording.file.to_str(), recording.batch), (Some("a@b/step.req"), 16));
        for text in ["step.req", "step.req@", "step.req@0", "step.req@-1", "step.req@x"] {
            assert!(parse_recording(text).unwrap_err().contains("@16"), "{text}");
        }
    }
}
