//! Stream capture: which streams take part, and the graph of what was launched on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use super::faults::{Fault, Outcome, Refusal, code};
use crate::device::{CaptureId, GraphNode, Stream};

/// Capture ids are unique in the whole process, as the driver's are.
static LAST_CAPTURE: AtomicU64 = AtomicU64::new(0);

/// An event recorded during a capture: what a stream that waits for it will depend on.
#[derive(Clone, Debug)]
pub(super) struct Captured {
    capture: CaptureId,
    terminals: Vec<GraphNode>,
}

/// A captured graph: each node with its direct predecessors, in launch order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SimGraph {
    /// The nodes.
    pub nodes: Vec<(GraphNode, Vec<GraphNode>)>,
}

#[derive(Debug)]
struct Capture {
    origin: Stream,
    invalidated: bool,
    nodes: Vec<GraphNode>,
    /// Streams that take part, each with the nodes that its next work depends on.
    terminals: BTreeMap<Stream, Vec<GraphNode>>,
}

/// The captures under way in one process.
#[derive(Debug, Default)]
pub(super) struct Captures {
    active: BTreeMap<u64, Capture>,
    of_stream: BTreeMap<Stream, CaptureId>,
    last_node: u64,
    predecessors: BTreeMap<GraphNode, Vec<GraphNode>>,
}

impl Captures {
    pub(super) fn none(&self) -> bool {
        self.active.is_empty()
    }

    pub(super) fn begin(&mut self, stream: Stream) -> Outcome<CaptureId> {
        if stream == Stream::DEFAULT {
            return Err(Refusal::misuse(
                code::STREAM_CAPTURE_UNSUPPORTED,
                "the default stream cannot be captured",
            ));
        }
        if self.of_stream.contains_key(&stream) {
            return Err(Refusal::misuse(
                code::INVALID_VALUE,
                format!("{stream:?} is being captured already"),
            ));
        }
        let id = CaptureId(LAST_CAPTURE.fetch_add(1, Ordering::Relaxed) + 1);
        let terminals = BTreeMap::from([(stream, Vec::new())]);
        self.active
            .insert(id.0, Capture { origin: stream, invalidated: false, nodes: Vec::new(), terminals });
        self.of_stream.insert(stream, id);
        Ok(id)
    }

    /// Ends the capture that began on `stream`. All streams that joined must have been joined back.
    pub(super) fn end(&mut self, stream: Stream) -> Outcome<SimGraph> {
        let id = self.of_stream.get(&stream).copied();
        let origin = id.and_then(|id| self.active.get(&id.0)).is_some_and(|c| c.origin == stream);
        let Some(capture) = id.filter(|_| origin).and_then(|id| self.active.remove(&id.0)) else {
            return Err(Refusal::misuse(
                code::STREAM_CAPTURE_UNMATCHED,
                format!("no capture began on {stream:?}"),
            ));
        };
        self.of_stream.retain(|_, of| Some(*of) != id);
        let joined = self.joined(&capture);
        let take = |node| (node, self.predecessors.remove(&node).unwrap_or_default());
        let nodes = capture.nodes.into_iter().map(take).collect();
        if capture.invalidated {
            return Err(Fault::Driver(code::STREAM_CAPTURE_INVALIDATED).into());
        }
        if !joined {
            return Err(Refusal::misuse(
                code::STREAM_CAPTURE_UNJOINED,
                "a stream that joined the capture was not joined back",
            ));
        }
        Ok(SimGraph { nodes })
    }

    /// Whether everything launched precedes the origin's next work.
    fn joined(&self, capture: &Capture) -> bool {
        let mut before = BTreeSet::new();
        let mut next = capture.terminals.get(&capture.origin).cloned().unwrap_or_default();
        while let Some(node) = next.pop() {
            if before.insert(node) {
                next.extend(self.predecessors.get(&node).into_iter().flatten());
            }
        }
        capture.terminals.values().flatten().all(|node| before.contains(node))
    }

    pub(super) fn status(&self, stream: Stream) -> Option<CaptureId> {
        self.of_stream.get(&stream).copied()
    }

    fn of(&mut self, stream: Stream) -> Option<&mut Capture> {
        let id = self.of_stream.get(&stream)?;
        self.active.get_mut(&id.0)
    }

    pub(super) fn terminals(&mut self, stream: Stream) -> Outcome<Vec<GraphNode>> {
        let terminals = self.of(stream).and_then(|c| c.terminals.get(&stream).cloned());
        terminals.ok_or_else(|| {
            Refusal::misuse(code::INVALID_VALUE, format!("{stream:?} takes part in no capture"))
        })
    }

    pub(super) fn predecessors(&self, node: GraphNode) -> Outcome<Vec<GraphNode>> {
        self.predecessors.get(&node).cloned().ok_or_else(|| {
            Refusal::misuse(code::INVALID_VALUE, format!("node {} belongs to no capture under way", node.0))
        })
    }

    /// Adds a node if the stream is captured.
    pub(super) fn launch(&mut self, stream: Stream) -> Option<GraphNode> {
        let node = GraphNode(self.last_node + 1);
        let capture = self.of(stream)?;
        let before = capture.terminals.insert(stream, vec![node]).unwrap_or_default();
        capture.nodes.push(node);
        self.predecessors.insert(node, before);
        self.last_node = node.0;
        Some(node)
    }

    /// What an event recorded on the stream now stands for; `None` outside captures.
    pub(super) fn record(&mut self, stream: Stream) -> Option<Captured> {
        let capture = self.status(stream)?;
        let terminals = self.of(stream)?.terminals.get(&stream).cloned()?;
        Some(Captured { capture, terminals })
    }

    /// A wait on `stream` for an event (`None`: recorded outside captures). `true` when the capture has dealt
    /// with it; `false` when it is an ordinary wait.
    pub(super) fn wait(&mut self, stream: Stream, event: Option<Captured>) -> Outcome<bool> {
        let here = self.status(stream);
        let Some(event) = event else {
            let Some(capture) = self.of(stream) else { return Ok(false) };
            capture.invalidated = true;
            return Err(Refusal::misuse(
                code::STREAM_CAPTURE_ISOLATION,
                format!("{stream:?} is captured and cannot wait for an event of running work"),
            ));
        };
        let Some(capture) = self.active.get_mut(&event.capture.0) else {
            return Err(Refusal::misuse(code::CAPTURED_EVENT, "the event belongs to a capture that is over"));
        };
        if here.is_some_and(|id| id != event.capture) {
            capture.invalidated = true;
            return Err(Refusal::misuse(code::STREAM_CAPTURE_MERGE, "the event belongs to another capture"));
        }
        let terminals = capture.terminals.entry(stream).or_default();
        for node in event.terminals {
            if !terminals.contains(&node) {
                terminals.push(node);
            }
        }
        self.of_stream.insert(stream, event.capture);
        Ok(true)
    }

    /// A call that no capture survives, on one stream or (`None`) on the device.
    pub(super) fn forbid(&mut self, stream: Option<Stream>) -> Outcome<()> {
        let mut hit = false;
        for capture in self.active.values_mut() {
            if stream.is_none_or(|s| capture.terminals.contains_key(&s)) {
                capture.invalidated = true;
                hit = true;
            }
        }
        if hit {
            let what = "waiting is not permitted while streams are captured";
            return Err(Refusal::misuse(code::STREAM_CAPTURE_UNSUPPORTED, what));
        }
        Ok(())
    }
}
