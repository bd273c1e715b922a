//! The driver's side of the simulated GPU: [`Device`].

use std::time::Duration;

use super::SimDevice;
use super::faults::Outcome;
use super::log::{Answer, SimCall};
use super::memory::Physical;
use super::process::Process;
use crate::device::{
    CaptureId, Device, DeviceProperties, DeviceResult, Event, GraphNode, HandleType, MemInfo, NvmlMemory,
    PhysicalHandle, ProcessMemory, Stream,
};

impl SimDevice {
    /// The way of every driver call: count, fail if that is planned, act, pay its time, log.
    fn call<T: Answer>(
        &self,
        call: SimCall,
        act: impl FnOnce(&mut Process, &mut Physical) -> Outcome<T>,
    ) -> DeviceResult<T> {
        let mut state = self.shared.gpu.state.lock();
        let state = &mut *state;
        let process = &mut state.processes[self.shared.index];
        let kind = call.kind();
        process.log.count(kind);
        process.clock.spend(kind, process.bytes_of(call));
        let outcome = match process.faults.check(kind) {
            Ok(()) => act(process, &mut state.physical),
            Err(refusal) => Err(refusal),
        };
        let result = process.answer(kind.name(), outcome);
        process.log.record(call, &result);
        result
    }
}

impl Device for SimDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.shared.properties
    }

    fn malloc(&self, bytes: u64) -> DeviceResult<u64> {
        self.call(SimCall::Malloc { bytes }, |p, physical| p.malloc(bytes, physical))
    }

    fn free(&self, address: u64) -> DeviceResult<()> {
        self.call(SimCall::Free { address }, |p, physical| p.free(address, physical))
    }

    fn mem_get_info(&self) -> DeviceResult<MemInfo> {
        self.call(SimCall::MemGetInfo, |_, physical| {
            Ok(MemInfo { free: physical.free(), total: physical.total() })
        })
    }

    fn pending_error(&self) -> DeviceResult<()> {
        self.call(SimCall::PendingError, |p, _| p.faults.pending.take().map_or(Ok(()), |f| Err(f.into())))
    }

    fn event_create(&self) -> DeviceResult<Event> {
        self.call(SimCall::EventCreate, |p, _| Ok(p.streams.create_event()))
    }

    fn event_destroy(&self, event: Event) -> DeviceResult<()> {
        self.call(SimCall::EventDestroy { event }, |p, _| p.streams.destroy_event(event))
    }

    fn event_record(&self, event: Event, stream: Stream) -> DeviceResult<()> {
        self.call(SimCall::EventRecord { event, stream }, |p, _| p.event_record(event, stream))
    }

    fn event_query(&self, event: Event) -> DeviceResult<bool> {
        self.call(SimCall::EventQuery { event }, |p, _| p.streams.query(event))
    }

    fn event_synchronize(&self, event: Event) -> DeviceResult<()> {
        self.call(SimCall::EventSynchronize { event }, |p, _| p.event_synchronize(event))
    }

    fn stream_wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()> {
        self.call(SimCall::StreamWaitEvent { stream, event }, |p, _| p.stream_wait_event(stream, event))
    }

    fn stream_synchronize(&self, stream: Stream) -> DeviceResult<()> {
        self.call(SimCall::StreamSynchronize { stream }, |p, _| p.stream_synchronize(stream))
    }

    fn device_synchronize(&self) -> DeviceResult<()> {
        self.call(SimCall::DeviceSynchronize, |p, _| p.device_synchronize())
    }

    fn capture_status(&self, stream: Stream) -> DeviceResult<Option<CaptureId>> {
        self.call(SimCall::CaptureStatus { stream }, |p, _| Ok(p.captures.status(stream)))
    }

    fn capture_terminals(&self, stream: Stream) -> DeviceResult<Vec<GraphNode>> {
        self.call(SimCall::CaptureTerminals { stream }, |p, _| p.captures.terminals(stream))
    }

    fn graph_node_dependencies(&self, node: GraphNode) -> DeviceResult<Vec<GraphNode>> {
        self.call(SimCall::GraphNodeDependencies { node }, |p, _| p.captures.predecessors(node))
    }

    fn address_reserve(&self, bytes: u64) -> DeviceResult<u64> {
        self.call(SimCall::AddressReserve { bytes }, |p, _| p.vmm.reserve(bytes))
    }

    fn address_free(&self, address: u64, bytes: u64) -> DeviceResult<()> {
        self.call(SimCall::AddressFree { address, bytes }, |p, _| p.vmm.free_reservation(address, bytes))
    }

    fn mem_create(&self, bytes: u64, handle_type: HandleType) -> DeviceResult<PhysicalHandle> {
        self.call(SimCall::MemCreate { bytes, handle_type }, |p, physical| {
            p.mem_create(bytes, handle_type, physical)
        })
    }

    fn mem_release(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        self.call(SimCall::MemRelease { handle }, |p, physical| p.mem_release(handle, physical))
    }

    fn mem_map(&self, address: u64, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.call(SimCall::MemMap { address, bytes, handle }, |p, _| p.vmm.map(address, bytes, handle))
    }

    fn mem_unmap(&self, address: u64, bytes: u64) -> DeviceResult<()> {
        self.call(SimCall::MemUnmap { address, bytes }, |p, physical| p.mem_unmap(address, bytes, physical))
    }

    fn mem_set_access(&self, address: u64, bytes: u64, accessor: u32) -> DeviceResult<()> {
        self.call(SimCall::MemSetAccess { address, bytes, accessor }, |p, _| {
            p.vmm.set_access(address, bytes, accessor)
        })
    }

    fn host_memory_is_real(&self) -> bool {
        self.shared.gpu.state.lock().processes[self.shared.index].host.is_real()
    }

    fn host_malloc(&self, bytes: u64) -> DeviceResult<u64> {
        self.call(SimCall::HostMalloc { bytes }, |p, _| p.host.malloc(bytes))
    }

    fn host_free(&self, address: u64) -> DeviceResult<()> {
        self.call(SimCall::HostFree { address }, |p, _| p.host.free(address))
    }

    fn host_register(&self, address: u64, bytes: u64) -> DeviceResult<()> {
        self.call(SimCall::HostRegister { address, bytes }, |p, _| p.host.register(address, bytes))
    }

    fn host_unregister(&self, address: u64) -> DeviceResult<()> {
        self.call(SimCall::HostUnregister { address }, |p, _| p.host.unregister(address))
    }

    /// The virtual clock.
    fn now(&self) -> Duration {
        self.elapsed()
    }

    fn processes(&self) -> Option<Vec<ProcessMemory>> {
        self.visible_processes()
    }

    fn device_memory(&self) -> Option<NvmlMemory> {
        self.visible_memory()
    }
}
