//! Blocks in clients' hands, by address.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::block::{Block, Pool};
use crate::device::Stream;
use crate::error::{Error, Result};

/// Tables that share the addresses, so that threads rarely meet.
const TABLES: usize = 16;

/// Streams that use a block.
pub(super) type Uses = SmallVec<[Stream; 2]>;

/// Who gives the block back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Whoever has the address.
    Raw,
    /// A `PinnedBuffer`, when it is dropped.
    Buffer,
}

/// A block that was handed out.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) block: Block,
    pub(super) pool: Arc<Pool>,
    pub(super) owner: Owner,
    /// A graph may use it at every launch: allocated for a capture, or used by a stream under capture.
    pub(super) captured: bool,
    pub(super) uses: Uses,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct LiveBlocks {
    tables: [Mutex<HashMap<u64, Live>>; TABLES],
}

impl LiveBlocks {
    fn table(&self, address: u64) -> &Mutex<HashMap<u64, Live>> {
        // Multiplied by 2^64 divided by the golden ratio: blocks are aligned, so their low bits are equal.
        let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.tables[(mixed >> 60) as usize]
    }

    pub(super) fn insert(&self, live: Live) {
        self.table(live.block.address).lock().insert(live.block.address, live);
    }

    /// Takes a block out, for its owner to give it back.
    pub(super) fn take(&self, address: u64, owner: Owner) -> Result<Live> {
        let mut table = self.table(address).lock();
        let found = table.get(&address).map(|live| live.owner);
        if found == Some(owner)
            && let Some(live) = table.remove(&address)
        {
            return Ok(live);
        }
        drop(table);
        Err(match found {
            Some(_) => invalid(address, "it belongs to a PinnedBuffer, which frees it when it is dropped"),
            None => self.unknown(address),
        })
    }

    /// Notes that a stream uses a block; `captured`: for a graph.
    pub(super) fn record(&self, address: u64, stream: Stream, captured: bool) -> Result<()> {
        let mut table = self.table(address).lock();
        if let Some(live) = table.get_mut(&address) {
            live.captured |= captured;
            if !live.uses.contains(&stream) {
                live.uses.push(stream);
            }
            return Ok(());
        }
        drop(table);
        Err(self.unknown(address))
    }

    /// Whether some block that is out matches.
    pub(super) fn any(&self, mut matches: impl FnMut(&Live) -> bool) -> bool {
        self.tables.iter().any(|table| table.lock().values().any(&mut matches))
    }

    #[cold]
    fn unknown(&self, address: u64) -> Error {
        let inside =
            self.any(|live| (live.block.address..live.block.address + live.block.size).contains(&address));
        let reason = if inside {
            "it is inside a block, not its start"
        } else {
            "no live block of this allocator begins there: freed already, or not from here"
        };
        invalid(address, reason)
    }
}

fn invalid(address: u64, reason: &'static str) -> Error {
    Error::InvalidHostPointer { address, reason }
}
