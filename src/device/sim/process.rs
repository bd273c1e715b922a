//! One process on the simulated GPU: its memory, streams and books.

use super::capture::Captures;
use super::clock::Clock;
use super::content::Content;
use super::faults::{Fault, Faults, Outcome, Refusal, code};
use super::host::Host;
use super::log::{Log, SimCall};
use super::memory::{AddressSpace, Physical};
use super::streams::{Kernel, Streams};
use super::vmm::Vmm;
use crate::device::{DeviceResult, Event, HandleType, PhysicalHandle, Stream};

/// Everything that belongs to one process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) index: usize,
    pub(super) ordinal: u32,
    /// Whether `free` waits for the device, as `cuMemFree` does.
    pub(super) free_waits: bool,
    pub(super) memory: AddressSpace,
    pub(super) vmm: Vmm,
    pub(super) host: Host,
    pub(super) streams: Streams,
    pub(super) captures: Captures,
    pub(super) content: Content,
    pub(super) faults: Faults,
    pub(super) clock: Clock,
    pub(super) log: Log,
    pub(super) misuses: Vec<String>,
    pub(super) mismatches: Vec<String>,
}

impl Process {
    /// How many bytes a call concerns, for its cost.
    pub(super) fn bytes_of(&self, call: SimCall) -> u64 {
        match call {
            SimCall::Malloc { bytes }
            | SimCall::MemCreate { bytes, .. }
            | SimCall::MemMap { bytes, .. }
            | SimCall::MemUnmap { bytes, .. }
            | SimCall::MemSetAccess { bytes, .. }
            | SimCall::HostMalloc { bytes }
            | SimCall::HostRegister { bytes, .. } => bytes,
            SimCall::Free { address } => self.memory.size_at(address).unwrap_or(0),
            SimCall::MemRelease { handle } => self.vmm.handle_bytes(handle),
            SimCall::HostFree { address } | SimCall::HostUnregister { address } => self.host.size(address),
            _ => 0,
        }
    }

    /// The driver's answer; a broken rule goes into the book of misuses.
    pub(super) fn answer<T>(&mut self, call: &'static str, outcome: Outcome<T>) -> DeviceResult<T> {
        outcome.map_err(|refusal| match refusal {
            Refusal::Plain(fault) => fault.error(call),
            Refusal::Misuse(fault, what) => {
                self.misuses.push(format!("{call}: {what}"));
                fault.error(call)
            }
        })
    }

    pub(super) fn malloc(&mut self, bytes: u64, physical: &mut Physical) -> Outcome<u64> {
        if bytes == 0 {
            return Err(Refusal::misuse(code::INVALID_VALUE, "0 bytes"));
        }
        physical.take(self.index, bytes)?;
        self.memory.take(bytes).inspect_err(|_| physical.give_back(self.index, bytes))
    }

    pub(super) fn free(&mut self, address: u64, physical: &mut Physical) -> Outcome<()> {
        if self.memory.size_at(address).is_none() {
            let what = match self.memory.around(address) {
                Some((start, _)) => format!("{address:#x} lies inside the allocation at {start:#x}"),
                None => format!("{address:#x} is not live (freed twice, or foreign)"),
            };
            return Err(Refusal::misuse(code::INVALID_VALUE, what));
        }
        if self.free_waits {
            let ran = self.streams.synchronize_device()?;
            self.run(ran);
        }
        if let Some(bytes) = self.memory.give_back(address) {
            physical.give_back(self.index, bytes);
            self.content.erase((0, address), bytes);
        }
        Ok(())
    }

    pub(super) fn event_record(&mut self, event: Event, stream: Stream) -> Outcome<()> {
        let captured = if self.captures.none() { None } else { self.captures.record(stream) };
        self.streams.record(event, stream, captured)
    }

    pub(super) fn event_synchronize(&mut self, event: Event) -> Outcome<()> {
        let ran = self.streams.synchronize_event(event)?;
        self.run(ran);
        Ok(())
    }

    pub(super) fn stream_wait_event(&mut self, stream: Stream, event: Event) -> Outcome<()> {
        self.streams.check(stream)?;
        let captured = self.streams.captured(event)?;
        if self.captures.wait(stream, captured)? {
            return Ok(());
        }
        self.streams.wait_event(stream, event)
    }

    pub(super) fn stream_synchronize(&mut self, stream: Stream) -> Outcome<()> {
        self.captures.forbid(Some(stream))?;
        // Allowed, and an error: see the trait.
        if self.streams.is_destroyed(stream) {
            return Err(Fault::Driver(code::INVALID_HANDLE).into());
        }
        let ran = self.streams.synchronize_stream(stream)?;
        self.run(ran);
        Ok(())
    }

    pub(super) fn device_synchronize(&mut self) -> Outcome<()> {
        self.captures.forbid(None)?;
        let ran = self.streams.synchronize_device()?;
        self.run(ran);
        Ok(())
    }

    pub(super) fn mem_create(
        &mut self,
        bytes: u64,
        kind: HandleType,
        physical: &mut Physical,
    ) -> Outcome<PhysicalHandle> {
        self.vmm.create(bytes, kind, physical, self.index)
    }

    pub(super) fn mem_release(&mut self, handle: PhysicalHandle, physical: &mut Physical) -> Outcome<()> {
        let bytes = self.vmm.handle_bytes(handle);
        if self.vmm.release(handle, physical, self.index)? {
            self.content.erase((handle.0, 0), bytes);
        }
        Ok(())
    }

    pub(super) fn mem_unmap(&mut self, address: u64, bytes: u64, physical: &mut Physical) -> Outcome<()> {
        // Nothing that was mapped is longer than its handle, so erasing to the end of the piece is enough.
        if let Some(dead) = self.vmm.unmap(address, bytes, physical, self.index)? {
            self.content.erase((dead.0, 0), u64::MAX);
        }
        Ok(())
    }

    /// Launches a kernel that touches memory; under capture it becomes a node and touches nothing.
    pub(super) fn launch(&mut self, kernel: Kernel) {
        if let Err(Refusal::Misuse(_, what)) = self.streams.check(kernel.stream) {
            self.misuses.push(format!("cuLaunchKernel: {what}"));
        } else if self.captures.launch(kernel.stream).is_none() {
            let ran = self.streams.launch(kernel);
            self.run(ran);
        }
    }

    /// Lets kernels whose turn has come touch memory.
    pub(super) fn run(&mut self, kernels: Vec<Kernel>) {
        for kernel in kernels {
            self.touch(&kernel);
        }
    }

    fn touch(&mut self, kernel: &Kernel) {
        let &Kernel { stream, address, bytes, value, expects } = kernel;
        let mut done = 0;
        while done < bytes {
            let at = address + done;
            let Some((place, room)) = self.place(at) else {
                self.misuses.push(format!("kernel on {stream:?}: illegal address {at:#x}"));
                return;
            };
            let step = room.min(bytes - done);
            if expects {
                let (found, until) = self.content.read(place, place.1 + step);
                if found != Some(value) {
                    self.mismatches.push(format!("{stream:?} at {at:#x}: expected {value}, found {found:?}"));
                    return;
                }
                done += until - place.1;
            } else {
                self.content.write(place, step, value);
                done += step;
            }
        }
    }

    /// Where an address lies, and the bytes from there on that lie in one piece.
    fn place(&self, address: u64) -> Option<((u64, u64), u64)> {
        if let Some((start, bytes)) = self.memory.around(address) {
            return Some(((0, address), start + bytes - address));
        }
        let (handle, offset, room) = self.vmm.translate(address, self.ordinal)?;
        Some(((handle.0, offset), room))
    }

    pub(super) fn read_now(&self, address: u64) -> Option<u64> {
        let (place, room) = self.place(address)?;
        self.content.read(place, place.1 + room).0
    }

    pub(super) fn leaks(&self) -> Vec<String> {
        let memory = self.memory.live().map(|(at, len)| format!("device memory {at:#x}+{len}"));
        let events = self.streams.live_events().map(|e| format!("event {}", e.0));
        memory.chain(self.vmm.leaks()).chain(events).chain(self.host.leaks()).collect()
    }
}
