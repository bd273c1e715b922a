//! `gpucache tune`: one workload under many configurations.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use gpucache::Config;
use gpucache::replay::{ReplayReport, Workload};
use gpucache::units::{format_size, parse_size};
use serde::Serialize;

use crate::style::{BAD, FAINT, GOOD, HEAD, paint};
use crate::{CommandResult, simulate};

/// Replay a recording under many configurations on simulated GPUs and print the best
///
/// The best configuration has the fewest requests out of memory, then the lowest peak of reserved memory, then the
/// fewest driver calls. Every one starts from the options of --config (or of the recording), which is also what the
/// best is compared with. Exit status 1 if no configuration is better, 2 if the recording cannot be played.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The recording's NAME.req or NAME.req.zst
    file: PathBuf,
    /// Options in the syntax of PYTORCH_CUDA_ALLOC_CONF to start from, instead of the recording's
    #[arg(long, value_name = "CONF")]
    config: Option<String>,
    /// Memory limit, such as 8.6G, instead of the recording's
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,
    /// An option and its values to try, `-` for its absence: max_split_size_mb=-/64/128. Several multiply; any
    /// replaces the default grid
    #[arg(long, value_name = "OPTION=VALUE/...", value_parser = parse_axis)]
    vary: Vec<Axis>,
    /// Configurations played at the same time [default: number of CPUs]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// How many of the best to print
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print all results as JSON
    #[arg(long)]
    json: bool,
}

/// One option and its values; `None`: not set.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Axis {
    option: String,
    values: Vec<Option<String>>,
}

/// More configurations than this are surely not meant.
const MOST_CONFIGURATIONS: usize = 10_000;

fn parse_axis(text: &str) -> Result<Axis, String> {
    let wrong = || format!("'{text}': write OPTION=VALUE/VALUE/..., such as max_split_size_mb=-/64/128");
    let (option, values) = text.split_once('=').ok_or_else(wrong)?;
    let value = |value: &str| match value {
        "" => Err(wrong()),
        "-" => Ok(None),
        value => Ok(Some(value.to_owned())),
    };
    let values = values.split('/').map(value).collect::<Result<Vec<_>, _>>()?;
    for value in values.iter().flatten() {
        // What is wrong with one value is better said here than once per configuration.
        Config::parse(&format!("{option}:{value}")).map_err(|e| e.to_string())?;
    }
    Ok(Axis { option: option.to_owned(), values })
}

/// The options that change most in practice. Garbage collection only does something under a limit.
fn default_grid(limited: bool) -> Vec<Axis> {
    let axis = |option: &str, values: &[&str]| Axis {
        option: option.to_owned(),
        values: values.iter().map(|v| (*v != "-").then(|| (*v).to_owned())).collect(),
    };
    let mut grid = vec![
        axis("expandable_segments", &["False", "True"]),
        axis("max_split_size_mb", &["-", "32", "128", "512"]),
        axis("roundup_power2_divisions", &["-", "4", "8"]),
    ];
    if limited {
        grid.push(axis("garbage_collection_threshold", &["-", "0.8"]));
    }
    grid
}

/// An option text and what it says; `Err`: not together.
type Candidate = (String, Result<Config, String>);

/// Every combination; the base itself comes first.
fn combinations(base: &str, grid: &[Axis]) -> Result<Vec<Candidate>, String> {
    let count = grid.iter().try_fold(1_usize, |product, axis| product.checked_mul(axis.values.len()));
    if count.is_none_or(|count| count > MOST_CONFIGURATIONS) {
        return Err(format!(
            "the grid has more than {MOST_CONFIGURATIONS} configurations: vary fewer options"
        ));
    }
    let mut texts = vec![String::new()];
    for axis in grid {
        let extend = |text: &String| {
            let join = |value: &Option<String>| match value {
                None => text.clone(),
                Some(value) if text.is_empty() => format!("{}:{value}", axis.option),
                Some(value) => format!("{text},{}:{value}", axis.option),
            };
            axis.values.iter().map(join).collect::<Vec<_>>()
        };
        texts = texts.iter().flat_map(extend).collect();
    }
    let base = base.trim();
    // Of an option that is named twice the last counts.
    let on_base = |text: String| match (base.is_empty(), text.is_empty()) {
        (true, _) => text,
        (_, true) => base.to_owned(),
        _ => format!("{base},{text}"),
    };
    let mut all: Vec<Candidate> = Vec::new();
    for text in [base.to_owned()].into_iter().chain(texts.into_iter().map(on_base)) {
        let mut config = Config::parse(&text).map_err(|e| e.to_string());
        // Several texts may say the same: a default value, or none.
        if let Ok(config) = &mut config {
            config.source.clear();
        }
        if all.iter().all(|(_, known)| *known != config) {
            all.push((text, config));
        }
    }
    Ok(all)
}

/// One configuration and what it needed.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    config: String,
    peak_allocated_bytes: i64,
    peak_reserved_bytes: i64,
    utilisation: f64,
    driver_calls: i64,
    retries: i64,
    out_of_memory_events: i64,
}

impl Row {
    fn new(config: &str, report: &ReplayReport) -> Self {
        let pass = &report.first_pass;
        Row {
            config: config.to_owned(),
            peak_allocated_bytes: report.peaks.peak_allocated_bytes,
            peak_reserved_bytes: report.peaks.peak_reserved_bytes,
            utilisation: report.peaks.utilisation,
            driver_calls: pass.driver_calls,
            retries: pass.retries,
            out_of_memory_events: pass.out_of_memory_events,
        }
    }

    /// Best first. Of equals the one with fewer options.
    fn rank(&self) -> (i64, i64, i64, usize) {
        (
            self.out_of_memory_events,
            self.peak_reserved_bytes,
            self.driver_calls + self.retries,
            self.config.len(),
        )
    }

    fn name(&self) -> &str {
        if self.config.is_empty() { "(default)" } else { &self.config }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    case: String,
    requests: usize,
    capacity_bytes: Option<u64>,
    baseline: Row,
    best: Row,
    saved_reserved_bytes: i64,
    /// All, best first.
    rows: Vec<Row>,
    /// Combinations that the allocator refuses.
    refused: Vec<Refused>,
}

#[derive(Debug, Serialize)]
struct Refused {
    config: String,
    reason: String,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let work = Workload::read(&args.file)?;
    if work.is_empty() {
        return Err(format!("{}: nothing to play: no allocations", args.file.display()).into());
    }
    let report = tune(args, &work)?;
    let mut out = anstream::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        print(&mut out, &report, args.top)?;
    }
    let better = report.best.rank() < report.baseline.rank();
    Ok(if better { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tune(args: &Args, work: &Workload) -> Result<Report, String> {
    let header = work.header();
    let base = args.config.as_deref().unwrap_or(&header.alloc_conf);
    Config::parse(base).map_err(|e| e.to_string())?;
    let limit = args.capacity.or(header.allowed_bytes);
    let grid = if args.vary.is_empty() { default_grid(limit.is_some()) } else { args.vary.clone() };
    let candidates = combinations(base, &grid)?;
    let outcomes =
        simulate::in_parallel(&candidates, simulate::jobs(args.jobs), "configurations", |(text, config)| {
            let report = simulate::play(work, config.as_ref().map_err(Clone::clone)?, args.capacity)?;
            Ok(Row::new(text, &report))
        });
    let (mut rows, mut refused) = (Vec::new(), Vec::new());
    for ((config, _), outcome) in candidates.into_iter().zip(outcomes) {
        match outcome {
            Ok(row) => rows.push(row),
            Err::<_, String>(reason) => refused.push(Refused { config, reason }),
        }
    }
    // The first text is the base: if that failed, all the rest has nothing to be compared with.
    let baseline = rows.first().filter(|row| row.config == base.trim()).cloned();
    let baseline = baseline.ok_or_else(|| refused.first().map_or_else(String::new, |r| r.reason.clone()))?;
    rows.sort_by_key(Row::rank);
    let best = rows.first().unwrap_or(&baseline).clone();
    Ok(Report {
        case: header.case.clone(),
        requests: work.len(),
        capacity_bytes: limit,
        saved_reserved_bytes: baseline.peak_reserved_bytes - best.peak_reserved_bytes,
        baseline,
        best,
        rows,
        refused,
    })
}

fn print(out: &mut impl Write, report: &Report, top: usize) -> io::Result<()> {
    let limit =
        report.capacity_bytes.map_or("no limit".to_owned(), |bytes| format!("limit {}", format_size(bytes)));
    writeln!(
        out,
        "{}: {} requests, {limit}, {} configurations",
        report.case,
        report.requests,
        report.rows.len()
    )?;
    let head = format!(
        "{:>14} {:>11} {:>12} {:>8} {:>5}  configuration",
        "peak reserved", "utilisation", "driver calls", "retries", "OOM"
    );
    writeln!(out, "{}", paint(HEAD, &head))?;
    for row in report.rows.iter().take(top) {
        print_row(out, row, &report.baseline)?;
    }
    if report.rows.iter().take(top).all(|row| *row != report.baseline) {
        writeln!(out, "{:>14}", "...")?;
        print_row(out, &report.baseline, &report.baseline)?;
    }
    for Refused { config, reason } in &report.refused {
        writeln!(out, "{}", paint(FAINT, &format!("refused: {config}: {reason}")))?;
    }
    writeln!(out)?;
    print_best(out, report)
}

fn print_row(out: &mut impl Write, row: &Row, baseline: &Row) -> io::Result<()> {
    let oom = format!("{:>5}", row.out_of_memory_events);
    writeln!(
        out,
        "{:>14} {:>11.4} {:>12} {:>8} {}  {}{}",
        format_size(row.peak_reserved_bytes.unsigned_abs()),
        row.utilisation,
        row.driver_calls,
        row.retries,
        if row.out_of_memory_events > 0 { paint(BAD, &oom) } else { oom },
        row.name(),
        if row == baseline { paint(FAINT, "  <- compared with") } else { String::new() }
    )
}

fn print_best(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let (best, base) = (&report.best, &report.baseline);
    if best.rank() >= base.rank() {
        return writeln!(out, "Nothing is better than {}.", base.name());
    }
    writeln!(out, "{} {}", paint(HEAD, "Best:"), paint(GOOD, best.name()))?;
    let saved = report.saved_reserved_bytes;
    let percent = 100.0 * saved as f64 / (base.peak_reserved_bytes as f64).max(1.0);
    let (word, change) = if saved >= 0 { ("less", saved) } else { ("more", -saved) };
    writeln!(
        out,
        "      {} {word} reserved at the peak ({:.1} %), {} instead of {} driver calls, {} instead of {} requests out \
         of memory",
        format_size(change.unsigned_abs()),
        percent.abs(),
        best.driver_calls,
        base.driver_calls,
        best.out_of_memory_events,
        base.out_of_memory_events
    )?;
    writeln!(out, "      export PYTORCH_CUDA_ALLOC_CONF={}", best.config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_checked_when_they_are_read() {
        let axis = parse_axis("max_split_size_mb=-/64").unwrap();
        assert_eq!(axis.values, [None, Some("64".to_owned())]);
        for (text, reason) in [
            ("max_split_size_mb", "write OPTION=VALUE"),
            ("max_split_size_mb=64//128", "write OPTION=VALUE"),
            ("max_split_size_mb=much", "max_split_size_mb"),
            ("quack=1", "quack"),
        ] {
            let error = parse_axis(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    fn texts(base: &str, grid: &[Axis]) -> Vec<String> {
        combinations(base, grid).unwrap().into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn combinations_multiply_on_a_base() {
        let grid =
            ["expandable_segments=-/True", "max_split_size_mb=-/64"].map(|axis| parse_axis(axis).unwrap());
        let both = "expandable_segments:True,max_split_size_mb:64";
        assert_eq!(texts("", &grid), ["", "max_split_size_mb:64", "expandable_segments:True", both]);
        let based = texts(" roundup_power2_divisions:4 ", &grid[..1]);
        assert_eq!(
            based,
            ["roundup_power2_divisions:4", "roundup_power2_divisions:4,expandable_segments:True"]
        );
        let huge = vec![parse_axis("max_split_size_mb=-/64/128/256/512").unwrap(); 6];
        assert!(combinations("", &huge).unwrap_err().contains("10000"));
    }

    #[test]
    fn what_says_the_same_is_played_once() {
        let grid = [parse_axis("expandable_segments=-/False/True").unwrap()];
        assert_eq!(texts("", &grid), ["", "expandable_segments:True"]);
        assert_eq!(
            texts("expandable_segments:True", &grid),
            ["expandable_segments:True", "expandable_segments:True,expandable_segments:False"]
        );
    }
}
