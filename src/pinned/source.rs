//! Memory from the system and back: the driver's allocation, registered memory, the reserve segment [spec 17.1].

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::time::Instant;

use parking_lot::Mutex;

use super::block::{Block, Origin};
use super::counters::Counters;
use crate::config::PinnedConfig;
use crate::device::{Device, DeviceError, DeviceResult};

/// Pages that are touched, steps in the reserve segment, alignment of ordinary memory.
const PAGE: u64 = 4096;

/// The one large piece that blocks are cut from until it is used up.
#[derive(Debug, Default)]
enum Reserve {
    #[default]
    None,
    /// Some thread is at the driver for it, or it could not be had.
    Absent,
    Segment {
        memory: Block,
        used: u64,
        /// Blocks cut from it that were not forgotten.
        blocks: u64,
    },
}

/// Where blocks come from.
#[derive(Debug, Default)]
pub(super) struct Source {
    reserve: Mutex<Reserve>,
}

impl Source {
    /// A new block of `size` bytes. No lock is held over a driver call.
    pub(super) fn obtain(
        &self,
        device: &dyn Device,
        size: u64,
        options: &PinnedConfig,
        counters: &Counters,
    ) -> DeviceResult<Block> {
        if options.reserve_segment_size > 0 {
            self.ensure_reserve(device, options, counters);
            if let Some(block) = self.cut(size) {
                return Ok(block);
            }
        }
        system_alloc(device, size, options, counters)
    }

    /// Creates the reserve segment at the first need. If that fails, blocks come from the system as without one.
    fn ensure_reserve(&self, device: &dyn Device, options: &PinnedConfig, counters: &Counters) {
        let mut reserve = self.reserve.lock();
        if !matches!(*reserve, Reserve::None) {
            return;
        }
        *reserve = Reserve::Absent;
        drop(reserve);
        match system_alloc(device, options.reserve_segment_size, options, counters) {
            Ok(memory) => *self.reserve.lock() = Reserve::Segment { memory, used: 0, blocks: 0 },
            Err(error) => eprintln!("gpucache: pinned_reserve_segment_size_mb has no effect: {error}"),
        }
    }

    fn cut(&self, size: u64) -> Option<Block> {
        let mut reserve = self.reserve.lock();
        let Reserve::Segment { memory, used, blocks } = &mut *reserve else { return None };
        let end =
            size.checked_next_multiple_of(PAGE)?.checked_add(*used).filter(|&end| end <= memory.size)?;
        let address = memory.address + *used;
        *used = end;
        *blocks += 1;
        Some(Block { address, size, origin: Origin::Reserve })
    }

    /// Gives a block back. One of the reserve segment is forgotten without a call [spec 17.4]; when all are, the
    /// segment is cut anew, which PyTorch never does (`lose`).
    pub(super) fn release(
        &self,
        device: &dyn Device,
        block: Block,
        counters: &Counters,
        lose: bool,
    ) -> DeviceResult<()> {
        if block.origin != Origin::Reserve {
            return system_free(device, block, counters);
        }
        if let Reserve::Segment { used, blocks, .. } = &mut *self.reserve.lock() {
            *blocks -= 1;
            if *blocks == 0 && !lose {
                *used = 0;
            }
        }
        Ok(())
    }

    /// Takes the reserve segment out, at the allocator's end.
    pub(super) fn take_reserve(&self) -> Option<Block> {
        match std::mem::take(&mut *self.reserve.lock()) {
            Reserve::Segment { memory, .. } => Some(memory),
            Reserve::None | Reserve::Absent => None,
        }
    }
}

/// Page-locked memory from the system.
fn system_alloc(
    device: &dyn Device,
    size: u64,
    options: &PinnedConfig,
    counters: &Counters,
) -> DeviceResult<Block> {
    let start = Instant::now();
    let block = if options.use_host_register {
        register(device, size, options.num_register_threads)?
    } else {
        Block { address: device.host_malloc(size)?, size, origin: Origin::Driver }
    };
    counters.alloc_took(start.elapsed());
    Ok(block)
}

/// Gives memory back to the system.
pub(super) fn system_free(device: &dyn Device, block: Block, counters: &Counters) -> DeviceResult<()> {
    let start = Instant::now();
    let registered = block.origin == Origin::Registered;
    let outcome =
        if registered { device.host_unregister(block.address) } else { device.host_free(block.address) };
    match outcome {
        // A driver that is gone may still have the pages locked: better lost than reused.
        Err(DeviceError::ShuttingDown { .. }) => return Ok(()),
        Err(error) => return Err(error),
        Ok(()) => {}
    }
    if registered {
        deallocate(block.address, block.size);
    }
    counters.free_took(start.elapsed());
    Ok(())
}

/// Ordinary memory, its pages touched, then page-locked.
fn register(device: &dyn Device, size: u64, threads: u32) -> DeviceResult<Block> {
    let no_memory = || DeviceError::OutOfMemory { call: "malloc" };
    let layout = layout(size).filter(|layout| layout.size() > 0).ok_or_else(no_memory)?;
    // SAFETY: the layout was checked, its size is not zero. Zeroed, so that safe code may read it.
    let pointer = unsafe { alloc_zeroed(layout) };
    if pointer.is_null() {
        return Err(no_memory());
    }
    let address = pointer.expose_provenance() as u64;
    touch(address, size, u64::from(threads));
    if let Err(error) = device.host_register(address, size) {
        deallocate(address, size);
        return Err(error);
    }
    Ok(Block { address, size, origin: Origin::Registered })
}

/// Makes the system find a page for each 4 KiB, with several threads where that pays.
fn touch(address: u64, size: u64, threads: u64) {
    if threads <= 1 || size < PAGE * threads {
        touch_pages(address, size);
        return;
    }
    let pages = size.div_ceil(PAGE).div_ceil(threads);
    std::thread::scope(|scope| {
        for part in 0..threads {
            let from = (part * pages * PAGE).min(size);
            let bytes = (pages * PAGE).min(size - from);
            let work = move || touch_pages(address + from, bytes);
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                work();
            }
        }
    });
}

fn touch_pages(address: u64, bytes: u64) {
    for offset in (0..bytes).step_by(PAGE as usize) {
        let page: *mut u8 = std::ptr::with_exposed_provenance_mut((address + offset) as usize);
        // SAFETY: inside fresh memory of `register`, which nobody else knows yet; each thread has its own pages.
        // Volatile, because a write of the 0 that is there already could be left out.
        unsafe { page.write_volatile(0) };
    }
}

fn layout(size: u64) -> Option<Layout> {
    Layout::from_size_align(usize::try_from(size).ok()?, PAGE as usize).ok()
}

fn deallocate(address: u64, size: u64) {
    let Some(layout) = layout(size) else { return };
    // SAFETY: address and size are those of a block that `register` allocated with the same layout; a block is
    // given back once.
    unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address as usize), layout) };
}
