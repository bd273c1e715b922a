//! Managed memory as an explicit choice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{Device, Stream};
use crate::engine::Upstream;

/// Segments of managed memory (`cuMemAllocManaged`) for a pool: the last remedy where a program needs more than the
/// GPU has. `Send + Sync`.
///
/// What it costs, and why it is never the default:
///
/// * Pages that are not on the GPU are fetched when a kernel touches them. A page fault takes tens of microseconds, and
///   what comes moves over the bus to the host, at a small fraction of the GPU's own bandwidth. A working set larger
///   than the GPU's memory is moved again in every step: expect such steps to take many times longer.
/// * What is moved out lies in host memory; other programs lack it there.
/// * It takes part of the GPU's memory whenever it is touched, so that other allocations, also of other pools and
///   libraries, can run out.
/// * It cannot be shared with other processes, and is never expandable [spec 16.3].
///
/// Give it to large data that is rarely used (optimiser state, embeddings) and leave the rest in ordinary pools. A
/// request beyond the limit is out of memory, as beyond a GPU's end.
///
/// ```no_run
/// use gpucache::{Allocator, ManagedUpstream};
/// use std::sync::Arc;
///
/// let allocator = Allocator::cuda(0)?;
/// let managed = ManagedUpstream::new(Arc::clone(allocator.device()), 64 << 30);
/// let pool = allocator.create_pool_with(Arc::new(managed));
/// let state = pool.scope(|| allocator.alloc(1 << 30))??;
/// # Ok::<(), gpucache::Error>(())
/// ```
#[derive(Debug)]
pub struct ManagedUpstream {
    device: Arc<dyn Device>,
    limit: u64,
    held: AtomicU64,
}

impl ManagedUpstream {
    /// At most `limit` bytes at any time. The allocator's own cap ([`set_per_process_memory_fraction`]) counts them
    /// as well.
    ///
    /// [`set_per_process_memory_fraction`]: crate::Allocator::set_per_process_memory_fraction
    pub fn new(device: Arc<dyn Device>, limit: u64) -> Self {
        ManagedUpstream { device, limit, held: AtomicU64::new(0) }
    }

    /// Bytes that the driver has given and not taken back.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl Upstream for ManagedUpstream {
    fn alloc(&self, bytes: u64, _stream: Stream) -> Option<u64> {
        let fits = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        let address = self.device.malloc_managed(bytes).ok();
        if address.is_none() {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }
        address
    }

    fn free(&self, address: u64, bytes: u64, _stream: Stream) {
        // Where the driver refuses, the memory is lost to this process: it still counts.
        if self.device.free(address).is_ok() {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}
