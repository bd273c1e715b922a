//! Stream captures: which one a stream belongs to, and the graph that it is building.

use std::ffi::c_void;

use super::CudaDevice;
use super::api::{Status, code};
use super::layout::EdgeData;
use crate::device::{CaptureId, DeviceResult, GraphNode, Stream};

/// `CU_STREAM_CAPTURE_STATUS_NONE` and `_INVALIDATED`
const NOT_CAPTURING: u32 = 0;
const INVALIDATED: u32 = 2;

/// A stream's part in a capture.
pub(super) struct Capture {
    pub(super) id: CaptureId,
    /// What the next work on the stream would depend on.
    pub(super) terminals: Vec<GraphNode>,
}

/// What `cuStreamGetCaptureInfo` writes.
struct Info {
    status: u32,
    id: u64,
    nodes: *const *mut c_void,
    count: usize,
}

impl CudaDevice {
    /// The stream's capture, if it takes part in one.
    pub(super) fn capture_of(&self, stream: Stream) -> DeviceResult<Option<Capture>> {
        let mut info = Info { status: NOT_CAPTURING, id: 0, nodes: std::ptr::null(), count: 0 };
        let answer = self.capture_info(stream.raw() as *mut c_void, &mut info);
        // The default stream never captures; the driver refuses to say so while another stream does.
        if answer.code == code::STREAM_CAPTURE_IMPLICIT {
            return Ok(None);
        }
        answer.ok()?;
        match info.status {
            NOT_CAPTURING => Ok(None),
            INVALIDATED => Err(self.api.error("cuStreamGetCaptureInfo", code::STREAM_CAPTURE_INVALIDATED)),
            _ => Ok(Some(Capture { id: CaptureId(info.id), terminals: info.terminals() })),
        }
    }

    fn capture_info(&self, stream: *mut c_void, info: &mut Info) -> Status {
        let mut graph = std::ptr::null_mut();
        let mut edges: *const EdgeData = std::ptr::null();
        // SAFETY: every pointer is a valid place for its answer; the driver checks the stream. Edge data is asked
        // for because a capture that has some answers with an error otherwise.
        let newest = unsafe {
            self.api.capture_info_v3(
                stream,
                &raw mut info.status,
                &raw mut info.id,
                &raw mut graph,
                &raw mut info.nodes,
                &raw mut edges,
                &raw mut info.count,
            )
        };
        if newest.code != code::MISSING_SYMBOL {
            return newest;
        }
        // SAFETY: as above.
        unsafe {
            self.api.capture_info_v2(
                stream,
                &raw mut info.status,
                &raw mut info.id,
                &raw mut graph,
                &raw mut info.nodes,
                &raw mut info.count,
            )
        }
    }

    /// The direct predecessors of a node.
    pub(super) fn predecessors(&self, node: GraphNode) -> DeviceResult<Vec<GraphNode>> {
        let mut count = 0;
        self.node_dependencies(node, std::ptr::null_mut(), std::ptr::null_mut(), &mut count).ok()?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        let mut edges = vec![EdgeData::default(); count];
        if count > 0 {
            self.node_dependencies(node, nodes.as_mut_ptr(), edges.as_mut_ptr(), &mut count).ok()?;
        }
        nodes.truncate(count);
        Ok(nodes.into_iter().map(node_from).collect())
    }

    /// With null arrays the driver only counts; otherwise both hold `count` elements.
    fn node_dependencies(
        &self,
        node: GraphNode,
        nodes: *mut *mut c_void,
        edges: *mut EdgeData,
        count: &mut usize,
    ) -> Status {
        let node = node.0 as *mut c_void;
        // SAFETY: the arrays are null or `count` long, and the driver writes at most that many; it checks the node.
        let newest = unsafe { self.api.node_dependencies_v2(node, nodes, edges, &raw mut *count) };
        if newest.code != code::MISSING_SYMBOL {
            return newest;
        }
        // SAFETY: as above.
        unsafe { self.api.node_dependencies_v1(node, nodes, &raw mut *count) }
    }
}

impl Info {
    fn terminals(&self) -> Vec<GraphNode> {
        if self.nodes.is_null() || self.count == 0 {
            return Vec::new();
        }
        // SAFETY: the driver's array is valid until the next call that changes the capture, and a stream under
        // capture is its capturing thread's to use.
        let nodes = unsafe { std::slice::from_raw_parts(self.nodes, self.count) };
        nodes.iter().copied().map(node_from).collect()
    }
}

fn node_from(node: *mut c_void) -> GraphNode {
    GraphNode(node as u64)
}
