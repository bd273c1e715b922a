//! The command line.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::common::testbed::{H200_BYTES, Target};

/// How blocks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Api {
    /// `Allocation`, which frees on drop.
    Handle,
    /// Bare addresses.
    Raw,
}

/// gpucache's side of the peers' CSV contract.
#[derive(Debug, Parser)]
#[command(name = "contract", about, long_about = None)]
pub(crate) struct Options {
    /// Name in the first column [default: gpucache, or gpucache-raw with --api raw]
    #[arg(long = "impl", value_name = "NAME")]
    name: Option<String>,
    /// Where the CSV goes [default: standard output]
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) out: Option<PathBuf>,
    /// Repetitions of every case
    #[arg(long, default_value_t = 7)]
    pub(crate) reps: u32,
    /// Milliseconds of a repetition
    #[arg(long, default_value_t = 15.0)]
    rep_ms: f64,
    /// Milliseconds of a repetition with threads
    #[arg(long, default_value_t = 120.0)]
    thread_ms: f64,
    /// Scenarios: pair, depth, live, cold, replay, threads [default: these six], and of gpucache's own:
    /// locks, churn, free_blocks, record_stream, free_elsewhere
    #[arg(long, value_delimiter = ',')]
    scen: Vec<String>,
    /// Recorded request streams, plain or .zst
    #[arg(long, num_args = 1.., value_name = "FILE.req")]
    pub(crate) req: Vec<PathBuf>,
    /// How blocks are held
    #[arg(long, value_enum, default_value = "handle")]
    pub(crate) api: Api,
    /// The device: sim or cuda:N
    #[arg(long, default_value = "sim")]
    pub(crate) device: Target,
    /// Options of the allocator, in the text form of PYTORCH_CUDA_ALLOC_CONF
    #[arg(long, default_value = "")]
    pub(crate) conf: String,
    /// Bytes of the simulated device
    #[arg(long, default_value_t = H200_BYTES)]
    pub(crate) memory: u64,
    // `cargo bench` adds it.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub(crate) fn read() -> Self {
        let options = Options::parse();
        let known: BTreeSet<&str> = CONTRACT.into_iter().chain(OWN).collect();
        if let Some(unknown) = options.scen.iter().find(|s| !known.contains(s.as_str())) {
            let known = Vec::from_iter(known).join(", ");
            <Options as clap::CommandFactory>::command()
                .error(
                    clap::error::ErrorKind::InvalidValue,
                    format!("no scenario '{unknown}'; there are: {known}"),
                )
                .exit();
        }
        options
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(match self.api {
            Api::Handle => "gpucache",
            Api::Raw => "gpucache-raw",
        })
    }

    pub(crate) fn rep_time(&self) -> Duration {
        Duration::from_secs_f64(self.rep_ms / 1e3)
    }

    pub(crate) fn thread_time(&self) -> Duration {
        Duration::from_secs_f64(self.thread_ms / 1e3)
    }

    pub(crate) fn wants(&self, scenario: &str) -> bool {
        match self.scen.as_slice() {
            [] => CONTRACT.contains(&scenario),
            named => named.iter().any(|s| s == scenario),
        }
    }
}

const CONTRACT: [&str; 6] = ["pair", "depth", "live", "cold", "replay", "threads"];
const OWN: [&str; 5] = ["locks", "churn", "free_blocks", "record_stream", "free_elsewhere"];
