//! Stream capture and graphs.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::thread::ThreadId;

use crate::books::{Books, Kind};
use crate::errors::*;
use crate::kernels::Launch;
use crate::{Answer, driver, put, put_if};

/// Work of a stream or a graph's node.
#[derive(Clone)]
pub enum Op {
    Fill { address: u64, value: u8, bytes: usize },
    Copy { to: u64, from: u64, bytes: usize, device_writes: bool, device_reads: bool },
    Host { function: extern "C" fn(*mut c_void), data: u64 },
    Kernel(Launch),
}

impl Op {
    pub fn run(&self) {
        match self {
            Op::Fill { address, value, bytes } => {
                // SAFETY: `check_op` found the range allocated just now, and device memory is host memory.
                unsafe { std::ptr::write_bytes(*address as *mut u8, *value, *bytes) };
            }
            Op::Copy { to, from, bytes, .. } => {
                // SAFETY: as above for the device's side; the host's side is the program's promise.
                unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes) };
            }
            Op::Host { function, data } => function(*data as *mut c_void),
            Op::Kernel(launch) => launch.run(),
        }
    }
}

pub struct Node {
    graph: u64,
    dependencies: Vec<u64>,
    op: Op,
}

pub struct Capture {
    mode: u32,
    thread: ThreadId,
    origin: u64,
    graph: u64,
    /// Whether the default stream waits for its origin, as it does for all but non-blocking streams.
    blocking: bool,
    invalid: bool,
}

/// A point in a capture, as an event remembers it.
#[derive(Clone)]
pub struct Joined {
    capture: u64,
    terminals: Vec<u64>,
}

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

impl Books {
    /// Checks the device's side of an operation.
    pub fn check_op(&mut self, device: usize, op: &Op) -> Answer {
        match op {
            Op::Fill { address, bytes, .. } => self.check_range(device, *address, *bytes),
            Op::Copy { to, from, bytes, device_writes, device_reads } => {
                if *device_writes {
                    self.check_range(device, *to, *bytes)?;
                }
                if *device_reads {
                    self.check_range(device, *from, *bytes)?;
                }
                Ok(())
            }
            Op::Host { .. } => Ok(()),
            Op::Kernel(launch) => {
                if let Some(answer) = launch.answer() {
                    self.check_range(device, answer, size_of::<u32>())?;
                }
                self.check_range(device, launch.address(), launch.bytes())
            }
        }
    }

    /// Whether an address is device memory, for copies that do not say.
    pub fn is_devices(&self, address: u64) -> bool {
        self.mapping_of(address).is_some()
            || self
                .region_of(address)
                .is_some_and(|(_, region)| !matches!(region.kind, Kind::Host | Kind::Registered))
    }

    /// Adds work to the stream's capture; `false` if the stream is not capturing.
    pub fn captured(&mut self, key: u64, op: &Op) -> Answer<bool> {
        let Some(id) = self.streams[&key].capture else { return Ok(false) };
        if self.captures[&id].invalid {
            return Err(CAPTURE_INVALIDATED);
        }
        let node = self.fresh();
        let graph = self.captures[&id].graph;
        if let Some(stream) = self.streams.get_mut(&key) {
            let dependencies = std::mem::replace(&mut stream.terminals, vec![node]);
            self.nodes.insert(node, Node { graph, dependencies, op: op.clone() });
        }
        Ok(true)
    }

    pub fn joined(&self, key: u64) -> Option<Joined> {
        let stream = &self.streams[&key];
        Some(Joined { capture: stream.capture?, terminals: stream.terminals.clone() })
    }

    /// A stream that waits for a captured event becomes part of the capture.
    pub fn join(&mut self, key: u64, joined: Joined) -> Answer {
        if !self.captures.contains_key(&joined.capture) {
            return Err(INVALID_VALUE);
        }
        let Some(stream) = self.streams.get_mut(&key) else { return Err(INVALID_HANDLE) };
        if stream.capture.is_some_and(|capture| capture != joined.capture) {
            return Err(CAPTURE_UNSUPPORTED);
        }
        stream.capture = Some(joined.capture);
        for node in joined.terminals {
            if !stream.terminals.contains(&node) {
                stream.terminals.push(node);
            }
        }
        Ok(())
    }

    /// Ends in an error, and spoils the stream's capture.
    pub fn invalidate<T>(&mut self, key: u64, code: u32) -> Answer<T> {
        if let Some(capture) = self.streams[&key].capture.and_then(|id| self.captures.get_mut(&id)) {
            capture.invalid = true;
        }
        Err(code)
    }

    /// The calls that may block or have effects beyond a stream: during a capture they need the relaxed mode.
    pub fn prohibit_during_capture(&mut self, call: &str) -> Answer {
        let mode = MODE.with(Cell::get);
        let own = std::thread::current().id();
        let mut spoilt = false;
        for capture in self.captures.values_mut() {
            let global = capture.mode == GLOBAL && mode == GLOBAL;
            let of_this_thread = capture.mode != RELAXED && mode != RELAXED && capture.thread == own;
            if global || of_this_thread {
                capture.invalid = true;
                spoilt = true;
            }
        }
        if spoilt {
            return self.violation(CAPTURE_UNSUPPORTED, format!("{call} during a capture that forbids it"));
        }
        Ok(())
    }

    /// Work on the default stream would wait for the capturing ones.
    pub fn prohibit_on_default_stream(&mut self, call: &str) -> Answer {
        let mut spoilt = false;
        for capture in self.captures.values_mut().filter(|capture| capture.blocking) {
            capture.invalid = true;
            spoilt = true;
        }
        if !spoilt {
            return Ok(());
        }
        self.violation(CAPTURE_IMPLICIT, format!("{call} on the default stream during a capture"))
    }

    fn capture_state(&mut self, handle: u64) -> Answer<Option<(u64, u32)>> {
        let key = self.stream("cuStreamGetCaptureInfo", handle)?;
        if handle <= 1 && self.captures.values().any(|capture| capture.blocking) {
            return Err(CAPTURE_IMPLICIT);
        }
        let id = self.streams[&key].capture;
        Ok(id.map(|id| (id, if self.captures[&id].invalid { INVALIDATED } else { ACTIVE })))
    }

    fn capture_info(
        &mut self,
        handle: *mut c_void,
        status: *mut c_uint,
        id: *mut u64,
        graph: *mut *mut c_void,
        nodes: *mut *const u64,
        count: *mut usize,
    ) -> Answer {
        let state = self.capture_state(handle as u64)?;
        put(status, state.map_or(0, |(_, status)| status))?;
        let Some((capture, ACTIVE)) = state else { return Ok(()) };
        let key = self.stream("cuStreamGetCaptureInfo", handle as u64)?;
        put_if(id, capture);
        put_if(graph, self.captures[&capture].graph as *mut c_void);
        put_if(nodes, self.streams[&key].terminals.as_ptr());
        put_if(count, self.streams[&key].terminals.len());
        Ok(())
    }

    /// Writes a node's dependencies, or with a null array only counts them.
    fn dependencies(&mut self, node: *mut c_void, nodes: *mut u64, count: *mut usize) -> Answer {
        let node = self.nodes.get(&(node as u64)).ok_or(INVALID_VALUE)?;
        if !nodes.is_null() {
            for (index, dependency) in node.dependencies.iter().enumerate() {
                put(nodes.wrapping_add(index), *dependency)?;
            }
        }
        put(count, node.dependencies.len())
    }
}

driver! {
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) |_books| {
        if mode.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and the entry point's contract makes it valid.
        let wanted = unsafe { mode.read() };
        put(mode, MODE.with(|current| current.replace(wanted)))
    }

    fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_uint) |books| {
        let key = books.stream("cuStreamBeginCapture", stream as u64)?;
        if (stream as u64) <= 1 {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if books.streams[&key].capture.is_some() || mode > RELAXED {
            return Err(INVALID_VALUE);
        }
        let (id, graph) = (books.fresh(), books.fresh());
        let thread = std::thread::current().id();
        let blocking = books.streams[&key].flags & NON_BLOCKING == 0;
        books.captures.insert(id, Capture { mode, thread, origin: key, graph, blocking, invalid: false });
        if let Some(book) = books.streams.get_mut(&key) {
            book.capture = Some(id);
        }
        Ok(())
    }

    fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) |books| {
        let key = books.stream("cuStreamEndCapture", stream as u64)?;
        let id = books.streams[&key].capture.ok_or(INVALID_VALUE)?;
        if books.captures[&id].origin != key {
            return Err(CAPTURE_WRONG_STREAM);
        }
        for book in books.streams.values_mut().filter(|book| book.capture == Some(id)) {
            book.capture = None;
            book.terminals.clear();
        }
        let capture = books.captures.remove(&id).ok_or(INVALID_VALUE)?;
        if capture.invalid {
            books.nodes.retain(|_, node| node.graph != capture.graph);
            put(graph, std::ptr::null_mut())?;
            return Err(CAPTURE_INVALIDATED);
        }
        books.graphs.insert(capture.graph);
        put(graph, capture.graph as *mut c_void)
    }

    fn cuStreamIsCapturing(stream: *mut c_void, status: *mut c_uint) |books| {
        let state = books.capture_state(stream as u64)?;
        put(status, state.map_or(0, |(_, status)| status))
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: *mut c_void, status: *mut c_uint, id: *mut u64, graph: *mut *mut c_void,
        nodes: *mut *const u64, count: *mut usize,
    ) |books| {
        books.capture_info(stream, status, id, graph, nodes, count)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: *mut c_void, status: *mut c_uint, id: *mut u64, graph: *mut *mut c_void,
        nodes: *mut *const u64, edges: *mut *const c_void, count: *mut usize,
    ) |books| {
        put_if(edges, std::ptr::null());
        books.capture_info(stream, status, id, graph, nodes, count)
    }

    fn cuGraphNodeGetDependencies(node: *mut c_void, nodes: *mut u64, count: *mut usize) |books| {
        books.dependencies(node, nodes, count)
    }

    fn cuGraphNodeGetDependencies_v2(
        node: *mut c_void, nodes: *mut u64, _edges: *mut c_void, count: *mut usize,
    ) |books| {
        books.dependencies(node, nodes, count)
    }

    fn cuGraphDestroy(graph: *mut c_void) |books| {
        if !books.graphs.remove(&(graph as u64)) {
            return books.violation(INVALID_VALUE, "cuGraphDestroy of no graph".to_owned());
        }
        let needed: Vec<u64> = books.executables.values().flatten().copied().collect();
        books.nodes.retain(|key, node| node.graph != graph as u64 || needed.contains(key));
        Ok(())
    }

    fn cuGraphInstantiateWithFlags(executable: *mut *mut c_void, graph: *mut c_void, _flags: u64) |books| {
        if !books.graphs.contains(&(graph as u64)) {
            return Err(INVALID_VALUE);
        }
        // Nodes are numbered as they were captured, so every node comes after what it depends on.
        let nodes = books.nodes.iter().filter(|(_, node)| node.graph == graph as u64).map(|(key, _)| *key).collect();
        let handle = books.fresh();
        books.executables.insert(handle, nodes);
        put(executable, handle as *mut c_void)
    }

    fn cuGraphUpload(executable: *mut c_void, _stream: *mut c_void) |books| {
        books.executables.contains_key(&(executable as u64)).then_some(()).ok_or(INVALID_VALUE)
    }

    fn cuGraphLaunch(executable: *mut c_void, stream: *mut c_void) |books| {
        let nodes = books.executables.get(&(executable as u64)).ok_or(INVALID_VALUE)?.clone();
        for node in nodes {
            let op = books.nodes[&node].op.clone();
            books.submit("cuGraphLaunch", stream as u64, op)?;
        }
        Ok(())
    }

    fn cuGraphExecDestroy(executable: *mut c_void) |books| {
        if books.executables.remove(&(executable as u64)).is_none() {
            return books.violation(INVALID_VALUE, "cuGraphExecDestroy of no executable graph".to_owned());
        }
        Ok(())
    }
}
