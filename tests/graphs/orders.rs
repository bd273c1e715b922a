//! Random captures over several streams: no two uses of one address may run at the same time in a replay.

use std::collections::{HashMap, HashSet};

use gpucache::Allocation;
use gpucache::device::sim::SimGraph;
use gpucache::device::{GraphNode, Stream};
use proptest::prelude::*;

use super::{MIB, open, order};

const STREAMS: usize = 3;

#[derive(Debug, Clone)]
enum Op {
    Alloc {
        stream: usize,
    },
    /// A kernel on the stream that uses the block.
    Launch {
        block: usize,
        stream: usize,
    },
    Free {
        block: usize,
    },
    Order {
        earlier: usize,
        later: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let stream = 0..STREAMS;
    prop_oneof![
        stream.clone().prop_map(|stream| Op::Alloc { stream }),
        (any::<usize>(), stream.clone()).prop_map(|(block, stream)| Op::Launch { block, stream }),
        any::<usize>().prop_map(|block| Op::Free { block }),
        (stream.clone(), stream).prop_map(|(earlier, later)| Op::Order { earlier, later }),
    ]
}

/// A block while somebody has it, and the kernels that use it.
struct Tenant {
    address: u64,
    block: Option<Allocation>,
    uses: Vec<GraphNode>,
}

fn ancestors(graph: &SimGraph) -> HashMap<GraphNode, HashSet<GraphNode>> {
    let mut all: HashMap<GraphNode, HashSet<GraphNode>> = HashMap::new();
    for (node, direct) in &graph.nodes {
        let mut mine: HashSet<GraphNode> = direct.iter().copied().collect();
        for parent in direct {
            mine.extend(&all[parent]);
        }
        all.insert(*node, mine);
    }
    all
}

/// How many addresses had a second tenant.
fn run(ops: &[Op]) -> usize {
    let (gpu, allocator) = open(1 << 34, "graph_capture_record_stream_reuse:True");
    let streams: [Stream; STREAMS] = [0; STREAMS].map(|_| gpu.create_stream());
    let scope = allocator.begin_capture_pool(streams[0], None).unwrap();
    gpu.begin_capture(streams[0]).unwrap();
    for &stream in &streams[1..] {
        order(&gpu, streams[0], stream);
    }
    let mut tenants: Vec<Tenant> = Vec::new();
    for op in ops {
        let live: Vec<usize> = (0..tenants.len()).filter(|&i| tenants[i].block.is_some()).collect();
        let pick = |index: usize| live.get(index % live.len().max(1)).copied();
        match *op {
            Op::Alloc { stream } => {
                let block = allocator.alloc_on(20 * MIB, streams[stream]).unwrap();
                tenants.push(Tenant { address: block.address(), block: Some(block), uses: Vec::new() });
            }
            Op::Launch { block, stream } => {
                let Some(at) = pick(block) else { continue };
                let tenant = &mut tenants[at];
                tenant.uses.extend(gpu.launch(streams[stream]));
                tenant.block.iter().for_each(|b| b.record_stream(streams[stream]));
            }
            Op::Free { block } => {
                let Some(at) = pick(block) else { continue };
                tenants[at].block = None;
            }
            Op::Order { earlier, later } => order(&gpu, streams[earlier], streams[later]),
        }
    }
    for &stream in &streams[1..] {
        order(&gpu, stream, streams[0]);
    }
    let before = ancestors(&gpu.end_capture(streams[0]).unwrap());
    let mut shared = 0;
    for (i, later) in tenants.iter().enumerate() {
        for earlier in tenants[..i].iter().filter(|t| t.address == later.address) {
            shared += 1;
            for (a, b) in earlier.uses.iter().flat_map(|a| later.uses.iter().map(move |b| (a, b))) {
                assert!(before[b].contains(a), "{a:?} and {b:?} use {:#x} at the same time", later.address);
            }
        }
    }
    drop(tenants);
    drop(scope);
    allocator.verify().unwrap();
    shared
}

/// Kernels are used on the block's stream only after it was ordered: a program's duty, which `run` leaves to chance.
/// So the first use of a block on another stream must come after its allocation there.
fn legal(ops: &[Op]) -> Vec<Op> {
    let mut legal = Vec::new();
    let mut homes: Vec<usize> = Vec::new();
    let mut live: Vec<usize> = Vec::new();
    for op in ops {
        match *op {
            Op::Alloc { stream } => {
                live.push(homes.len());
                homes.push(stream);
            }
            Op::Launch { block, stream } => {
                let Some(&at) = live.get(block % live.len().max(1)) else { continue };
                legal.push(Op::Order { earlier: homes[at], later: stream });
            }
            Op::Free { block } => {
                if !live.is_empty() {
                    live.remove(block % live.len());
                }
            }
            Op::Order { .. } => {}
        }
        legal.push(op.clone());
    }
    legal
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tenants_of_one_address_follow_each_other(ops in prop::collection::vec(op(), 1..120)) {
        run(&legal(&ops));
    }
}

#[test]
fn the_random_captures_do_reuse() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let ops = prop::collection::vec(op(), 400);
    let shared: usize = (0..8).map(|_| run(&legal(&ops.new_tree(&mut runner).unwrap().current()))).sum();
    assert!(shared > 20, "{shared} addresses were shared");
}
