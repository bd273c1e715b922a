//! The pinned host memory of a replay.

use super::request::Request;
use crate::allocator::PinnedAllocator;
use crate::error::Result;

/// Plays `ha hf hempty hp hP` and reads the statistics that `host` notes are compared with.
#[derive(Debug)]
pub(crate) struct HostSide {
    pinned: PinnedAllocator,
    /// By number of the `ha` line; 0: freed.
    addresses: Vec<u64>,
}

impl HostSide {
    pub(crate) fn new(pinned: PinnedAllocator) -> Self {
        HostSide { pinned, addresses: Vec::new() }
    }

    /// Plays one of the five requests.
    pub(crate) fn play(&mut self, request: &Request) -> Result<()> {
        match *request {
            Request::HostAlloc { size } => {
                let bytes = usize::try_from(size).unwrap_or(usize::MAX);
                let answer = self.pinned.host_alloc_raw(bytes);
                // Counts also when it fails, as `a` lines do.
                self.addresses.push(*answer.as_ref().unwrap_or(&0));
                answer?;
            }
            Request::HostFree { back } => {
                let number = self.addresses.len().checked_sub(back as usize);
                if let Some(address) = number.and_then(|n| self.addresses.get_mut(n)) {
                    self.pinned.host_free_raw(std::mem::take(address))?;
                }
            }
            Request::HostEmptyCache => {
                // The recorder lets all blocks go first.
                for address in &mut self.addresses {
                    self.pinned.host_free_raw(std::mem::take(address))?;
                }
                self.pinned.host_empty_cache()?;
            }
            Request::HostResetPeak => self.pinned.reset_peak_host_memory_stats(),
            Request::HostResetAccumulated => self.pinned.reset_accumulated_host_memory_stats(),
            _ => {}
        }
        Ok(())
    }

    /// The statistics by their flat names.
    pub(crate) fn stats(&self) -> Vec<(String, i64)> {
        self.pinned.host_memory_stats().to_map().into_iter().collect()
    }
}
