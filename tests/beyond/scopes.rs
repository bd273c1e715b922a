//! Tagged accounting.

use std::thread;

use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;
use gpucache::{Allocator, Error, Scope};

use super::{MIB, allocator};

fn figures(scope: &Scope) -> (i64, i64, i64) {
    let stats = scope.stats();
    (stats.bytes.current, stats.bytes.peak, stats.allocations.current)
}

fn fresh() -> (SimDevice, Allocator) {
    let device = SimDevice::new(1 << 30);
    let allocator = allocator(&device, "");
    (device, allocator)
}

#[test]
fn counts_blocks_as_the_statistics_do() {
    let (_, allocator) = fresh();
    let scope = allocator.scope("kv-cache");
    let small = scope.alloc(1000).unwrap();
    let large = scope.alloc_on(3 * MIB, Stream::from_raw(8)).unwrap();
    let _outside = allocator.alloc(5 * MIB).unwrap();
    assert_eq!(figures(&scope), (1024 + 3 * MIB as i64, 1024 + 3 * MIB as i64, 2));
    drop(small);
    drop(large);
    assert_eq!(figures(&scope), (0, 1024 + 3 * MIB as i64, 0));
    assert_eq!(scope.stats().bytes.allocated, scope.stats().bytes.freed);
    let block = scope.alloc(2000).unwrap();
    allocator.reset_peak_memory_stats();
    assert_eq!(figures(&scope), (2048, 2048, 1));
    drop(block);
    allocator.verify().unwrap();
}

#[test]
fn one_name_is_one_scope() {
    let (_, allocator) = fresh();
    let _block = allocator.scope("a").alloc(512).unwrap();
    assert_eq!(figures(&allocator.scope("a")).0, 512);
    assert_eq!(figures(&allocator.scope("b")).0, 0);
    // A child of the same name is another scope.
    assert_eq!(figures(&allocator.scope("b").scope("a")).0, 0);
    let names: Vec<String> = allocator.scopes().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["a", "b", "b/a"]);
}

#[test]
fn a_child_counts_in_its_parents() {
    let (_, allocator) = fresh();
    let model = allocator.scope("model");
    let layer = model.scope("layer0").scope("weights");
    let block = layer.alloc(MIB).unwrap();
    let _own = model.alloc(512).unwrap();
    assert_eq!(figures(&layer).0, MIB as i64);
    assert_eq!(figures(&model), (MIB as i64 + 512, MIB as i64 + 512, 2));
    assert_eq!(layer.stats().name, "model/layer0/weights");
    drop(block);
    assert_eq!(figures(&model).0, 512);
}

#[test]
fn an_entered_scope_counts_everything_of_its_thread() {
    let (_, allocator) = fresh();
    let scope = allocator.scope("step");
    let guard = scope.enter();
    let block = allocator.alloc(512).unwrap();
    let address = allocator.alloc_raw(512, Stream::DEFAULT).unwrap();
    thread::scope(|s| {
        s.spawn(|| drop(allocator.alloc(MIB).unwrap()));
    });
    assert_eq!(figures(&scope), (1024, 1024, 2), "the other thread's does not count");
    drop(guard);
    let _later = allocator.alloc(512).unwrap();
    assert_eq!(figures(&scope).0, 1024);
    // Freed elsewhere, and after the scope was left.
    thread::spawn(move || drop(block)).join().unwrap();
    allocator.free_raw(address).unwrap();
    assert_eq!(figures(&scope), (0, 1024, 0));
}

#[test]
fn scopes_entered_inside_each_other_all_count_once() {
    let (_, allocator) = fresh();
    let (a, b) = (allocator.scope("a"), allocator.scope("b"));
    let child = a.scope("child");
    let in_a = a.enter();
    let in_b = b.enter();
    let both = allocator.alloc(512).unwrap();
    assert_eq!((figures(&a).0, figures(&b).0), (512, 512));
    let third = child.alloc(512).unwrap();
    assert_eq!([&a, &b, &child].map(|s| figures(s).0), [1024, 1024, 512], "a counts once, not twice");
    // Left in the wrong order.
    drop(in_a);
    let only_b = allocator.alloc(512).unwrap();
    assert_eq!([&a, &b].map(|s| figures(s).0), [1024, 1536]);
    drop(in_b);
    drop((both, third, only_b));
    assert_eq!([&a, &b, &child].map(|s| figures(s).0), [0; 3]);
}

#[test]
fn an_entered_scope_is_of_one_allocator() {
    let (_, first) = fresh();
    let (_, second) = fresh();
    let _guard = first.scope("x").enter();
    let _other = second.scope("x").enter();
    let _block = second.alloc(512).unwrap();
    assert_eq!(first.scopes()[0].bytes.current, 0);
    assert_eq!(second.scopes()[0].bytes.current, 512);
}

#[test]
fn a_budget_refuses_before_anything_is_done() {
    let (device, allocator) = fresh();
    let parent = allocator.scope("model").with_budget(10 * MIB as u64);
    let scope = parent.scope("kv").with_budget(8 * MIB as u64);
    let held = scope.alloc(6 * MIB).unwrap();
    let (calls, stats) = (device.total_calls(), allocator.memory_stats());
    let error = scope.alloc(3 * MIB).unwrap_err();
    assert!(error.is_out_of_memory());
    let Error::ScopeBudget { scope: name, budget, in_use, requested } = error else { panic!("{error}") };
    assert_eq!((name.as_str(), budget), ("model/kv", 8 << 20));
    assert_eq!((in_use, requested), (6 << 20, 3 << 20));
    assert_eq!((device.total_calls(), allocator.memory_stats()), (calls, stats), "nothing happened");
    assert_eq!(figures(&scope), (6 * MIB as i64, 6 * MIB as i64, 1));

    // The parent's budget holds for what a child asks for; the exact rest is granted.
    let sibling = parent.scope("other");
    let refused = sibling.alloc(4 * MIB + 1).unwrap_err();
    assert!(matches!(refused, Error::ScopeBudget { ref scope, .. } if scope == "model"), "{refused}");
    let rest = sibling.alloc(4 * MIB).unwrap();
    assert!(parent.alloc(1).is_err());
    // Without a budget, and with one below what is in use.
    parent.set_budget(None);
    drop(parent.alloc(MIB).unwrap());
    parent.set_budget(Some(1));
    assert!(parent.alloc(1).is_err());
    drop((held, rest));
    assert_eq!(figures(&parent).0, 0);
}

#[test]
fn a_request_that_fails_otherwise_leaves_the_budget_whole() {
    let device = SimDevice::new(64 << 20);
    let allocator = allocator(&device, "");
    let scope = allocator.scope("x").with_budget(1 << 40);
    assert!(matches!(scope.alloc(100 * MIB), Err(Error::OutOfMemory(_))));
    assert!(matches!(scope.alloc(usize::MAX), Err(Error::TooLarge { .. })));
    assert!(scope.alloc(0).unwrap().is_empty());
    assert_eq!(figures(&scope), (0, 0, 0));
    scope.set_budget(Some(32 << 20));
    drop(scope.alloc(32 * MIB).unwrap());
}

#[test]
fn uncached_memory_is_not_counted() {
    let (device, allocator) = fresh();
    allocator.caching_allocator_enable(false).unwrap();
    let scope = allocator.scope("x");
    drop(scope.alloc(512).unwrap());
    assert_eq!(figures(&scope), (0, 0, 0));
    drop((scope, allocator));
    device.assert_clean();
}

#[test]
fn a_pending_block_is_no_longer_counted() {
    let (device, allocator) = fresh();
    let side = Stream::from_raw(8);
    let scope = allocator.scope("x");
    let block = scope.alloc(512).unwrap();
    device.hold(side);
    block.record_stream(side);
    drop(block);
    assert_eq!(figures(&scope).0, 0, "as allocated_bytes");
    assert_eq!(allocator.memory_stats().active.all.current, 1);
}

/// The budget is exact under threads: never more than fits, and nothing of it is lost.
#[test]
fn threads_share_a_budget() {
    let (_, allocator) = fresh();
    let scope = allocator.scope("x").with_budget(4 * 1024);
    let granted: usize = thread::scope(|s| {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let scope = &scope;
                s.spawn(move || {
                    (0..200).filter(|_| scope.alloc_on(1024, Stream::from_raw(n)).is_ok()).count()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    let stats = scope.stats();
    assert!(granted >= 4 && stats.bytes.peak <= 4096, "{stats:?}");
    assert_eq!(stats.allocations.allocated, granted as i64);
    assert_eq!(stats.bytes.current, 0);
    let all: Vec<_> = (0..4).map(|_| scope.alloc(1024).unwrap()).collect();
    assert!(scope.alloc(1).is_err());
    drop(all);
    allocator.verify().unwrap();
}
