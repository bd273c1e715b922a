//! The allocator explains itself: causes, reconciliation with nvidia-smi, leaks.
#![allow(clippy::unwrap_used)] // not only in functions that are tests

mod causes;
#[cfg(feature = "cli")]
mod command;
mod failing;
mod leaks;
mod overview;
mod page;
mod reconcile;
mod threads;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const GIB: usize = 1 << 30;
