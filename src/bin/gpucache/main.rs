//! The command line of gpucache. Each command is a module with its `Args` and a `run`.

mod cases;
mod doctor;
mod import;
mod inspect;
mod plot;
mod replay;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A caching GPU memory allocator with the semantics of PyTorch's: its tools.
#[derive(Debug, Parser)]
#[command(name = "gpucache", version, arg_required_else_help = true)]
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
}

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
    };
    done.unwrap_or_else(|error| {
        eprintln!("gpucache: {error}");
        ExitCode::from(TROUBLE)
    })
}
