//! What every step of a device's engine may touch while it holds a shard's lock.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::bank::Bank;
use super::fork::Birth;
use super::scope::Scopes;
use super::trace::Sequence;

/// Leaf state: its locks and atomics are taken last.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The process that the allocator was made in.
    pub(crate) birth: Birth,
    /// Peaks and credit.
    pub(crate) bank: Bank,
    /// Searches of the default large pool; moves only while garbage collection is armed [spec 3.2].
    pub(crate) large_searches: AtomicU64,
    /// Order of history entries.
    pub(crate) sequence: Arc<Sequence>,
    /// Tagged accounting.
    pub(crate) scopes: Scopes,
}
