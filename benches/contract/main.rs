//! gpucache's side of the peers' CSV contract: the same options, scenarios, cases, loops and random numbers as the
//! benchmarks of the other allocators, one CSV line per repetition. `docs/measurements/README.md` says how to run
//! it beside them. Scenarios of gpucache's own run only when `--scen` names them.

#[path = "../common/mod.rs"]
mod common;

mod options;
mod own;
mod report;
mod runner;
mod scenarios;
mod threads;

use std::error::Error;
use std::process::ExitCode;

use common::subject::{Addresses, Handles};
use common::testbed::Testbed;
use options::{Api, Options};
use runner::Runner;

fn main() -> ExitCode {
    match run(&Options::read()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("contract: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let testbed = Testbed::open(options.device, options.memory)?;
    if !options.conf.is_empty() {
        testbed.allocator.set_allocator_settings(&options.conf)?;
    }
    match options.api {
        Api::Handle => Runner::new(Handles(&testbed.allocator), &testbed, options)?.run(),
        Api::Raw => Runner::new(Addresses(&testbed.allocator), &testbed, options)?.run(),
    }
}
