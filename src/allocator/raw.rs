//! Address in, address out: for C interfaces and foreign code.

use std::panic::Location;

use super::{Allocation, Allocator};
use crate::device::Stream;
use crate::engine::Place;
use crate::error::{Error, Result};

impl Allocator {
    /// Allocates and returns the address; [`free_raw`](Allocator::free_raw) takes it back. 0 for zero bytes.
    /// Memory that is never freed keeps the allocator's segment alive after the last handle is gone.
    ///
    /// # Errors
    /// As [`alloc_on`](Allocator::alloc_on).
    #[inline]
    #[track_caller]
    pub fn alloc_raw(&self, bytes: usize, stream: Stream) -> Result<u64> {
        let (core, site) = (self.core(), Location::caller());
        let Some((shard, grant)) = core.hit(bytes as u64, stream, site) else {
            return self.alloc_raw_slowly(bytes, stream, site);
        };
        core.note_address(grant.addr, Place { shard: shard.index, block: grant.block });
        Ok(grant.addr)
    }

    #[inline(never)]
    fn alloc_raw_slowly(
        &self,
        bytes: usize,
        stream: Stream,
        site: &'static Location<'static>,
    ) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let core = self.core();
        let (shard, grant) = core.malloc(bytes as u64, stream, 0, site)?;
        core.note_address(grant.addr, Place { shard: shard.index, block: grant.block });
        Ok(grant.addr)
    }

    /// Frees what [`alloc_raw`](Allocator::alloc_raw) gave. Null is a no-op.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`] for an address that is not the start of a block given out by
    /// `alloc_raw` and not freed since; nothing is changed then. [`Error::Device`] if an event for another
    /// stream could not be recorded; the block is kept back until that works.
    #[inline]
    pub fn free_raw(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        if self.own_core()?.free_address(address)? {
            return Ok(());
        }
        Err(self.unknown_address(address))
    }

    /// [`Allocation::record_stream`](crate::Allocation::record_stream) by address. Null is ignored.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`] for an address that `alloc_raw` did not give.
    pub fn record_stream_raw(&self, address: u64, stream: Stream) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        match self.own_core()?.given(address) {
            Some(given) => self.core().record_stream_given(given, stream),
            None => return Err(self.unknown_address(address)),
        }
        Ok(())
    }

    /// Start and size in bytes of the segment that holds an address (the base-allocation query) [spec 19].
    ///
    /// # Errors
    /// [`Error::InvalidPointer`] if no segment of this allocator holds it.
    pub fn base_allocation(&self, address: u64) -> Result<(u64, u64)> {
        let segments = self.own_core()?.segments();
        let holds = |s: &&crate::observe::snapshot::SegmentInfo| {
            (s.address..s.address + s.total_size).contains(&address)
        };
        segments
            .iter()
            .find(holds)
            .map(|s| (s.address, s.total_size))
            .ok_or_else(|| self.unknown_address(address))
    }

    /// Makes a handle of what [`alloc_raw`](Allocator::alloc_raw) gave: it frees the memory when dropped, and
    /// [`free_raw`](Allocator::free_raw) does not know the address any more.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`] for an address that `alloc_raw` did not give, or gave while caching was off.
    pub fn adopt_raw(&self, address: u64) -> Result<Allocation> {
        let Some(given) = self.core().given(address) else { return Err(self.unknown_address(address)) };
        let Some(allocation) = Allocation::adopt(&given) else {
            return Err(Error::InvalidPointer { address, reason: "it was allocated while caching was off" });
        };
        given.take();
        Ok(allocation)
    }

    /// Looks the address up the slow way, to say what is wrong with it.
    #[cold]
    fn unknown_address(&self, address: u64) -> Error {
        use crate::observe::snapshot::BlockState;
        let inside = |start: u64, size: u64| (start..start + size).contains(&address);
        let segments = self.core().segments();
        let block = segments
            .iter()
            .filter(|s| inside(s.address, s.total_size))
            .find_map(|s| s.blocks.iter().find(|b| inside(b.address, b.size)));
        let reason = match block {
            None => "no segment of this allocator holds it",
            Some(b) if b.state != BlockState::ActiveAllocated => "its block was freed already",
            Some(b) if b.address != address => "it is inside a block, not its start",
            Some(_) => "its block belongs to an Allocation, which frees it itself",
        };
        Error::InvalidPointer { address, reason }
    }
}
