//! Sizes, size classes, and the free lists of one pool [spec 17.1].

use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;

use super::events::Pending;
use crate::config::PinnedConfig;
use crate::error::{Error, Result};

/// Class of the largest request, 2^60 bytes.
const LAST_CLASS: usize = 60;
/// Number of size classes.
pub(super) const CLASSES: usize = LAST_CLASS + 1;

/// Where a block's memory came from, which is how it goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The driver's allocation of page-locked memory.
    Driver,
    /// Ordinary memory that was registered.
    Registered,
    /// Cut from the reserve segment.
    Reserve,
}

/// A piece of page-locked memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) origin: Origin,
}

/// The size class: the binary logarithm, rounded up.
pub(super) fn class_of(size: u64) -> usize {
    let bits = u64::BITS - size.saturating_sub(1).leading_zeros();
    (bits as usize).min(LAST_CLASS)
}

/// The block size for a request of at least one byte.
pub(super) fn rounded(bytes: u64, options: &PinnedConfig) -> Result<u64> {
    if bytes > 1 << LAST_CLASS {
        return Err(Error::HostTooLarge { requested: bytes });
    }
    let above = |limit: Option<u64>| limit.is_some_and(|limit| bytes > limit);
    let exact = above(options.max_round_threshold) || above(options.max_cached_size);
    Ok(if exact { bytes } else { bytes.next_power_of_two() })
}

/// Blocks that serve each other's requests: the default pool, or a private one.
#[derive(Debug)]
pub(super) struct Pool {
    idle: [Mutex<Vec<Block>>; CLASSES],
    pub(super) pending: Mutex<Pending>,
    /// Events and blocks in `pending`, so that nobody needs the lock to see that there are none.
    pub(super) waiting: AtomicUsize,
    /// Blocks that it owns, whoever holds them.
    pub(super) blocks: AtomicUsize,
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            idle: std::array::from_fn(|_| Mutex::default()),
            pending: Mutex::default(),
            waiting: AtomicUsize::new(0),
            blocks: AtomicUsize::new(0),
        }
    }
}

impl Pool {
    /// An idle block for a request: the one freed last. Blocks whose size was not rounded share the list of their
    /// class; among them the smallest that suffices is taken.
    pub(super) fn take(&self, size: u64) -> Option<Block> {
        let mut idle = self.idle[class_of(size)].lock();
        if idle.last()?.size == size {
            return idle.pop();
        }
        let fitting = idle.iter().enumerate().rev().filter(|(_, block)| block.size >= size);
        let (index, _) = fitting.min_by_key(|(_, block)| block.size)?;
        Some(idle.remove(index))
    }

    /// Makes a block ready to be handed out.
    pub(super) fn put(&self, block: Block) {
        self.idle[class_of(block.size)].lock().push(block);
    }

    /// Takes all idle blocks of a class.
    pub(super) fn drain(&self, class: usize) -> Vec<Block> {
        std::mem::take(&mut *self.idle[class].lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_specification() {
        let options = PinnedConfig::default();
        for (bytes, size, class) in [
            (1, 1, 0),
            (2, 2, 1),
            (3, 4, 2),
            (1000, 1024, 10),
            (4096, 4096, 12),
            (5000, 8192, 13),
            (5 << 20, 8 << 20, 23),
            (1 << 60, 1 << 60, 60),
        ] {
            assert_eq!(rounded(bytes, &options).unwrap(), size, "{bytes}");
            assert_eq!(class_of(size), class, "{bytes}");
        }
        for bytes in [(1 << 60) + 1, u64::MAX] {
            assert!(rounded(bytes, &options).unwrap_err().is_out_of_memory());
        }
    }

    #[test]
    fn large_requests_are_not_rounded_above_a_threshold() {
        let round = PinnedConfig { max_round_threshold: Some(4 << 20), ..PinnedConfig::default() };
        let cached = PinnedConfig { max_cached_size: Some(4 << 20), ..PinnedConfig::default() };
        for options in [round, cached] {
            assert_eq!(rounded(4 << 20, &options).unwrap(), 4 << 20);
            assert_eq!(rounded((4 << 20) + 1, &options).unwrap(), (4 << 20) + 1);
            assert_eq!(rounded(3 << 20, &options).unwrap(), 4 << 20);
        }
    }

    #[test]
    fn the_newest_block_comes_first_and_a_small_one_never() {
        let pool = Pool::default();
        let block = |address, size| Block { address, size, origin: Origin::Driver };
        pool.put(block(1, 8));
        pool.put(block(2, 8));
        pool.put(block(3, 5));
        assert_eq!(pool.take(6).unwrap().address, 2);
        assert_eq!(pool.take(5).unwrap().address, 3);
        assert_eq!(pool.take(5).unwrap().address, 1);
        assert!(pool.take(5).is_none());
        assert!(pool.take(16).is_none());
    }
}
