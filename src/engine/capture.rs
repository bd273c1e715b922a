//! Reuse of freed blocks while a graph is being captured [spec 14.6].
//!
//! A block that several captured streams use may be handed out again once everything that used it precedes,
//! in the graph, whatever its own stream captures next.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use super::Core;
use super::events::BlockRef;
use super::parts::DEFAULT_POOL;
use crate::device::{CaptureId, Device, DeviceResult, GraphNode, Stream};

/// The last nodes of all streams that use a block, at the moment of its free.
#[derive(Clone, Debug)]
pub(super) struct Markers {
    /// Node handles are reused by later captures.
    capture: CaptureId,
    nodes: SmallVec<[GraphNode; 4]>,
}

/// A block whose free waits until no pool is active, or for its markers.
#[derive(Clone, Debug)]
pub(super) struct Deferred {
    pub(super) block: BlockRef,
    pub(super) markers: Option<Markers>,
}

/// What precedes the next work of streams under capture; grows with the captures.
#[derive(Debug, Default)]
pub(super) struct Predecessors {
    of: HashMap<(CaptureId, Stream), Ancestors>,
}

#[derive(Debug, Default)]
struct Ancestors {
    terminals: Vec<GraphNode>,
    /// The terminals and all that precedes them.
    nodes: HashSet<GraphNode>,
}

trait Dependencies: Fn(GraphNode) -> DeviceResult<Vec<GraphNode>> {}
impl<F: Fn(GraphNode) -> DeviceResult<Vec<GraphNode>>> Dependencies for F {}

impl Ancestors {
    /// Takes in what was captured since the last call. `dependencies` gives a node's direct predecessors.
    fn advance(&mut self, terminals: Vec<GraphNode>, dependencies: impl Dependencies) -> DeviceResult<()> {
        let mut missed: HashSet<GraphNode> = self.terminals.iter().copied().collect();
        self.visit(&terminals, &mut missed, &dependencies)?;
        if !missed.is_empty() {
            // The program has replaced the stream's dependencies: nothing known still holds.
            self.nodes.clear();
            self.visit(&terminals, &mut missed, &dependencies)?;
        }
        self.terminals = terminals;
        Ok(())
    }

    /// Walks back from the terminals as far as the graph is unknown, and takes from `missed` what it meets.
    fn visit(
        &mut self,
        terminals: &[GraphNode],
        missed: &mut HashSet<GraphNode>,
        dependencies: &impl Dependencies,
    ) -> DeviceResult<()> {
        let mut next = terminals.to_vec();
        while let Some(node) = next.pop() {
            missed.remove(&node);
            if self.nodes.insert(node) {
                next.extend(dependencies(node)?);
            }
        }
        Ok(())
    }
}

impl Predecessors {
    /// The nodes that precede the stream's next work; `None` where the driver does not say.
    fn of(&mut self, device: &dyn Device, capture: CaptureId, stream: Stream) -> Option<&HashSet<GraphNode>> {
        let advanced = device.capture_terminals(stream).and_then(|terminals| {
            let known = self.of.entry((capture, stream)).or_default();
            known.advance(terminals, |node| device.graph_node_dependencies(node))
        });
        if advanced.is_err() {
            // Half a walk must not be taken for a whole one.
            self.of.remove(&(capture, stream));
        }
        self.of.get(&(capture, stream)).map(|ancestors| &ancestors.nodes)
    }

    pub(super) fn clear(&mut self) {
        self.of.clear();
    }
}

impl Core {
    /// The markers of a block that is freed now; `None` makes it wait for the end of the capture.
    pub(super) fn free_markers(&self, block: &BlockRef) -> Option<Markers> {
        let (enabled, mirror) = {
            let config = self.config.read();
            (config.graph_capture_record_stream_reuse, config.mirror_defects)
        };
        if !enabled {
            return None;
        }
        let home = block.shard.stream;
        let streams = {
            let state = block.shard.lock();
            let uses = state.uses.of(block.block)?;
            // The graph orders only what was captured: work queued before is still running, for all it knows.
            let captured = state.slab[block.block].pool != DEFAULT_POOL
                && uses.streams.iter().all(|s| uses.during_activity.contains(s));
            // Nor does it know of uses that an event stands for.
            if (!captured && !mirror) || !uses.recorded.is_empty() {
                return None;
            }
            uses.streams
        };
        let capture = self.device.capture_status(home).ok()??;
        let mut nodes = SmallVec::new();
        for stream in std::iter::once(home).chain(streams) {
            if self.device.capture_status(stream).ok()? != Some(capture) {
                return None;
            }
            nodes.extend(self.device.capture_terminals(stream).ok()?);
        }
        Some(Markers { capture, nodes })
    }

    /// Before a malloc on a stream under capture: completes the frees of its blocks that the graph has ordered.
    pub(super) fn reuse_during_capture(&self, stream: Stream) {
        // A capture that has failed reuses nothing; its error shows where it ends.
        let Ok(Some(capture)) = self.device.capture_status(stream) else { return };
        let mut guard = self.events.state.lock();
        let events = &mut *guard;
        let candidate = |d: &Deferred| {
            d.block.shard.stream == stream && d.markers.as_ref().is_some_and(|m| m.capture == capture)
        };
        if !events.deferred.iter().any(candidate) {
            return;
        }
        let Some(before) = events.predecessors.of(&*self.device, capture, stream) else { return };
        let ready = |d: &mut Deferred| {
            candidate(d) && d.markers.as_ref().is_some_and(|m| m.nodes.iter().all(|n| before.contains(n)))
        };
        for Deferred { block, .. } in events.deferred.extract_if(.., ready) {
            block.shard.lock().drop_uses(block.block);
            self.complete(&block.shard, block.block);
        }
        if events.is_idle() {
            self.relax(super::attention::EVENTS);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// 1 -> 2 -> 3 -> 4, and 1 -> 5.
    #[allow(clippy::unnecessary_wraps)] // a device may fail
    fn dependencies(node: GraphNode) -> DeviceResult<Vec<GraphNode>> {
        Ok(match node.0 {
            2 | 5 => vec![GraphNode(1)],
            3 => vec![GraphNode(2)],
            4 => vec![GraphNode(3)],
            _ => vec![],
        })
    }

    fn known(ancestors: &Ancestors) -> Vec<u64> {
        let mut nodes: Vec<u64> = ancestors.nodes.iter().map(|n| n.0).collect();
        nodes.sort_unstable();
        nodes
    }

    #[test]
    fn each_node_is_asked_once() {
        let asked = Cell::new(0);
        let count = |node| {
            asked.set(asked.get() + 1);
            dependencies(node)
        };
        let mut ancestors = Ancestors::default();
        ancestors.advance(vec![GraphNode(2)], count).unwrap();
        ancestors.advance(vec![GraphNode(4)], count).unwrap();
        ancestors.advance(vec![GraphNode(4), GraphNode(5)], count).unwrap();
        assert_eq!(known(&ancestors), [1, 2, 3, 4, 5]);
        assert_eq!(asked.get(), 5);
    }

    #[test]
    fn replaced_dependencies_are_forgotten() {
        let mut ancestors = Ancestors::default();
        ancestors.advance(vec![GraphNode(4)], dependencies).unwrap();
        ancestors.advance(vec![GraphNode(5)], dependencies).unwrap();
        assert_eq!(known(&ancestors), [1, 5]);
        ancestors.advance(vec![], dependencies).unwrap();
        assert_eq!(known(&ancestors), [0; 0]);
    }
}
