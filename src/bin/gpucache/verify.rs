//! `gpucache verify`: replays recordings and compares every answer.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use gpucache::replay::{Divergence, verify_case};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::cases::{self, Case};
use crate::{CommandResult, TROUBLE};

/// Replay recordings of PyTorch's allocator on a simulated GPU and compare every answer
///
/// Each recording runs under the configuration of its header, with the recorded segment addresses. Compared are,
/// after every request: the result, ten statistics, the events; where recorded also all 122 statistics, segments and
/// blocks, summaries and error texts. Exit status 1 if any recording diverges, 2 if there is nothing to verify.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recordings (NAME.req or NAME.obs, plain or .zst) or folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Recordings verified at the same time [default: number of CPUs]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Print only the recordings that diverge, and the last line
    #[arg(long, short)]
    quiet: bool,
    /// Print a line of JSON per recording and one with the counts
    #[arg(long)]
    json: bool,
}

type Verdict = Result<u64, Divergence>;

pub(crate) fn run(args: &Args) -> CommandResult {
    let cases = cases::find(&args.paths)?;
    let (passed, failed) = verify_all(&cases, args);
    if args.json {
        let _ = writeln!(io::stdout(), "{}", json!({"passed": passed, "failed": failed}));
    } else {
        let _ = writeln!(io::stdout(), "{passed} passed, {failed} failed");
    }
    if cases.is_empty() {
        eprintln!("gpucache: no recordings (NAME.req.zst and NAME.obs.zst) found");
        return Ok(ExitCode::from(TROUBLE));
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Verifies the cases on several threads and prints their lines in the order of the cases.
fn verify_all(cases: &[Case], args: &Args) -> (usize, usize) {
    let jobs = args.jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let next = AtomicUsize::new(0);
    let (sender, verdicts) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.min(cases.len()) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some((at, case)) = take(cases, next) {
                    let verdict = verify_case(&case.req, &case.obs, &AtomicU64::new(0));
                    if sender.send((at, verdict)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        print_in_order(cases, &verdicts, args)
    })
}

fn take<'a>(cases: &'a [Case], next: &AtomicUsize) -> Option<(usize, &'a Case)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    cases.get(at).map(|case| (at, case))
}

fn print_in_order(
    cases: &[Case],
    verdicts: &mpsc::Receiver<(usize, Verdict)>,
    args: &Args,
) -> (usize, usize) {
    let bar = progress(cases.len());
    let mut waiting = BTreeMap::new();
    let (mut passed, mut failed) = (0, 0);
    for (at, verdict) in verdicts {
        waiting.insert(at, verdict);
        bar.inc(1);
        while let Some(verdict) = waiting.remove(&(passed + failed)) {
            let name = &cases[passed + failed].name;
            *(if verdict.is_ok() { &mut passed } else { &mut failed }) += 1;
            if verdict.is_err() || !args.quiet {
                let text = if args.json { json_line(name, &verdict) } else { text_lines(name, &verdict) };
                // Who closed the pipe still gets the exit status.
                let _ = bar.suspend(|| writeln!(io::stdout(), "{text}"));
            }
        }
    }
    bar.finish_and_clear();
    (passed, failed)
}

fn text_lines(name: &str, verdict: &Verdict) -> String {
    match verdict {
        Ok(_) => format!("ok {name}"),
        Err(divergence) => {
            let context = divergence.context.iter().map(|line| format!("    {line}"));
            let head = format!("DIVERGES {name} {divergence}");
            [head].into_iter().chain(context).collect::<Vec<_>>().join("\n")
        }
    }
}

fn json_line(name: &str, verdict: &Verdict) -> String {
    match verdict {
        Ok(requests) => json!({"case": name, "ok": true, "requests": requests}),
        Err(Divergence { request, reason, context }) => {
            json!({"case": name, "ok": false, "request": request, "reason": reason, "context": context})
        }
    }
    .to_string()
}

fn progress(cases: usize) -> ProgressBar {
    let bar = ProgressBar::new(cases as u64);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} recordings, {eta} left") {
        bar.set_style(style);
    }
    bar
}
