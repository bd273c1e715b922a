//! The command line of gpucache. Each command is a module with its `Args` and a `run`.

/// Prints a line; a closed pipe is an error like any other, which `main` takes for the end.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        writeln!(std::io::stdout(), $($text)*)?;
    }};
}

mod cases;
mod completions;
mod doctor;
mod forecast;
mod import;
mod inspect;
mod machine;
mod plot;
mod replay;
mod simulate;
mod smi;
mod style;
mod top;
mod tune;
mod verify;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A caching GPU memory allocator with the semantics of PyTorch's: its tools.
#[derive(Debug, Parser)]
#[command(name = "gpucache", version, arg_required_else_help = true, after_help = EXIT_STATUS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Verify(verify::Args),
    Replay(replay::Args),
    Import(import::Args),
    Inspect(inspect::Args),
    Plot(plot::Args),
    Doctor(doctor::Args),
    Smi(smi::Args),
    Top(top::Args),
    Tune(tune::Args),
    Forecast(forecast::Args),
    Completions(completions::Args),
}

const EXIT_STATUS: &str = "Exit status: 0 all is well; 1 the answer is no (a recording diverges, nothing fits, \
                           nothing is better, nothing to show); 2 the command could not do its work.";

/// What a command ends with. An error is printed as one line.
type CommandResult = Result<ExitCode, Box<dyn std::error::Error>>;

/// Exit status of a command that could not do its work.
const TROUBLE: u8 = 2;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Verify(args) => verify::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Plot(args) => plot::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Smi(args) => smi::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Forecast(args) => forecast::run(&args),
        Command::Completions(args) => completions::run(&args),
    };
    done.unwrap_or_else(|error| {
        if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            // `| head` has seen enough.
            return ExitCode::SUCCESS;
        }
        eprintln!("gpucache: {error}");
        ExitCode::from(TROUBLE)
    })
}
