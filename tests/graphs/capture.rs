//! Which requests a capture takes, and how long its memory stays [spec 14.1, 14.2, 14.5].

use gpucache::device::Stream;
use gpucache::device::sim::SimGraph;
use gpucache::observe::snapshot::PoolId;
use gpucache::{Allocation, Allocator, Error, PooledGraph};

use super::{MIB, open, order};

/// The pool of the segment that holds a block.
fn pool_of(allocator: &Allocator, block: &Allocation) -> PoolId {
    let holds = |start: u64, size: u64| (start..start + size).contains(&block.address());
    let segments = allocator.memory_segments();
    segments.iter().find(|s| holds(s.address, s.total_size)).unwrap().segment_pool_id
}

fn pool_error<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.unwrap_err() {
        Error::Pool(text) => text,
        other => panic!("{other}"),
    }
}

#[test]
fn a_capture_takes_the_requests_of_its_streams_only() {
    let (gpu, allocator) = open(1 << 30, "");
    let [s, joined, outside] = [0; 3].map(|_| gpu.create_stream());
    let scope = allocator.begin_capture_pool(s, None).unwrap();
    let before = allocator.alloc_on(MIB, s).unwrap();
    assert_eq!(pool_of(&allocator, &before), PoolId::DEFAULT, "the driver's capture has not begun");

    gpu.begin_capture(s).unwrap();
    order(&gpu, s, joined);
    for stream in [s, joined] {
        let block = allocator.alloc_on(MIB, stream).unwrap();
        assert_eq!(pool_of(&allocator, &block), scope.pool_id());
    }
    let accepts = scope.accepts();
    assert_eq!([s, joined, outside, Stream::DEFAULT].map(&accepts), [true, true, false, false]);
    for stream in [outside, Stream::DEFAULT] {
        let block = allocator.alloc_on(MIB, stream).unwrap();
        assert_eq!(pool_of(&allocator, &block), PoolId::DEFAULT);
    }
    order(&gpu, joined, s);
    gpu.end_capture(s).unwrap();
    assert!(!accepts(s));
    let after = allocator.alloc_on(MIB, s).unwrap();
    assert_eq!(pool_of(&allocator, &after), PoolId::DEFAULT, "the driver's capture has ended");
    let pool = scope.end().unwrap();
    let id = pool.id();
    assert_eq!((id.1, pool_of(&allocator, &before)), (0, PoolId::DEFAULT), "a capture's own pool is (n, 0)");
    allocator.verify().unwrap();
}

#[test]
fn two_captures_at_once_have_a_pool_each() {
    let (gpu, allocator) = open(1 << 30, "");
    let streams = [gpu.create_stream(), gpu.create_stream()];
    let scopes = streams.map(|s| allocator.begin_capture_pool(s, None).unwrap());
    for s in streams {
        gpu.begin_capture(s).unwrap();
    }
    let blocks = streams.map(|s| allocator.alloc_on(MIB, s).unwrap());
    assert_ne!(scopes[0].pool_id(), scopes[1].pool_id());
    for (block, scope) in blocks.iter().zip(&scopes) {
        assert_eq!(pool_of(&allocator, block), scope.pool_id());
    }
}

#[test]
fn memory_stays_until_the_graph_is_gone() {
    let (gpu, allocator) = open(1 << 30, "");
    let s = gpu.create_stream();
    let scope = allocator.begin_capture_pool(s, None).unwrap();
    gpu.begin_capture(s).unwrap();
    let output = allocator.alloc_on(3 * MIB, s).unwrap();
    let scratch = allocator.alloc_on(30 * MIB, s).unwrap();
    gpu.launch(s);
    drop(scratch);
    let graph = gpu.end_capture(s).unwrap();
    let graph = scope.end().unwrap().keep_with(graph);
    assert_eq!(graph.nodes.len(), 1);

    // Idle, but the graph's: neither the cache nor the driver gets it.
    let other = allocator.alloc_on(30 * MIB, s).unwrap();
    assert_eq!(allocator.memory_reserved(), (20 + 30 + 30) * MIB as u64);
    drop(other);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), (20 + 30) * MIB as u64);

    // A block may outlive its graph.
    drop(graph);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 20 * MIB as u64);
    drop(output);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 0);
    assert_eq!(gpu.used(), 0);
    gpu.assert_clean();
}

#[test]
fn graphs_that_share_a_pool_share_its_idle_memory() {
    let (gpu, allocator) = open(1 << 30, "");
    let s = gpu.create_stream();
    let mut graphs: Vec<PooledGraph<SimGraph>> = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let shared = graphs.first().map(|g| g.pool().id());
        let scope = allocator.begin_capture_pool(s, shared).unwrap();
        gpu.begin_capture(s).unwrap();
        addresses.push(allocator.alloc_on(30 * MIB, s).unwrap().address());
        let graph = gpu.end_capture(s).unwrap();
        graphs.push(scope.end().unwrap().keep_with(graph));
    }
    assert_eq!(addresses, [addresses[0]; 3]);
    for left in (0..3).rev() {
        assert_eq!(allocator.memory_reserved(), 30 * MIB as u64, "{left} graphs and one more");
        graphs.pop();
        allocator.empty_cache().unwrap();
    }
    assert_eq!(allocator.memory_reserved(), 0);
}

#[test]
fn a_mem_pool_can_be_captured_into() {
    let (gpu, allocator) = open(1 << 30, "");
    let s = gpu.create_stream();
    let pool = allocator.create_pool();
    pool.scope(|| drop(allocator.alloc_on(30 * MIB, s).unwrap())).unwrap();
    let scope = allocator.begin_capture_pool(s, Some(pool.id())).unwrap();
    assert_eq!((pool.use_count(), pool.id().0), (2, 0));
    gpu.begin_capture(s).unwrap();
    let block = allocator.alloc_on(30 * MIB, s).unwrap();
    assert_eq!(allocator.memory_reserved(), 30 * MIB as u64, "what was idle in the pool serves");
    drop(block);
    gpu.end_capture(s).unwrap();
    let graph = scope.end().unwrap();
    assert_eq!(pool.use_count(), 2, "the graph holds it");
    let id = pool.id();
    drop(pool);
    assert_eq!(allocator.memory_reserved(), 30 * MIB as u64);
    drop(graph);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 0);
    let gone = pool_error(allocator.release_pool(id));
    assert!(gone.contains("Could not find pool"), "{gone}");
}

#[test]
fn captures_cannot_be_nested() {
    let (gpu, allocator) = open(1 << 30, "");
    let [s, joined] = [0; 2].map(|_| gpu.create_stream());
    let default = pool_error(allocator.begin_capture_pool(Stream::DEFAULT, None));
    assert!(default.contains("default stream"), "{default}");

    let scope = allocator.begin_capture_pool(s, None).unwrap();
    let again = pool_error(allocator.begin_capture_pool(s, None));
    assert!(again.contains("nested"), "{again}");
    gpu.begin_capture(s).unwrap();
    order(&gpu, s, joined);
    for stream in [s, joined] {
        let again = pool_error(allocator.begin_capture_pool(stream, None));
        assert!(again.contains("nested"), "{again}");
    }
    let busy = pool_error(allocator.begin_capture_pool(gpu.create_stream(), Some(scope.pool_id())));
    assert_eq!(busy, "beginAllocateToPool: already recording to mempool_id");
    drop(scope);
    // A capture that the driver has begun already is taken as it is.
    drop(allocator.begin_capture_pool(s, None).unwrap());
}

#[test]
fn a_capture_given_up_gives_its_pool_up() {
    let (gpu, allocator) = open(1 << 30, "");
    let s = gpu.create_stream();
    let scope = allocator.begin_capture_pool(s, None).unwrap();
    let id = scope.pool_id();
    gpu.begin_capture(s).unwrap();
    drop(allocator.alloc_on(30 * MIB, s).unwrap());
    drop(scope);
    gpu.end_capture(s).unwrap();
    let released = pool_error(allocator.begin_capture_pool(s, Some(id)));
    assert!(released.contains("was released; make a new one"), "{released}");
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 0);
}

#[test]
fn a_failed_capture_keeps_to_its_pool_and_ends() {
    let (gpu, allocator) = open(1 << 30, "");
    let s = gpu.create_stream();
    let scope = allocator.begin_capture_pool(s, None).unwrap();
    gpu.begin_capture(s).unwrap();
    let block = allocator.alloc_on(MIB, s).unwrap();
    gpucache::device::Device::stream_synchronize(&gpu, s).unwrap_err();
    let more = allocator.alloc_on(MIB, s).unwrap();
    assert_eq!(pool_of(&allocator, &more), scope.pool_id());
    gpu.end_capture(s).unwrap_err();
    drop((block, more, scope));
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 0);
}

#[test]
fn nothing_is_waited_for_or_given_back_during_a_capture() {
    for options in ["", "expandable_segments:True"] {
        let (gpu, allocator) = open(1 << 30, options);
        let [s, side] = [0; 2].map(|_| gpu.create_stream());
        let given_up = allocator.create_pool();
        given_up.scope(|| drop(allocator.alloc_on(30 * MIB, s).unwrap())).unwrap();
        let scope = allocator.begin_capture_pool(s, None).unwrap();
        gpu.begin_capture(s).unwrap();
        drop(given_up);
        let block = allocator.alloc_on(3 * MIB, Stream::DEFAULT).unwrap();
        block.record_stream(side);
        drop(block);
        drop(allocator.alloc_on(3 * MIB, Stream::DEFAULT).unwrap());
        let report = allocator.empty_cache().unwrap();
        assert_eq!(report.freed_bytes, 0);
        gpu.end_capture(s).expect("the capture survives");
        drop(scope);
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.memory_reserved(), 0, "{options}");
        drop(allocator);
        gpu.assert_clean();
    }
}
