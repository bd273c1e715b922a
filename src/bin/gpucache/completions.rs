//! `gpucache completions`: what the shell offers behind the tab key.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::{Cli, CommandResult};

/// Print the completions of a shell
///
/// For bash: gpucache completions bash > ~/.local/share/bash-completion/completions/gpucache
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    // Not straight to the output: `generate` panics where that is closed.
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "gpucache", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
