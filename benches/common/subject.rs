//! The two ways to use the allocator, behind one trait, so that every scenario runs through both.

use std::hint::black_box;

use gpucache::device::Stream;
use gpucache::{Allocation, Allocator, Result};

use super::must;

/// A way to allocate and to free.
pub(crate) trait Subject: Copy + Send + Sync {
    /// What stands for a live block.
    type Block: Send;

    fn allocator(&self) -> &Allocator;
    fn alloc(&self, bytes: usize, stream: Stream) -> Result<Self::Block>;
    fn free(&self, block: Self::Block);

    /// Allocates and frees at once.
    #[inline]
    fn pair(&self, bytes: usize, stream: Stream) {
        self.free(black_box(must(self.alloc(black_box(bytes), stream))));
    }
}

/// Through [`Allocation`], which frees on drop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handles<'a>(pub(crate) &'a Allocator);

impl Subject for Handles<'_> {
    type Block = Allocation;

    fn allocator(&self) -> &Allocator {
        self.0
    }

    #[inline]
    fn alloc(&self, bytes: usize, stream: Stream) -> Result<Allocation> {
        self.0.alloc_on(bytes, stream)
    }

    #[inline]
    fn free(&self, block: Allocation) {
        drop(block);
    }
}

/// Through bare addresses, as C callers do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses<'a>(pub(crate) &'a Allocator);

impl Subject for Addresses<'_> {
    type Block = u64;

    fn allocator(&self) -> &Allocator {
        self.0
    }

    #[inline]
    fn alloc(&self, bytes: usize, stream: Stream) -> Result<u64> {
        self.0.alloc_raw(bytes, stream)
    }

    #[inline]
    fn free(&self, address: u64) {
        must(self.0.free_raw(address));
    }
}
