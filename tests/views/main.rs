//! What users read: summaries and messages, snapshots and pictures, the command line.
#![allow(clippy::unwrap_used)] // not only in functions that are tests

#[cfg(feature = "cli")]
mod cli;
#[cfg(all(feature = "cli", feature = "export"))]
mod cli_tools;
#[cfg(feature = "cli")]
mod cli_views;
#[cfg(feature = "import")]
mod files;
mod oom_text;
#[cfg(all(feature = "plot", feature = "import"))]
mod pictures;
#[cfg(feature = "import")]
mod requests;
mod sites;
mod summary;
