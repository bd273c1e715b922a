//! Streams as queues of pending work, events, and streams that a test holds busy.

use std::collections::{BTreeMap, VecDeque};

use super::capture::Captured;
use super::faults::{Fault, Outcome, Refusal, code};
use super::log::CallKind;
use crate::device::{Event, Stream};

/// Simulated kernels that touch memory. They run when the stream comes to them.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub(super) stream: Stream,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) value: u64,
    /// Whether it compares instead of writing.
    pub(super) expects: bool,
}

/// Pending work. An event is meant as it was recorded or waited for: its `generation`.
#[derive(Debug)]
enum Work {
    Record { event: u64, generation: u64 },
    Wait { event: u64, generation: u64 },
    Run(Kernel),
}

#[derive(Debug, Default)]
struct StreamState {
    held: bool,
    destroyed: bool,
    queue: VecDeque<Work>,
}

#[derive(Debug, Default)]
struct EventState {
    /// How often it was recorded.
    generation: u64,
    /// Records that have not run. Not only the latest: a wait means the record that was there when it was made.
    pending: Vec<u64>,
    /// A record that never completes by itself.
    stuck: Option<u64>,
    /// Destroyed while pending; the number stays known until the work has run.
    destroyed: bool,
    /// Where it was recorded during a stream capture; such an event tells nothing about running work.
    captured: Option<Captured>,
}

impl EventState {
    fn complete(&self) -> bool {
        !self.pending.contains(&self.generation)
    }
}

/// The streams and events of one process.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Only streams that were created here, held, or have work waiting.
    table: BTreeMap<Stream, StreamState>,
    events: BTreeMap<u64, EventState>,
    last_stream: u64,
    last_event: u64,
    /// How many streams are held, and how many pieces of work wait: both 0 when the device is idle.
    held: usize,
    waiting: usize,
    stick_next: bool,
    pub(super) blocked_waits: u64,
    /// Whether a wait for a held stream fails instead of letting it finish.
    deadlock_on_wait: bool,
    /// Whether only streams made by `create` (and the default stream) exist.
    strict: bool,
}

impl Streams {
    pub(super) fn new(deadlock_on_wait: bool, strict: bool) -> Self {
        Streams { deadlock_on_wait, strict, ..Streams::default() }
    }

    pub(super) fn create(&mut self) -> Stream {
        self.last_stream += 1;
        let stream = Stream::from_raw(self.last_stream);
        self.table.entry(stream).or_default();
        stream
    }

    pub(super) fn destroy(&mut self, stream: Stream) -> Outcome<()> {
        self.check(stream)?;
        self.table.entry(stream).or_default().destroyed = true;
        Ok(())
    }

    pub(super) fn is_destroyed(&self, stream: Stream) -> bool {
        self.table.get(&stream).is_some_and(|state| state.destroyed)
    }

    /// Whether the stream may be used.
    pub(super) fn check(&self, stream: Stream) -> Outcome<()> {
        match self.table.get(&stream) {
            Some(state) if state.destroyed => {
                Err(Refusal::misuse(code::INVALID_HANDLE, format!("{stream:?} was destroyed")))
            }
            None if self.strict && stream != Stream::DEFAULT => {
                Err(Refusal::misuse(code::INVALID_HANDLE, format!("{stream:?} is unknown")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn hold(&mut self, stream: Stream) {
        let state = self.table.entry(stream).or_default();
        self.held += usize::from(!std::mem::replace(&mut state.held, true));
    }

    /// The stream goes on. What ran is returned in order.
    pub(super) fn release(&mut self, stream: Stream) -> Vec<Kernel> {
        if let Some(state) = self.table.get_mut(&stream) {
            self.held -= usize::from(std::mem::replace(&mut state.held, false));
        }
        self.run()
    }

    pub(super) fn release_all(&mut self) -> Vec<Kernel> {
        for state in self.table.values_mut() {
            state.held = false;
        }
        self.held = 0;
        self.run()
    }

    pub(super) fn idle(&self) -> bool {
        self.held == 0 && self.waiting == 0
    }

    fn stream_idle(&self, stream: Stream) -> bool {
        self.table.get(&stream).is_none_or(|s| !s.held && s.queue.is_empty())
    }

    /// A call has to wait: held streams finish, as time would have it.
    fn wait(&mut self) -> Outcome<Vec<Kernel>> {
        self.blocked_waits += 1;
        if self.deadlock_on_wait {
            return Err(Fault::Driver(code::LAUNCH_TIMEOUT).into());
        }
        Ok(self.release_all())
    }

    pub(super) fn synchronize_device(&mut self) -> Outcome<Vec<Kernel>> {
        if self.idle() {
            return Ok(Vec::new());
        }
        let ran = self.wait()?;
        if self.idle() { Ok(ran) } else { Err(Fault::Driver(code::LAUNCH_TIMEOUT).into()) }
    }

    pub(super) fn synchronize_stream(&mut self, stream: Stream) -> Outcome<Vec<Kernel>> {
        self.check(stream)?;
        if self.stream_idle(stream) {
            return Ok(Vec::new());
        }
        let ran = self.wait()?;
        if self.stream_idle(stream) { Ok(ran) } else { Err(Fault::Driver(code::LAUNCH_TIMEOUT).into()) }
    }

    pub(super) fn create_event(&mut self) -> Event {
        self.last_event += 1;
        self.events.insert(self.last_event, EventState::default());
        Event(self.last_event)
    }

    fn event(&mut self, event: Event) -> Outcome<&mut EventState> {
        let known = self.last_event;
        self.events.get_mut(&event.0).filter(|e| !e.destroyed).ok_or_else(|| {
            let fate = if event.0 != 0 && event.0 <= known { "was destroyed" } else { "is unknown" };
            Refusal::misuse(code::INVALID_HANDLE, format!("event {} {fate}", event.0))
        })
    }

    pub(super) fn destroy_event(&mut self, event: Event) -> Outcome<()> {
        let state = self.event(event)?;
        if state.pending.is_empty() {
            self.events.remove(&event.0);
        } else {
            state.destroyed = true;
        }
        Ok(())
    }

    /// Records the event; with `captured` it belongs to that capture and never runs.
    pub(super) fn record(&mut self, event: Event, stream: Stream, captured: Option<Captured>) -> Outcome<()> {
        self.check(stream)?;
        let idle = self.stream_idle(stream);
        let stick = captured.is_none() && std::mem::take(&mut self.stick_next);
        let state = self.event(event)?;
        state.captured = captured;
        if state.captured.is_some() {
            return Ok(());
        }
        state.generation += 1;
        if idle && !stick {
            return Ok(());
        }
        let generation = state.generation;
        state.pending.push(generation);
        state.stuck = stick.then_some(generation);
        self.submit(stream, Work::Record { event: event.0, generation });
        Ok(())
    }

    pub(super) fn query(&mut self, event: Event) -> Outcome<bool> {
        let state = self.event(event)?;
        if state.captured.is_some() { Err(captured_event(event)) } else { Ok(state.complete()) }
    }

    pub(super) fn synchronize_event(&mut self, event: Event) -> Outcome<Vec<Kernel>> {
        if self.query(event)? {
            return Ok(Vec::new());
        }
        let ran = self.wait()?;
        if self.query(event)? { Ok(ran) } else { Err(Fault::Driver(code::LAUNCH_TIMEOUT).into()) }
    }

    /// Where the event was recorded during a capture.
    pub(super) fn captured(&mut self, event: Event) -> Outcome<Option<Captured>> {
        Ok(self.event(event)?.captured.clone())
    }

    pub(super) fn wait_event(&mut self, stream: Stream, event: Event) -> Outcome<()> {
        self.check(stream)?;
        let state = self.event(event)?;
        if !state.complete() {
            let generation = state.generation;
            self.submit(stream, Work::Wait { event: event.0, generation });
        }
        Ok(())
    }

    /// The next event recorded does not complete until [`complete_event`](Self::complete_event).
    pub(super) fn stick_next_event(&mut self) {
        self.stick_next = true;
    }

    /// Completes the event whatever its stream does.
    pub(super) fn complete_event(&mut self, event: Event) -> Outcome<Vec<Kernel>> {
        let state = self.event(event)?;
        state.stuck = None;
        state.pending.clear();
        Ok(self.run())
    }

    pub(super) fn launch(&mut self, kernel: Kernel) -> Vec<Kernel> {
        self.submit(kernel.stream, Work::Run(kernel)).into_iter().collect()
    }

    /// Does the work at once on an idle stream; otherwise it waits its turn.
    fn submit(&mut self, stream: Stream, work: Work) -> Option<Kernel> {
        if self.stream_idle(stream) && ready(&self.events, &work) {
            return perform(&mut self.events, work);
        }
        self.table.entry(stream).or_default().queue.push_back(work);
        self.waiting += 1;
        None
    }

    /// Runs whatever can run, streams in ascending order.
    fn run(&mut self) -> Vec<Kernel> {
        let mut ran = Vec::new();
        loop {
            let before = self.waiting;
            for state in self.table.values_mut().filter(|s| !s.held) {
                while state.queue.front().is_some_and(|work| ready(&self.events, work)) {
                    self.waiting -= 1;
                    ran.extend(state.queue.pop_front().and_then(|work| perform(&mut self.events, work)));
                }
            }
            if self.waiting == before {
                return ran;
            }
        }
    }

    pub(super) fn live_events(&self) -> impl Iterator<Item = Event> + '_ {
        self.events.iter().filter(|(_, e)| !e.destroyed).map(|(&id, _)| Event(id))
    }
}

fn captured_event(event: Event) -> Refusal {
    let name = CallKind::EventRecord.name();
    Refusal::misuse(code::CAPTURED_EVENT, format!("{name} of event {} was captured in a graph", event.0))
}

fn ready(events: &BTreeMap<u64, EventState>, work: &Work) -> bool {
    match work {
        Work::Wait { event, generation } => events.get(event).is_none_or(|e| !e.pending.contains(generation)),
        Work::Record { .. } | Work::Run(_) => true,
    }
}

fn perform(events: &mut BTreeMap<u64, EventState>, work: Work) -> Option<Kernel> {
    match work {
        Work::Run(kernel) => return Some(kernel),
        Work::Wait { .. } => {}
        Work::Record { event, generation } => {
            let state = events.get_mut(&event)?;
            if state.stuck != Some(generation) {
                state.pending.retain(|&g| g != generation);
            }
            if state.destroyed && state.pending.is_empty() {
                events.remove(&event);
            }
        }
    }
    None
}
