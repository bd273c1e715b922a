//! The test's side of the simulated GPU: streams, faults, books. None of this counts as a driver call.

use std::time::Duration;

use super::SimDevice;
use super::capture::SimGraph;
use super::faults::{Fault, Outcome};
use super::log::{CallKind, LoggedCall};
use super::memory::Physical;
use super::process::Process;
use super::streams::Kernel;
use crate::device::{CaptureId, DeviceResult, Event, GraphNode, Stream};

impl SimDevice {
    fn with<T>(&self, act: impl FnOnce(&mut Process, &mut Physical) -> T) -> T {
        let mut state = self.shared.gpu.state.lock();
        let state = &mut *state;
        act(&mut state.processes[self.shared.index], &mut state.physical)
    }

    /// Like a driver call that the [`Device`](crate::device::Device) trait does not have.
    fn extra_call<T>(
        &self,
        name: &'static str,
        act: impl FnOnce(&mut Process) -> Outcome<T>,
    ) -> DeviceResult<T> {
        self.with(|p, _| {
            let outcome = act(p);
            p.answer(name, outcome)
        })
    }
}

/// Addresses and memory.
impl SimDevice {
    /// The next `malloc` without an earlier script entry returns this address, under any policy. It fails with
    /// `CUDA_ERROR_INVALID_VALUE` if that would overlap live memory, and, except under
    /// [`AddressPolicy::Scripted`](super::AddressPolicy::Scripted), if it is not a multiple of 2 MiB.
    pub fn push_address(&self, address: u64) {
        self.with(|p, _| p.memory.push_script(address));
    }

    /// The next `address_reserve` without an earlier script entry returns this address (a multiple of 2 MiB).
    /// When no entry is left, the lowest free range is reserved.
    pub fn push_reservation(&self, address: u64) {
        self.with(|p, _| p.vmm.reservations.push_script(address));
    }

    /// Addresses pushed and not used yet: for `malloc`, for `address_reserve`.
    pub fn script_remaining(&self) -> (usize, usize) {
        self.with(|p, _| (p.memory.script_remaining(), p.vmm.reservations.script_remaining()))
    }

    /// A process outside the simulation holds this many bytes (0: it is gone), even more than there are.
    pub fn set_other_process(&self, pid: u32, bytes: u64) {
        self.with(|_, physical| physical.set_foreign(pid, bytes));
    }

    /// Bytes of the device that this process holds: its context, live allocations, physical handles.
    pub fn used(&self) -> u64 {
        self.with(|p, physical| physical.used_by(p.index))
    }
}

/// Streams and events.
impl SimDevice {
    /// A new stream. Handles ascend from 1.
    pub fn create_stream(&self) -> Stream {
        self.with(|p, _| p.streams.create())
    }

    /// Ends a stream: its use afterwards is a misuse. Work that it still has goes on.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_HANDLE` for a stream that is destroyed already or, with strict streams, unknown.
    pub fn destroy_stream(&self, stream: Stream) -> DeviceResult<()> {
        self.extra_call("cuStreamDestroy", |p| p.streams.destroy(stream))
    }

    /// The stream is busy from here on: work submitted to it waits, events recorded on it are not complete.
    pub fn hold(&self, stream: Stream) {
        self.with(|p, _| p.streams.hold(stream));
    }

    /// The stream goes on and does all its work, as far as it does not wait for another stream.
    pub fn release(&self, stream: Stream) {
        self.with(|p, _| {
            let ran = p.streams.release(stream);
            p.run(ran);
        });
    }

    /// All streams go on.
    pub fn release_all(&self) {
        self.with(|p, _| {
            let ran = p.streams.release_all();
            p.run(ran);
        });
    }

    /// How many calls (event, stream and device synchronisation, `free`) had to wait for a held stream.
    pub fn blocked_waits(&self) -> u64 {
        self.with(|p, _| p.streams.blocked_waits)
    }

    /// The next event recorded (outside captures) does not complete, whatever its stream does, until
    /// [`complete_event`](SimDevice::complete_event). Waiting for it fails with `CUDA_ERROR_LAUNCH_TIMEOUT`.
    pub fn stick_next_event(&self) {
        self.with(|p, _| p.streams.stick_next_event());
    }

    /// Completes an event now, whatever its stream does.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_HANDLE` for an event that does not exist (any more).
    pub fn complete_event(&self, event: Event) -> DeviceResult<()> {
        self.extra_call("complete_event", |p| {
            let ran = p.streams.complete_event(event)?;
            p.run(ran);
            Ok(())
        })
    }
}

/// Stream capture.
impl SimDevice {
    /// Begins capturing a stream (not the default one).
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` for the default stream, `CUDA_ERROR_INVALID_VALUE` for one that
    /// takes part in a capture already.
    pub fn begin_capture(&self, stream: Stream) -> DeviceResult<CaptureId> {
        self.extra_call("cuStreamBeginCapture", |p| p.captures.begin(stream))
    }

    /// Ends the capture that began on `stream`.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED` if none began there, `..._UNJOINED` if a stream that joined (by
    /// waiting for an event of the capture) was not joined back, `..._INVALIDATED` if a call in between was not
    /// permitted during a capture. The capture is over in the last two cases too.
    pub fn end_capture(&self, stream: Stream) -> DeviceResult<SimGraph> {
        self.extra_call("cuStreamEndCapture", |p| p.captures.end(stream))
    }

    /// Launches a kernel that touches no memory. On a stream under capture it is a new node of the graph.
    pub fn launch(&self, stream: Stream) -> Option<GraphNode> {
        self.with(|p, _| p.captures.launch(stream))
    }
}

/// Kernels that touch memory, to prove that blocks are not reused too early.
impl SimDevice {
    /// Launches a kernel that writes `value` to `bytes` bytes at `address`, when the stream comes to it.
    /// Touching memory that is not there (any more) then is a misuse. Under capture it is only a node.
    pub fn write(&self, stream: Stream, address: u64, bytes: u64, value: u64) {
        self.with(|p, _| p.launch(Kernel { stream, address, bytes, value, expects: false }));
    }

    /// Launches a kernel that reads the range and expects to find `value` everywhere; see
    /// [`mismatches`](SimDevice::mismatches).
    pub fn expect(&self, stream: Stream, address: u64, bytes: u64, value: u64) {
        self.with(|p, _| p.launch(Kernel { stream, address, bytes, value, expects: true }));
    }

    /// The value last written at `address`, regardless of streams. `None` where nothing was written since the
    /// memory was allocated, or where there is no memory.
    pub fn read_now(&self, address: u64) -> Option<u64> {
        self.with(|p, _| p.read_now(address))
    }

    /// Where [`expect`](SimDevice::expect) found something else: data that one stream spoiled for another.
    pub fn mismatches(&self) -> Vec<String> {
        self.with(|p, _| p.mismatches.clone())
    }
}

/// Faults.
impl SimDevice {
    /// Call number `n` from now (1 is the next one) of this kind, or of any kind with `None`, fails without
    /// any effect. Failed calls are counted and logged like others.
    pub fn fail_nth(&self, kind: impl Into<Option<CallKind>>, n: u64, fault: Fault) {
        let kind = kind.into();
        self.with(|p, _| p.faults.plan(kind, n, fault, false));
    }

    /// The next call of this kind (`None`: any) fails.
    pub fn fail_next(&self, kind: impl Into<Option<CallKind>>, fault: Fault) {
        self.fail_nth(kind, 1, fault);
    }

    /// Call number `n` from now and all later ones of this kind (`None`: any) fail, until
    /// [`clear_faults`](SimDevice::clear_faults).
    pub fn fail_from(&self, kind: impl Into<Option<CallKind>>, n: u64, fault: Fault) {
        let kind = kind.into();
        self.with(|p, _| p.faults.plan(kind, n, fault, true));
    }

    /// Forgets planned faults, also `set_broken` and `set_shutting_down`.
    pub fn clear_faults(&self) {
        self.with(|p, _| p.faults.clear());
    }

    /// While set, every call fails with `CUDA_ERROR_LAUNCH_FAILED`, as after a kernel died.
    pub fn set_broken(&self, broken: bool) {
        self.with(|p, _| p.faults.broken = broken);
    }

    /// While set, every call fails with [`DeviceError::ShuttingDown`](crate::device::DeviceError::ShuttingDown).
    pub fn set_shutting_down(&self, down: bool) {
        self.with(|p, _| p.faults.shutting_down = down);
    }

    /// The next `pending_error` reports this, once.
    pub fn set_pending_error(&self, fault: Fault) {
        self.with(|p, _| p.faults.pending = Some(fault));
    }
}

/// Books.
impl SimDevice {
    /// Driver calls of this kind so far, failed ones too.
    pub fn calls(&self, kind: CallKind) -> u64 {
        self.with(|p, _| p.log.calls(kind))
    }

    /// Driver calls of all kinds so far.
    pub fn total_calls(&self) -> u64 {
        self.with(|p, _| p.log.total())
    }

    /// Sets the counters of calls to 0.
    pub fn reset_calls(&self) {
        self.with(|p, _| p.log.reset_counts());
    }

    /// Begins to record every driver call, with an empty log.
    pub fn start_log(&self) {
        self.with(|p, _| p.log.start());
    }

    /// The calls recorded since the start or the last take; recording goes on. Empty if it never began.
    pub fn take_log(&self) -> Vec<LoggedCall> {
        self.with(|p, _| p.log.take())
    }

    /// Ends recording and drops what was not taken.
    pub fn stop_log(&self) {
        self.with(|p, _| p.log.stop());
    }

    /// Time that this process spent in driver calls on an H200 (measured costs, no wall clock; waiting for
    /// streams takes none).
    pub fn elapsed(&self) -> Duration {
        self.with(|p, _| p.clock.elapsed())
    }

    /// Lets the clock run on.
    pub fn advance(&self, time: Duration) {
        self.with(|p, _| p.clock.advance(time));
    }

    /// Rules of the driver that were broken so far: memory freed twice, unknown handles, mappings in the way,
    /// kernels that touch what is not theirs. Each got the driver's error as its answer, where it was a call.
    pub fn misuses(&self) -> Vec<String> {
        self.with(|p, _| p.misuses.clone())
    }

    /// What is still there: device memory, reservations, mappings, physical handles, events, host memory.
    pub fn leaks(&self) -> Vec<String> {
        self.with(|p, _| p.leaks())
    }

    /// For the end of a test.
    ///
    /// # Panics
    ///
    /// If there are [`misuses`](SimDevice::misuses), [`mismatches`](SimDevice::mismatches) or
    /// [`leaks`](SimDevice::leaks); lists them.
    pub fn assert_clean(&self) {
        let faults = [self.misuses(), self.mismatches(), self.leaks()].concat();
        assert!(faults.is_empty(), "the simulated GPU is not clean:\n  {}", faults.join("\n  "));
    }
}
