//! What diagnoses and leak reports need from the engine. Cold, and without a driver call of its own.

use std::collections::BTreeMap;

use super::Core;
use super::shard::Request;
use crate::device::{MemInfo, ProcessMemory, Stream};
use crate::observe::diagnose::{Evidence, StreamWait, Wanted};
use crate::observe::history::Frames;
use crate::observe::leaks::LiveBlock;
use crate::observe::processes::named;
use crate::observe::snapshot::PoolId;
use crate::pool::block::State;

impl Core {
    /// Everything known now; `memory` and `processes` are the device's answers.
    pub(crate) fn evidence(
        &self,
        request: Option<Wanted>,
        memory: Option<MemInfo>,
        processes: Option<&[ProcessMemory]>,
    ) -> Evidence {
        let allowed = self.ledger.lock().allowed_max;
        Evidence {
            device: self.properties.ordinal,
            segments: self.segments(),
            trace: self.history(false),
            request,
            memory,
            allowed,
            processes: processes.map(|all| named(&self.properties, all)),
            waits: self.waits(),
            pool_active: !self.may_release(),
        }
    }

    /// A request, as the diagnosis wants it.
    pub(super) fn wanted(&self, request: &Request, segment_size: u64, stream: Stream) -> Wanted {
        Wanted {
            bytes: request.bytes,
            rounded: request.rounded,
            segment_size,
            stream: stream.raw(),
            pool: self.pools.id_of(request.pool),
            kind: request.kind,
            fails: Some(true),
        }
    }

    /// The same for a request that was not made.
    pub(crate) fn wanted_by(&self, bytes: u64, stream: Stream) -> Wanted {
        let route =
            if self.any_pool_active() { self.route(stream) } else { super::private::Route::default() };
        let state = self.shard(stream).lock();
        let site = std::panic::Location::caller();
        let request = state.request(bytes, route, 0, site);
        let segment_size = state.rules.segment_size(request.rounded);
        drop(state);
        self.wanted(&request, segment_size, stream)
    }

    /// Freed blocks by the stream that they wait for. A block that waits for several is counted for each.
    fn waits(&self) -> Vec<StreamWait> {
        let mut sums: BTreeMap<Option<u64>, (u64, u64)> = BTreeMap::new();
        for (stream, block) in self.waiting_blocks() {
            let bytes = block.shard.lock().slab.get(block.block).map_or(0, |b| b.size);
            let sum = sums.entry(stream.map(Stream::raw)).or_default();
            *sum = (sum.0 + 1, sum.1 + bytes);
        }
        sums.into_iter().map(|(stream, (blocks, bytes))| StreamWait { stream, blocks, bytes }).collect()
    }

    /// Blocks in clients' hands, stream by stream, without ages.
    pub(crate) fn live_blocks(&self) -> Vec<LiveBlock> {
        let mut blocks = Vec::new();
        let mut pools: BTreeMap<u32, PoolId> = BTreeMap::new();
        for shard in self.shards.by_stream() {
            let state = shard.lock();
            let stream = shard.stream.raw();
            let live = state.slab.iter().filter(|(_, b)| b.state == State::Allocated);
            blocks.extend(live.map(|(id, b)| LiveBlock {
                address: b.addr,
                size: b.size,
                requested: b.requested,
                stream,
                pool: *pools.entry(b.pool).or_insert_with(|| self.pools.id_of(b.pool)),
                frames: b.site.map_or(Frames::None, Frames::Site),
                age: None,
                life: (stream, id.0, b.generation),
            }));
        }
        blocks
    }
}
