//! A block in a client's hands.
//!
//! The handle points straight at its shard and block, so that giving it back needs no lookup and no reference
//! count. What keeps the shard alive is told in [`crate::engine`]'s `close`: either some [`Allocator`] handle
//! exists, or the core holds one forgotten count of itself until the last block is back.
//!
//! [`Allocator`]: crate::Allocator

use std::fmt;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::{Event, Stream};
use crate::engine::{Core, Freed, Given, Grant, Locked, Place, Shard};
use crate::error::{Error, Result};
use crate::pool::block::{BlockId, State};

/// Device memory that frees itself when dropped. Bytes; for typed memory see
/// [`TypedAllocation`](crate::TypedAllocation) and [`DeviceBuffer`](crate::DeviceBuffer).
///
/// It may be sent and shared between threads: the handle only names memory. It stays valid when the last
/// [`Allocator`](crate::Allocator) handle goes first.
pub struct Allocation {
    /// Dangling for zero bytes. Never null, so that an `Option` of the handle is not larger.
    shard: NonNull<Shard>,
    /// 0 for zero bytes, and for nothing else.
    address: u64,
    requested: usize,
    block: BlockId,
    generation: u32,
}

const _: () = assert!(size_of::<Option<Allocation>>() == 32);

// SAFETY: the shard is `Sync` (a mutex and plain data) and outlives the handle wherever that goes.
unsafe impl Send for Allocation {}
// SAFETY: all methods that take `&self` only read the handle, or lock the shard.
unsafe impl Sync for Allocation {}

/// An [`Allocation`] taken apart: plain words that can cross a foreign interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocationParts {
    /// Start address; 0 for zero bytes.
    pub address: u64,
    /// Requested bytes.
    pub requested: usize,
    /// Raw handle of the stream.
    pub stream: u64,
    shard: NonNull<Shard>,
    block: BlockId,
    generation: u32,
}

/// The last handle of an allocator goes.
pub(super) fn close(core: &Arc<Core>) {
    let kept = Arc::into_raw(core.clone());
    if !core.close() {
        // SAFETY: `kept` came from `into_raw` just now, and no block is out that could give it back too.
        drop(unsafe { Arc::from_raw(kept) });
    }
}

impl Allocation {
    #[inline]
    pub(crate) fn new(
        core: &Arc<Core>,
        bytes: usize,
        stream: Stream,
        scope: u32,
        site: &'static Location<'static>,
    ) -> Result<Self> {
        let hit = if scope == 0 { core.hit(bytes as u64, stream, site) } else { None };
        let (shard, grant) = match hit {
            Some((shard, grant)) => (NonNull::from(&**shard), grant),
            None => Self::take_slowly(core, bytes, stream, scope, site)?,
        };
        // Both ways end here, so that the handle is put together in registers and written once. What is written in
        // parts and copied at once costs as much as a fifth of a hit.
        Ok(Allocation {
            shard,
            address: grant.addr,
            requested: bytes,
            block: grant.block,
            generation: grant.generation,
        })
    }

    #[inline(never)]
    fn take_slowly(
        core: &Arc<Core>,
        bytes: usize,
        stream: Stream,
        scope: u32,
        site: &'static Location<'static>,
    ) -> Result<(NonNull<Shard>, Grant)> {
        if bytes == 0 {
            return Ok((NonNull::dangling(), Grant { block: BlockId::NONE, generation: 0, addr: 0 }));
        }
        let (shard, grant) = match scope {
            0 => core.malloc(bytes as u64, stream, 0, site)?,
            tag => core.malloc_scoped(bytes as u64, stream, tag, site)?,
        };
        Ok((NonNull::from(&**shard), grant))
    }

    #[inline]
    fn shard(&self) -> Option<&Shard> {
        if self.address == 0 {
            return None;
        }
        // SAFETY: the shard lives as long as its core, and the core as long as a block is out (see the module).
        Some(unsafe { self.shard.as_ref() })
    }

    /// Start address on the device; 0 for zero bytes.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Requested bytes. The block behind it may be larger.
    pub fn len(&self) -> usize {
        self.requested
    }

    /// Whether it has zero bytes.
    pub fn is_empty(&self) -> bool {
        self.requested == 0
    }

    /// The stream that it was allocated for.
    pub fn stream(&self) -> Stream {
        self.shard().map_or(Stream::DEFAULT, |s| s.stream)
    }

    /// Says that work on `stream` uses the memory too: when it is freed, it is not handed out again before that
    /// work is done [spec 6.1]. Call it after queueing the work, or before, but before the drop.
    pub fn record_stream(&self, stream: Stream) {
        if let Some((core, shard)) = self.home()
            && !self.block.is_none()
            && !core.is_forked()
        {
            core.record_stream(shard, self.block, stream);
        }
    }

    /// Keeps the block back, once it is freed, until `event` of this device, which was recorded on `stream`. Whether
    /// the allocator took the event over; it does not for memory that goes past the cache, which a free waits for.
    pub(crate) fn await_event(&self, stream: Stream, event: impl FnOnce() -> Event) -> bool {
        match self.home() {
            Some((core, shard)) if !self.block.is_none() && !core.is_forked() => {
                shard.await_event(self.block, stream, event());
                true
            }
            _ => false,
        }
    }

    /// Whether this is a forked child, where neither the block nor the driver may be touched.
    pub(crate) fn is_forked(&self) -> bool {
        self.home().is_some_and(|(core, _)| core.is_forked())
    }

    /// Takes a recorded stream back, for which an event stands now.
    pub(crate) fn forget_stream(&self, stream: Stream) {
        if let Some(shard) = self.shard() {
            shard.forget_stream(self.block, stream);
        }
    }

    /// Where the address lies in memory: launches take arguments by reference.
    pub(crate) fn address_place(&self) -> &u64 {
        &self.address
    }

    /// Frees it now, and tells if the driver failed (a drop cannot).
    ///
    /// # Errors
    /// [`Error::Device`] if an event for another stream could not be recorded; the block is kept back until
    /// that works, and is not lost.
    pub fn free(self) -> Result<()> {
        let outcome = self.shard().map(|shard| give_back(shard, None, self.block, self.address));
        std::mem::forget(self);
        outcome.unwrap_or(Ok(()))
    }

    /// Forgets the handle and leaves the address, for [`Allocator::free_raw`](crate::Allocator::free_raw) of the same
    /// allocator. 0 for zero bytes.
    pub fn into_raw(self) -> u64 {
        if let Some((core, shard)) = self.home() {
            core.note_address(self.address, Place { shard: shard.index, block: self.block });
        }
        let address = self.address;
        std::mem::forget(self);
        address
    }

    /// The handle of a block that was given out by address; the caller takes that from the others.
    pub(super) fn adopt(given: &Given<'_>) -> Option<Self> {
        let live = given.state.slab.get(given.block).filter(|b| b.state == State::Allocated)?;
        Some(Allocation {
            shard: NonNull::from(given.shard),
            address: live.addr,
            requested: live.requested as usize,
            block: given.block,
            generation: live.generation,
        })
    }

    /// Takes it apart without freeing it. Only [`from_parts`](Allocation::from_parts) can free it then.
    pub fn into_parts(self) -> AllocationParts {
        let parts = AllocationParts {
            address: self.address,
            requested: self.requested,
            stream: self.stream().raw(),
            shard: self.shard,
            block: self.block,
            generation: self.generation,
        };
        std::mem::forget(self);
        parts
    }

    /// Puts one together again.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`] if the block is not live any more.
    ///
    /// # Safety
    /// The parts come from [`into_parts`](Allocation::into_parts) of this process, and are used once: two
    /// handles of one block would free it twice, and parts whose block was freed name memory of others.
    pub unsafe fn from_parts(parts: AllocationParts) -> Result<Self> {
        let allocation = Allocation {
            shard: parts.shard,
            address: parts.address,
            requested: parts.requested,
            block: parts.block,
            generation: parts.generation,
        };
        let live = allocation.shard().is_none_or(|s| {
            allocation.block.is_none()
                || s.lock().live_block(allocation.block, allocation.generation).is_some()
        });
        if live {
            return Ok(allocation);
        }
        let address = allocation.address;
        std::mem::forget(allocation);
        Err(Error::InvalidPointer { address, reason: "the parts name a block that is not live" })
    }

    #[inline]
    fn home(&self) -> Option<(&Core, &Shard)> {
        self.shard().map(|shard| (core_of(shard), shard))
    }
}

/// The core of a shard that has a block out.
#[inline]
fn core_of(shard: &Shard) -> &Core {
    // SAFETY: the core outlives its blocks (see the module), so the weak pointer's target is alive.
    unsafe { &*shard.core.as_ptr() }
}

/// Frees a block that is out. Takes words, not the handle, which needs no place in memory then.
#[inline(never)]
fn give_back(shard: &Shard, locked: Option<Locked<'_>>, block: BlockId, address: u64) -> Result<()> {
    let core = core_of(shard);
    core.check_process()?;
    let mut state = locked.unwrap_or_else(|| shard.lock_hot());
    let freed = core.free_locked(&mut state, block);
    let last = state.closing && state.is_done();
    if matches!(freed, Freed::Done) && !last {
        return Ok(());
    }
    if let Freed::UsedBy(stream) = freed {
        // What keeps the core alive is told there.
        match core.free_used_locked(shard, state, block, stream) {
            Ok(outcome) => return Ok(outcome?),
            Err(locked) => state = locked,
        }
    }
    // Still under the lock, so the core is alive: hold it for the rest.
    let Some(alive) = shard.core.upgrade() else { return Ok(()) };
    drop(state);
    let outcome = alive.finish_free(shard, block, address, freed);
    if last && alive.shard_closed() {
        // SAFETY: `close` forgot one count of this core for the blocks that were out; this was the last.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&alive)) };
    }
    Ok(outcome?)
}

impl Drop for Allocation {
    #[inline]
    fn drop(&mut self) {
        let Some(shard) = self.shard() else { return };
        if let Err(locked) = shard.free_hit(self.block) {
            // A failure keeps the block back for another try; `free` is there for those who want to know.
            let _ = give_back(shard, locked, self.block, self.address);
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.requested)
            .field("stream", &self.stream())
            .finish_non_exhaustive()
    }
}
