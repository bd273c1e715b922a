//! What a request that does not fit may have released [spec 4.2 step 5, 14.3].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpucache::device::Stream;
use gpucache::{Allocator, Forecast, Upstream};

use super::{MIB, open, open_with};

fn retries(allocator: &Allocator) -> i64 {
    allocator.memory_stats().num_alloc_retries
}

/// pytorch#159674
#[test]
fn a_pool_scope_is_no_reason_to_run_out_of_memory() {
    for (mirror, fits) in [(true, false), (false, true)] {
        let (gpu, allocator) = open_with(100 * MIB, "", mirror);
        let side = gpu.create_stream();
        drop(allocator.alloc(60 * MIB).unwrap());
        let pending = allocator.alloc(20 * MIB).unwrap();
        gpu.hold(side);
        pending.record_stream(side);
        let pool = allocator.create_pool();
        let answer = pool.scope(|| {
            // Freed inside the scope, so put off; the retry waits for it.
            drop(pending);
            allocator.alloc(90 * MIB).map(drop)
        });
        assert_eq!(answer.unwrap().is_ok(), fits, "with mirror_defects {mirror}");
        assert_eq!(retries(&allocator), i64::from(fits));
        allocator.verify().unwrap();
    }
}

#[test]
fn a_scope_elsewhere_does_not_stop_the_retry_either() {
    for (mirror, fits) in [(true, false), (false, true)] {
        let (_gpu, allocator) = open_with(100 * MIB, "", mirror);
        drop(allocator.alloc(60 * MIB).unwrap());
        let pool = allocator.create_pool();
        let answer = pool
            .scope(|| {
                std::thread::scope(|threads| {
                    threads.spawn(|| allocator.alloc(90 * MIB).is_ok()).join().unwrap()
                })
            })
            .unwrap();
        assert_eq!(answer, fits, "with mirror_defects {mirror}");
    }
}

#[test]
fn the_pools_own_idle_segments_go_too() {
    for (mirror, fits) in [(true, false), (false, true)] {
        let (_gpu, allocator) = open_with(100 * MIB, "", mirror);
        let pool = allocator.create_pool();
        let answer = pool.scope(|| {
            let small: Vec<_> = (0..5).map(|_| allocator.alloc(20 * MIB).unwrap()).collect();
            drop(small);
            allocator.alloc(90 * MIB).map(drop)
        });
        assert_eq!(answer.unwrap().is_ok(), fits, "with mirror_defects {mirror}");
    }
}

#[test]
fn idle_segments_that_a_graph_knows_stay() {
    let (gpu, allocator) = open(100 * MIB, "max_split_size_mb:20");
    let s = gpu.create_stream();
    let pool = allocator.create_pool();
    let scope = allocator.begin_capture_pool(s, Some(pool.id())).unwrap();
    gpu.begin_capture(s).unwrap();
    drop(allocator.alloc_on(60 * MIB, s).unwrap());
    assert!(allocator.alloc_on(90 * MIB, s).is_err(), "inside the capture");
    gpu.end_capture(s).unwrap();
    let graph = scope.end().unwrap();
    let answer = pool.scope(|| allocator.alloc_on(90 * MIB, s).map(drop)).unwrap();
    assert!(answer.is_err(), "after the capture");
    assert_eq!(allocator.memory_reserved(), 60 * MIB as u64, "a replay writes there");
    drop((graph, pool));
    drop(allocator.alloc_on(90 * MIB, s).unwrap());
}

/// PyTorch gives oversize segments of the capture's pool to the driver, although captured kernels use them.
#[test]
fn a_capture_does_not_give_its_oversize_segments_away() {
    for (mirror, reserved) in [(true, 70), (false, 80)] {
        let (gpu, allocator) = open_with(100 * MIB, "max_split_size_mb:20", mirror);
        let s = gpu.create_stream();
        let scope = allocator.begin_capture_pool(s, None).unwrap();
        gpu.begin_capture(s).unwrap();
        drop([0; 2].map(|_| allocator.alloc_on(40 * MIB, s).unwrap()));
        assert_eq!(allocator.alloc_on(70 * MIB, s).map(drop).is_ok(), mirror);
        assert_eq!(allocator.memory_reserved(), reserved * MIB as u64, "with mirror_defects {mirror}");
        gpu.end_capture(s).unwrap();
        drop(scope);
    }
}

#[test]
fn a_capture_fails_at_once_and_survives_it() {
    let (gpu, allocator) = open(100 * MIB, "");
    let s = gpu.create_stream();
    drop(allocator.alloc(60 * MIB).unwrap());
    let scope = allocator.begin_capture_pool(s, None).unwrap();
    gpu.begin_capture(s).unwrap();
    for (stream, what) in [(s, "its own request"), (Stream::DEFAULT, "another's")] {
        let error = allocator.alloc_on(90 * MIB, stream).unwrap_err();
        assert!(error.is_out_of_memory(), "{what}: {error}");
    }
    let stats = allocator.memory_stats();
    assert_eq!((stats.num_alloc_retries, stats.num_ooms, stats.num_sync_all_streams), (0, 2, 0));
    gpu.launch(s);
    gpu.end_capture(s).expect("the capture survives");
    drop(scope.end().unwrap());
    drop(allocator.alloc_on(90 * MIB, s).unwrap());
    assert_eq!(retries(&allocator), 1, "afterwards it is tried again");
}

#[test]
fn what_may_be_a_capture_is_treated_as_one() {
    let (_gpu, allocator) = open(100 * MIB, "");
    drop(allocator.alloc(60 * MIB).unwrap());
    let id = allocator.graph_pool_id();
    allocator.begin_allocate_to_pool(id, |_| true).unwrap();
    assert!(allocator.alloc(90 * MIB).is_err());
    assert_eq!(retries(&allocator), 0);
    allocator.end_allocate_to_pool(id).unwrap();
    drop(allocator.alloc(90 * MIB).unwrap());
}

#[test]
fn a_capture_borrows_from_no_other_stream() {
    let (gpu, allocator) = open(100 * MIB, "");
    let mut config = allocator.config();
    config.borrow_across_streams = true;
    let allocator = Allocator::builder().device(Arc::new(gpu.clone())).config(config).build().unwrap();
    let [s, lender] = [0; 2].map(|_| gpu.create_stream());
    let scope = allocator.begin_capture_pool(s, None).unwrap();
    gpu.begin_capture(s).unwrap();
    super::order(&gpu, s, lender);
    drop(allocator.alloc_on(60 * MIB, lender).unwrap());
    allocator.alloc_on(60 * MIB, s).unwrap_err();
    super::order(&gpu, lender, s);
    assert_eq!(gpu.end_capture(s).unwrap().nodes.len(), 0);
    drop(scope);
}

/// Overflow pools serve default requests before anything is released, but never from what a replay writes to.
#[test]
fn a_graphs_pool_does_not_help_out() {
    for (mirror, captured, helps) in [(true, true, true), (false, false, true), (false, true, false)] {
        let (gpu, allocator) = open_with(100 * MIB, "", mirror);
        let s = gpu.create_stream();
        let pool = allocator.create_pool();
        pool.set_use_on_oom(true);
        pool.scope(|| drop(allocator.alloc_on(80 * MIB, s).unwrap())).unwrap();
        if captured {
            let scope = allocator.begin_capture_pool(s, Some(pool.id())).unwrap();
            gpu.begin_capture(s).unwrap();
            drop(allocator.alloc_on(80 * MIB, s).unwrap());
            gpu.end_capture(s).unwrap();
            drop(scope.end().unwrap());
        }
        let block = allocator.alloc_on(50 * MIB, s);
        assert_eq!(block.is_ok(), helps, "with mirror_defects {mirror}, captured {captured}");
        assert_eq!(allocator.memory_reserved(), 80 * MIB as u64);
        assert_eq!(retries(&allocator), i64::from(!helps));
        pool.set_use_on_oom(false);
        assert!(allocator.alloc_on(60 * MIB, s).is_err());
    }
}

#[test]
fn the_forecast_knows_what_a_scope_may_release() {
    let (_gpu, allocator) = open(100 * MIB, "");
    let pool = allocator.create_pool();
    let answer = pool.scope(|| {
        drop([0; 4].map(|_| allocator.alloc(20 * MIB).unwrap()));
        (allocator.would_allocate(90 * MIB, Stream::DEFAULT).unwrap(), allocator.alloc(90 * MIB).is_ok())
    });
    assert_eq!(answer.unwrap(), (Forecast::Release { segment_size: 90 * MIB as u64 }, true));
}

/// One arena of 64 MiB that gives out whole segments, one after the other.
#[derive(Default)]
struct Arena {
    used: AtomicU64,
}

impl Upstream for Arena {
    fn alloc(&self, bytes: u64, _stream: Stream) -> Option<u64> {
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            (used + bytes <= 64 * MIB as u64).then_some(used + bytes)
        });
        taken.ok().map(|at| (1 << 40) + at)
    }

    fn free(&self, _address: u64, bytes: u64, _stream: Stream) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

#[test]
fn a_pool_over_an_arena_gets_its_idle_segments_back() {
    let (_gpu, allocator) = open(1 << 30, "");
    let arena = Arc::new(Arena::default());
    let pool = allocator.create_pool_with(arena.clone());
    pool.scope(|| {
        drop([allocator.alloc(20 * MIB).unwrap(), allocator.alloc(20 * MIB).unwrap()]);
        drop(allocator.alloc(60 * MIB).unwrap());
    })
    .unwrap();
    assert_eq!(allocator.memory_reserved(), 60 * MIB as u64);
    drop(pool);
    assert_eq!(arena.used.load(Ordering::Acquire), 0);
}
