//! Plays a request stream on an allocator.

use std::collections::{BTreeMap, HashMap};
use std::thread::{self, ThreadId};

use super::gpu::{StreamControl, deferred_stream};
use super::header::Header;
use super::host::HostSide;
use super::observation::{Observation, Outcome};
use super::request::Request;
use crate::Allocator;
use crate::allocator::MemPool;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::observe::history::TraceAction;
use crate::observe::snapshot::PoolId;

/// The answer to one request.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) outcome: Outcome,
    /// The error behind [`Outcome::OutOfMemory`] or [`Outcome::Error`].
    pub(crate) error: Option<Error>,
}

/// Drives one allocator through a recording, by its public API.
#[derive(Debug)]
pub(crate) struct Player {
    allocator: Allocator,
    streams: Vec<Stream>,
    control: StreamControl,
    /// By allocation number; `None`: failed or freed.
    addresses: Vec<Option<u64>>,
    /// For a delayed free: its rank among all completions.
    completion_ranks: HashMap<u64, u64>,
    deferred: HashMap<u64, Stream>,
    pools: BTreeMap<u32, MemPool>,
    graphs: BTreeMap<u32, PoolId>,
    /// The last pool id given to a graph; an id is never used twice.
    last_graph_id: u64,
    /// Small allocations that PyTorch makes for its graphs.
    graph_extras: Vec<u64>,
    /// Old recordings do not say on the `pool+` line that the pool is one whose blocks are never split.
    pools_are_no_split: bool,
    host: HostSide,
}

impl Player {
    pub(crate) fn new(allocator: Allocator, header: &Header, control: StreamControl) -> Self {
        let host = HostSide::new(allocator.pinned());
        Player {
            allocator,
            streams: header.stream_handles(),
            control,
            addresses: Vec::new(),
            completion_ranks: HashMap::new(),
            deferred: HashMap::new(),
            pools: BTreeMap::new(),
            graphs: BTreeMap::new(),
            last_graph_id: 0,
            graph_extras: Vec::new(),
            pools_are_no_split: header.case.contains("no_split"),
            host,
        }
    }

    /// Looks ahead for the completions of delayed frees, so that those noticed by one request complete in the
    /// recorded order.
    pub(crate) fn plan(&mut self, requests: &[Request]) {
        let mut allocations = 0;
        for request in requests {
            match request {
                Request::Alloc { .. } => allocations += 1,
                Request::Complete { back } => {
                    let rank = self.completion_ranks.len() as u64;
                    self.completion_ranks.insert(allocations - back, rank);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    pub(crate) fn host(&self) -> &HostSide {
        &self.host
    }

    /// Plays one request. `observed` tells what PyTorch did on the side (allocations of its own for graphs).
    pub(crate) fn play(&mut self, request: &Request, observed: Option<&Observation>) -> Played {
        let done = match *request {
            Request::Alloc { size, stream } => return self.alloc(size, stream),
            Request::Free { back } | Request::FreeIfLive { back } => self.free(back),
            Request::RecordStream { back, stream } => self.record_stream(back, stream),
            Request::DeferredFree { back } => self.deferred_free(back),
            Request::Complete { back } => {
                self.complete(back);
                Ok(())
            }
            Request::Busy { stream } => {
                self.control.hold(self.stream(stream));
                Ok(())
            }
            Request::Idle => {
                self.control.release_all();
                Ok(())
            }
            Request::EmptyCache => self.allocator.empty_cache().map(drop),
            Request::SetFraction(fraction) => self.allocator.set_per_process_memory_fraction(fraction),
            Request::ResetPeak => {
                self.allocator.reset_peak_memory_stats();
                Ok(())
            }
            Request::ResetAccumulated => {
                self.allocator.reset_accumulated_memory_stats();
                Ok(())
            }
            Request::Settings(ref text) => self.allocator.set_allocator_settings(text),
            Request::Iteration(_) => Ok(()),
            Request::PoolBegin { .. } | Request::PoolEnd { .. } | Request::PoolDelete { .. } => {
                self.pool_request(request)
            }
            Request::GraphBegin { .. } | Request::GraphEnd { .. } | Request::GraphDelete { .. } => {
                self.graph_request(request, observed)
            }
            Request::HostAlloc { .. }
            | Request::HostFree { .. }
            | Request::HostEmptyCache
            | Request::HostResetPeak
            | Request::HostResetAccumulated => self.host.play(request),
        };
        match done {
            Ok(()) => Played { outcome: Outcome::None, error: None },
            Err(error) => Played { outcome: Outcome::Error, error: Some(error) },
        }
    }

    /// Frees what the recording left allocated.
    pub(crate) fn clean_up(&mut self) -> Result<()> {
        self.control.release_all();
        let live = std::mem::take(&mut self.addresses).into_iter().flatten();
        live.chain(std::mem::take(&mut self.graph_extras))
            .filter(|address| *address != 0)
            .try_for_each(|address| self.allocator.free_raw(address))
    }

    fn stream(&self, index: u32) -> Stream {
        self.streams.get(index as usize).copied().unwrap_or_default()
    }

    fn number(&self, back: u64) -> u64 {
        (self.addresses.len() as u64).saturating_sub(back)
    }

    /// The address of an allocation, which is no longer remembered.
    fn take(&mut self, back: u64) -> Option<u64> {
        let number = self.number(back);
        self.addresses.get_mut(number as usize)?.take()
    }

    fn alloc(&mut self, size: u64, stream: u32) -> Played {
        let answer = match usize::try_from(size) {
            Ok(bytes) => self.allocator.alloc_raw(bytes, self.stream(stream)),
            Err(_) => Err(Error::TooLarge { requested: size }),
        };
        self.addresses.push(answer.as_ref().ok().copied());
        match answer {
            Ok(address) => Played { outcome: Outcome::Address(address), error: None },
            Err(error) => {
                let outcome = if error.is_out_of_memory() { Outcome::OutOfMemory } else { Outcome::Error };
                Played { outcome, error: Some(error) }
            }
        }
    }

    fn free(&mut self, back: u64) -> Result<()> {
        match self.take(back) {
            // A request of 0 bytes gave no memory.
            None | Some(0) => Ok(()),
            Some(address) => self.allocator.free_raw(address),
        }
    }

    fn record_stream(&mut self, back: u64, stream: u32) -> Result<()> {
        let number = self.number(back) as usize;
        match self.addresses.get(number).copied().flatten() {
            None | Some(0) => Ok(()),
            Some(address) => self.allocator.record_stream_raw(address, self.stream(stream)),
        }
    }

    /// A free whose completion another stream delayed. The recording does not tell which one: each such free
    /// gets a stream of its own, busy until the recorded completion. On a real GPU it is a plain free.
    fn deferred_free(&mut self, back: u64) -> Result<()> {
        let number = self.number(back);
        let Some(address) = self.take(back).filter(|a| *a != 0) else { return Ok(()) };
        if self.control.can_hold() {
            let never = self.completion_ranks.len() as u64 + number;
            let rank = self.completion_ranks.get(&number).copied().unwrap_or(never);
            let stream = deferred_stream(rank);
            self.control.hold(stream);
            self.deferred.insert(number, stream);
            self.allocator.record_stream_raw(address, stream)?;
        }
        self.allocator.free_raw(address)
    }

    fn complete(&mut self, back: u64) {
        let number = self.number(back);
        if let Some(stream) = self.deferred.remove(&number) {
            self.control.release(stream);
        }
    }

    /// What `torch.cuda.use_mem_pool` and the pool's destruction do [spec 14.2].
    fn pool_request(&mut self, request: &Request) -> Result<()> {
        match *request {
            Request::PoolBegin { pool, use_on_oom, no_split } => {
                let allocator = &self.allocator;
                let entry = self.pools.entry(pool).or_insert_with(|| allocator.create_pool());
                if use_on_oom {
                    entry.set_use_on_oom(true);
                }
                if no_split || self.pools_are_no_split {
                    entry.set_no_split();
                }
                let caller: ThreadId = thread::current().id();
                let accepts = Box::new(move |_| thread::current().id() == caller);
                self.allocator.begin_allocate_to_pool(entry.id(), accepts)
            }
            Request::PoolEnd { pool } => {
                let id = self.pools.get(&pool).map(MemPool::id).ok_or_else(|| unknown("pool", pool))?;
                self.allocator.end_allocate_to_pool(id)?;
                self.allocator.release_pool(id)
            }
            Request::PoolDelete { pool } => {
                self.pools.remove(&pool).map(drop).ok_or_else(|| unknown("pool", pool))
            }
            _ => Ok(()),
        }
    }

    /// What a graph's capture and destruction do [spec 14.5].
    fn graph_request(&mut self, request: &Request, observed: Option<&Observation>) -> Result<()> {
        let events = observed.map_or(&[][..], |o| &o.events);
        match *request {
            Request::GraphBegin { graph, stream } => {
                for event in events.iter().filter(|e| e.action == TraceAction::Alloc) {
                    let on = self.stream(u32::try_from(event.stream).unwrap_or(u32::MAX));
                    self.graph_extras.push(self.allocator.alloc_raw(event.size as usize, on)?);
                }
                self.last_graph_id += 1;
                let id = PoolId(self.last_graph_id, 0);
                self.graphs.insert(graph, id);
                let captured = self.stream(stream);
                self.allocator.begin_allocate_to_pool(id, Box::new(move |s| s == captured))
            }
            Request::GraphEnd { graph } => {
                let id = self.graphs.get(&graph).copied().ok_or_else(|| unknown("graph", graph))?;
                self.allocator.end_allocate_to_pool(id)
            }
            Request::GraphDelete { graph } => {
                let id = self.graphs.remove(&graph).ok_or_else(|| unknown("graph", graph))?;
                if events.iter().any(|e| e.action == TraceAction::FreeRequested) {
                    for address in std::mem::take(&mut self.graph_extras) {
                        self.allocator.free_raw(address)?;
                    }
                }
                self.allocator.release_pool(id)
            }
            _ => Ok(()),
        }
    }
}

fn unknown(what: &str, number: u32) -> Error {
    Error::Pool(format!("the recording uses {what} {number} before it exists"))
}
