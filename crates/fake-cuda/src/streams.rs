//! Streams: queues of work, done at once unless a test holds the stream.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use crate::books::Books;
use crate::capture::Op;
use crate::errors::*;
use crate::{Answer, driver, put};

pub struct StreamBook {
    pub context: u64,
    /// Whether it is one of those that every context has.
    pub is_default: bool,
    pub flags: c_uint,
    /// Work that has not run; the last item has number `submitted`.
    queue: VecDeque<Item>,
    submitted: u64,
    pub held: bool,
    /// The capture that it takes part in, and the nodes that its next work would depend on.
    pub capture: Option<u64>,
    pub terminals: Vec<u64>,
}

enum Item {
    Work(Op),
    /// Until another stream has done its work up to a number.
    Wait(Point),
}

/// A place in a stream's work.
#[derive(Clone, Copy)]
pub struct Point {
    pub stream: u64,
    pub number: u64,
}

impl StreamBook {
    fn new(context: u64, flags: c_uint) -> Self {
        StreamBook {
            context,
            is_default: false,
            flags,
            queue: VecDeque::new(),
            submitted: 0,
            held: false,
            capture: None,
            terminals: Vec::new(),
        }
    }

    fn done(&self) -> u64 {
        self.submitted - self.queue.len() as u64
    }
}

impl Books {
    /// The key of a stream in the books. The default streams exist per context, from their first use.
    pub fn stream(&mut self, call: &str, handle: u64) -> Answer<u64> {
        let context = self.context(call)?;
        let key = match handle {
            0 | 1 => context + 0x10,
            2 => context + 0x20,
            _ => handle,
        };
        if handle <= 2 {
            self.streams
                .entry(key)
                .or_insert_with(|| StreamBook { is_default: true, ..StreamBook::new(context, 0) });
        }
        match self.streams.get(&key) {
            Some(stream) if stream.context == context => Ok(key),
            Some(_) => {
                self.violation(INVALID_HANDLE, format!("{call}: stream {handle:#x} of another context"))
            }
            None => self.violation(INVALID_HANDLE, format!("{call}: no stream {handle:#x}")),
        }
    }

    /// Whether everything up to a point has run. Destroyed streams have no work left.
    pub fn reached(&self, point: Point) -> bool {
        self.streams.get(&point.stream).is_none_or(|stream| stream.done() >= point.number)
    }

    /// The point after all that was submitted to a stream.
    pub fn point(&self, stream: u64) -> Point {
        Point { stream, number: self.streams.get(&stream).map_or(0, |stream| stream.submitted) }
    }

    /// Work on a stream: runs or waits in the queue, or becomes a node of the capture.
    pub fn submit(&mut self, call: &str, handle: u64, op: Op) -> Answer {
        let key = self.stream(call, handle)?;
        if self.captured(key, &op)? {
            return Ok(());
        }
        if handle <= 1 {
            self.prohibit_on_default_stream(call)?;
        }
        self.enqueue(key, Item::Work(op));
        Ok(())
    }

    /// [`submit`](Self::submit) of a copy: those may go to a stream of another device than the current one, says the
    /// programming guide ("Stream and event behavior").
    pub fn submit_copy(&mut self, call: &str, handle: u64, op: Op) -> Answer {
        let elsewhere = match self.streams.get(&handle) {
            Some(stream) => stream.context != self.context(call)?,
            None => false,
        };
        if !elsewhere {
            return self.submit(call, handle, op);
        }
        if !self.captured(handle, &op)? {
            self.enqueue(handle, Item::Work(op));
        }
        Ok(())
    }

    /// Makes later work on a stream wait.
    pub fn wait_for(&mut self, key: u64, point: Point) {
        if !self.reached(point) {
            self.enqueue(key, Item::Wait(point));
        }
    }

    fn enqueue(&mut self, key: u64, item: Item) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.queue.push_back(item);
            stream.submitted += 1;
        }
        self.pump();
    }

    /// Runs everything that can run.
    pub fn pump(&mut self) {
        while let Some(key) = self.runnable() {
            let Some(stream) = self.streams.get_mut(&key) else { return };
            let context = stream.context;
            if let Some(Item::Work(op)) = stream.queue.pop_front() {
                let device = self.contexts.get(&context).map_or(0, |context| context.device);
                // Memory that was unmapped under queued work: noted as a violation, and not touched.
                if self.check_op(device, &op).is_ok() {
                    op.run();
                }
            }
        }
    }

    fn runnable(&self) -> Option<u64> {
        self.streams.iter().find_map(|(key, stream)| {
            let ready = match stream.queue.front()? {
                Item::Work(_) => true,
                Item::Wait(point) => self.reached(*point),
            };
            (ready && !stream.held).then_some(*key)
        })
    }

    /// Lets a stream's work, and what it waits for, run to the end: a hold is over.
    pub fn finish(&mut self, key: u64) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.held = false;
        let waits: Vec<u64> = stream
            .queue
            .iter()
            .filter_map(|item| match item {
                Item::Wait(point) => Some(point.stream),
                Item::Work(_) => None,
            })
            .collect();
        for other in waits {
            self.finish(other);
        }
        self.pump();
    }

    pub fn finish_all(&mut self, context: u64) {
        let own = self.streams.iter().filter(|(_, stream)| stream.context == context);
        for key in own.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.finish(key);
        }
    }
}

driver! {
    fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) |books| {
        let context = books.context("cuStreamCreate")?;
        let handle = books.fresh();
        books.streams.insert(handle, StreamBook::new(context, flags));
        put(stream, handle as *mut c_void)
    }

    fn cuStreamCreateWithPriority(stream: *mut *mut c_void, flags: c_uint, _priority: c_int) |books| {
        let context = books.context("cuStreamCreateWithPriority")?;
        let handle = books.fresh();
        books.streams.insert(handle, StreamBook::new(context, flags));
        put(stream, handle as *mut c_void)
    }

    fn cuStreamGetFlags(stream: *mut c_void, flags: *mut c_uint) |books| {
        let key = books.stream("cuStreamGetFlags", stream as u64)?;
        put(flags, books.streams[&key].flags)
    }

    fn cuStreamDestroy_v2(stream: *mut c_void) |books| {
        let key = books.stream("cuStreamDestroy", stream as u64)?;
        books.finish(key);
        books.streams.remove(&key);
        Ok(())
    }

    fn cuStreamQuery(stream: *mut c_void) |books| {
        let key = books.stream("cuStreamQuery", stream as u64)?;
        if books.reached(books.point(key)) { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamSynchronize(stream: *mut c_void) |books| {
        let key = books.stream("cuStreamSynchronize", stream as u64)?;
        if books.streams[&key].capture.is_some() {
            return books.invalidate(key, CAPTURE_UNSUPPORTED);
        }
        books.finish(key);
        Ok(())
    }

    /// The function runs inside the driver's lock: it may not call the driver, as the manual says.
    fn cuLaunchHostFunc(stream: *mut c_void, function: Option<extern "C" fn(*mut c_void)>, data: *mut c_void) |books| {
        let function = function.ok_or(INVALID_VALUE)?;
        books.submit("cuLaunchHostFunc", stream as u64, Op::Host { function, data: data as u64 })
    }
}
