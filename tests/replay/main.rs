//! Recordings: the files, and their replay.
#![cfg(feature = "replay")]
#![allow(clippy::unwrap_used)] // not only in functions that are tests

mod device;
mod format;
mod golden;
mod verify;
