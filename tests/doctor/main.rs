//! The allocator explains itself: causes, reconciliation with nvidia-smi, leaks.

mod causes;
mod failing;
mod leaks;
mod overview;
mod page;
mod reconcile;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const GIB: usize = 1 << 30;
