//! Uses of a buffer by streams other than its home.
//!
//! Events are made when a stream first comes, so that a buffer used by its home stream alone never needs the driver.

use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaEvent, CudaStream, DriverError, SyncOnDrop};

use super::handle;
use crate::allocator::Allocation;
use crate::device::{Event, Stream};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A list that only grows, because callers borrow its events.
#[derive(Debug, Default)]
pub(super) struct Visits {
    first: OnceLock<Box<Visit>>,
}

/// One stream that came.
#[derive(Debug)]
struct Visit {
    /// The default stream has the same handle in every context.
    context: usize,
    stream: Stream,
    /// `None` if the driver had no event for it: the streams wait for each other by synchronising then.
    events: Option<Events>,
    next: OnceLock<Box<Visit>>,
}

#[derive(Debug)]
struct Events {
    /// What home had queued when the stream last came.
    home: CudaEvent,
    /// The stream's last reading use.
    read: Option<CudaEvent>,
    /// The stream's last writing use.
    write: Option<CudaEvent>,
}

impl Visit {
    fn new(home: &CudaStream, stream: &CudaStream) -> Self {
        let events = Events::new(home, stream);
        let events = events.map_err(|error| stream.context().record_err::<()>(Err(error))).ok();
        Visit {
            context: stream.context().cu_ctx() as usize,
            stream: handle(stream),
            events,
            next: OnceLock::new(),
        }
    }
}

impl Events {
    fn new(home: &CudaStream, stream: &CudaStream) -> Result<Self, DriverError> {
        let (here, there) = (home.context(), stream.context());
        Ok(Events {
            home: here.new_event(None)?,
            read: Some(there.new_event(None)?),
            write: Some(there.new_event(None)?),
        })
    }

    /// Makes `stream` wait for the uses that would clash with an access.
    fn wait(&self, stream: &CudaStream, access: Access) {
        let clashing = match access {
            Access::Read => [self.write.as_ref(), None],
            Access::Write => [self.write.as_ref(), self.read.as_ref()],
        };
        for event in clashing.into_iter().flatten() {
            stream.context().record_err(stream.wait(event));
        }
    }
}

impl Visits {
    fn iter(&self) -> impl Iterator<Item = &Visit> {
        std::iter::successors(self.first.get(), |visit| visit.next.get()).map(|visit| &**visit)
    }

    /// Whether the stream has come through here.
    pub(super) fn knows(&self, stream: Stream) -> bool {
        self.iter().any(|visit| visit.stream == stream)
    }

    /// Makes `stream` wait for all uses that clash with an access.
    pub(super) fn wait_all(&self, stream: &CudaStream, access: Access) {
        self.iter().filter_map(|visit| visit.events.as_ref()).for_each(|events| events.wait(stream, access));
    }

    /// `stream` is about to use the memory: it waits for home and for the others, and the answer records the use.
    /// `None` without events.
    pub(super) fn begin<'a>(
        &'a self,
        home: &CudaStream,
        stream: &'a CudaStream,
        access: Access,
    ) -> Option<SyncOnDrop<'a>> {
        let visit = self.visit(home, stream);
        let events = visit.events.as_ref()?;
        let context = stream.context();
        let joined = events.home.record(home).and_then(|()| stream.wait(&events.home));
        if let Err(error) = joined {
            context.record_err::<()>(Err(error));
            return None;
        }
        self.wait_all(stream, access);
        // The handle may be that of an earlier stream, whose last use the event is about to forget.
        events.wait(stream, Access::Write);
        let use_event = match access {
            Access::Read => &events.read,
            Access::Write => &events.write,
        };
        Some(SyncOnDrop::record_event(use_event, stream))
    }

    fn visit(&self, home: &CudaStream, stream: &CudaStream) -> &Visit {
        let (context, wanted) = (stream.context().cu_ctx() as usize, handle(stream));
        let mut place = &self.first;
        loop {
            let visit = place.get_or_init(|| Box::new(Visit::new(home, stream)));
            if (visit.context, visit.stream) == (context, wanted) {
                return visit;
            }
            place = &visit.next;
        }
    }

    /// Gives the events of all uses to the block, and forgets them. Streams that are `covered` by a record of their
    /// own are left out; for those of another context home waits instead.
    pub(super) fn hand_over(
        &mut self,
        memory: &Allocation,
        home: &Arc<CudaStream>,
        covered: impl Fn(Stream) -> bool,
    ) {
        let mut rest = self.first.take();
        while let Some(mut visit) = rest {
            rest = visit.next.take();
            let Some(events) = visit.events.take().filter(|_| !covered(visit.stream)) else { continue };
            for event in [events.read, events.write].into_iter().flatten() {
                if home.context() == event.context() {
                    memory.await_event(visit.stream, || release(event));
                } else {
                    home.context().record_err(home.wait(&event));
                }
            }
        }
    }
}

/// All that is queued on `stream` stays noted with the block, also when the stream is gone; home waits for it.
pub(super) fn leave(stream: &CudaStream, memory: &Allocation, home: &CudaStream) {
    let context = home.context();
    let noted = stream.record_event(None).and_then(|event| {
        home.wait(&event)?;
        Ok(event)
    });
    match noted {
        Ok(event) if stream.context() == context => {
            if memory.await_event(handle(stream), || release(event)) {
                memory.forget_stream(handle(stream));
            }
        }
        // Home waits, and the block is reused by work of home.
        Ok(_) => {}
        Err(error) => {
            context.record_err::<()>(Err(error));
            context.record_err(stream.synchronize());
        }
    }
}

/// Takes the driver's event out of cudarc's hands, without destroying it.
fn release(event: CudaEvent) -> Event {
    let event = ManuallyDrop::new(event);
    // SAFETY: this takes over the count of the context that the event holds, which nobody uses or drops any more.
    drop(unsafe { std::ptr::read(event.context()) });
    Event(event.cu_event() as u64)
}
