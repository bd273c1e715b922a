//! Threads that hammer one allocator: the books are right in the end, and so are the peaks.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;
use gpucache::{Allocation, Allocator, Config};

use super::MIB;

const THREADS: usize = 4;
const ROUNDS: usize = 300;

fn fresh() -> (SimDevice, Allocator) {
    let device = SimDevice::default();
    (device.clone(), Allocator::simulated(device))
}

/// Sizes of all kinds, the same for every run.
fn size(thread: usize, round: usize) -> usize {
    let mixed = (thread * 7919 + round * 104_729) % 1000;
    match mixed % 3 {
        0 => 1 + mixed * 300,
        1 => MIB + mixed * 4096,
        _ => 10 * MIB + mixed * 512,
    }
}

fn hammer(stream_of: impl Fn(usize, usize) -> Stream + Sync) {
    let (device, allocator) = fresh();
    thread::scope(|s| {
        for t in 0..THREADS {
            let (allocator, stream_of) = (&allocator, &stream_of);
            s.spawn(move || {
                let mut held: Vec<Allocation> = Vec::new();
                for round in 0..ROUNDS {
                    held.push(allocator.alloc_on(size(t, round), stream_of(t, round)).unwrap());
                    if round % 50 == 49 {
                        allocator.empty_cache().unwrap();
                    }
                    if held.len() > 3 {
                        held.swap_remove(round % 3);
                    }
                }
            });
        }
    });
    check(&allocator);
    drop(allocator);
    device.assert_clean();
}

/// Every thread has ended: nothing is in use, and every allocation was counted once.
fn check(allocator: &Allocator) {
    allocator.verify().unwrap();
    let stats = allocator.memory_stats();
    let count = (THREADS * ROUNDS) as i64;
    assert_eq!((stats.allocation.all.current, stats.allocation.all.allocated), (0, count));
    assert_eq!((stats.active.all.current, stats.active.all.freed), (0, count));
    let requested: usize = (0..THREADS).flat_map(|t| (0..ROUNDS).map(move |r| size(t, r))).sum();
    assert_eq!(stats.requested_bytes.all.allocated, requested as i64);
    assert_eq!(stats.requested_bytes.all.freed, requested as i64);
    assert_eq!(stats.allocated_bytes.all.current, 0);
    assert_eq!(stats.inactive_split_bytes.all.current, 0);
    assert!(stats.allocated_bytes.all.peak <= stats.reserved_bytes.all.peak);
}

#[test]
fn each_on_its_own_stream() {
    hammer(|thread, _| Stream::from_raw(8 * thread as u64));
}

#[test]
fn all_on_one_stream() {
    hammer(|_, _| Stream::DEFAULT);
}

#[test]
fn everybody_on_every_stream() {
    hammer(|thread, round| Stream::from_raw(((thread + round) % 7) as u64));
}

#[test]
fn freed_by_other_threads() {
    let (device, allocator) = fresh();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Allocation>()).unzip();
    thread::scope(|s| {
        for (t, receiver) in receivers.into_iter().enumerate() {
            // Each gives to the next one.
            let (allocator, give) = (&allocator, senders[(t + 1) % THREADS].clone());
            let stream = Stream::from_raw(t as u64);
            s.spawn(move || {
                for round in 0..ROUNDS {
                    let block = allocator.alloc_on(size(t, round), stream).unwrap();
                    if round % 2 == 0 {
                        block.record_stream(Stream::from_raw((t as u64 + 1) % THREADS as u64));
                    }
                    give.send(block).unwrap();
                    if round % 3 != 0 {
                        drop(receiver.recv().unwrap());
                    }
                }
                drop(give);
                receiver.iter().for_each(drop);
            });
        }
        drop(senders);
    });
    // Frees with recorded streams are done once their events are.
    allocator.empty_cache().unwrap();
    check(&allocator);
    drop(allocator);
    device.assert_clean();
}

/// Whoever is faster frees it, or makes a handle of it; the others are told.
#[test]
fn one_address_is_freed_once() {
    let (device, allocator) = fresh();
    // Without a word of other shards in between, so that blocks are parked; and with, so that they are not.
    let stream = |round: usize| Stream::from_raw(if round < ROUNDS { 8 } else { 8 * (round % 3) as u64 });
    let (start, end) = (Barrier::new(THREADS), Barrier::new(THREADS));
    let (address, freed) = (AtomicU64::new(0), AtomicUsize::new(0));
    thread::scope(|s| {
        for t in 0..THREADS {
            let (allocator, start, end, address, freed) = (&allocator, &start, &end, &address, &freed);
            s.spawn(move || {
                for round in 0..2 * ROUNDS {
                    if t == 0 {
                        let bytes = size(round, round);
                        address.store(allocator.alloc_raw(bytes, stream(round)).unwrap(), Ordering::Relaxed);
                    }
                    start.wait();
                    let mine = address.load(Ordering::Relaxed);
                    if (t + round) % 3 == 0 {
                        // It may be too late.
                        let _ = allocator.record_stream_raw(mine, Stream::from_raw(99));
                    }
                    let done = match (t + round) % 2 {
                        0 => allocator.adopt_raw(mine).map(drop),
                        _ => allocator.free_raw(mine),
                    };
                    freed.fetch_add(usize::from(done.is_ok()), Ordering::Relaxed);
                    end.wait();
                }
            });
        }
    });
    assert_eq!(freed.into_inner(), 2 * ROUNDS);
    allocator.empty_cache().unwrap();
    allocator.verify().unwrap();
    let stats = allocator.memory_stats();
    let count = 2 * ROUNDS as i64;
    assert_eq!((stats.allocation.all.allocated, stats.allocation.all.freed), (count, count));
    drop(allocator);
    device.assert_clean();
}

/// Every feature from every thread at once; the books are right at any moment.
#[test]
fn everything_at_once() {
    for options in [
        "borrow_across_streams:True,release_idle_after_ms:1",
        "expandable_segments:True,max_split_size_mb:64",
    ] {
        let device = SimDevice::default();
        let config = Config::parse(options).unwrap();
        let allocator = Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap();
        let scope = allocator.scope("all").with_budget(1 << 30);
        thread::scope(|s| {
            for t in 0..THREADS {
                let (allocator, scope, device) = (&allocator, &scope, &device);
                s.spawn(move || {
                    let stream = |n: usize| Stream::from_raw((n % 5) as u64);
                    let own = scope.scope(&t.to_string());
                    for round in 0..ROUNDS {
                        let _inside = (round % 7 == t).then(|| own.enter());
                        let block = allocator.alloc_on(size(t, round), stream(t + round)).unwrap();
                        block.record_stream(stream(round));
                        let other = own.alloc_on(size(round, t), stream(round)).unwrap();
                        drop(block);
                        match round % 60 {
                            10 => drop(allocator.empty_cache().unwrap()),
                            20 => drop(allocator.memory_snapshot()),
                            30 => allocator.verify().unwrap(),
                            40 => drop(allocator.release_idle().unwrap()),
                            50 => device.advance(Duration::from_millis(1)),
                            _ => {}
                        }
                        drop(other);
                    }
                });
            }
        });
        allocator.empty_cache().unwrap();
        allocator.verify().unwrap();
        let stats = allocator.memory_stats();
        assert_eq!(stats.allocation.all.allocated, (2 * THREADS * ROUNDS) as i64, "{options}");
        assert_eq!((stats.active.all.current, stats.reserved_bytes.all.current), (0, 0), "{options}");
        let whole = scope.stats();
        let parts: i64 = allocator.scopes()[1..].iter().map(|s| s.bytes.allocated).sum();
        assert_eq!((whole.bytes.current, whole.bytes.allocated), (0, parts), "{options}");
        drop((scope, allocator));
        device.assert_clean();
    }
}

/// A collection takes the age of blocks that others free while it looks: none is younger than the present.
#[test]
fn garbage_is_collected_beside_hits() {
    let device = SimDevice::new(1 << 30);
    let config = Config::parse("garbage_collection_threshold:0.1,per_process_memory_fraction:0.9").unwrap();
    let allocator = Allocator::builder().device(Arc::new(device.clone())).config(config).build().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        for t in 1..THREADS {
            let (allocator, over) = (&allocator, &over);
            s.spawn(move || {
                for _ in 0..100_000 {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    drop(allocator.alloc_on(3 * MIB, Stream::from_raw(8 * t as u64)).unwrap());
                }
            });
        }
        // Each is larger than the one before, so each misses.
        for round in 0..300 {
            drop(allocator.alloc(100 * MIB + round * 2 * MIB).unwrap());
        }
        over.store(true, Ordering::Relaxed);
    });
    allocator.verify().unwrap();
    assert!(allocator.memory_stats().num_device_free > 0);
    drop(allocator);
    device.assert_clean();
}

/// Barriers make the overlap known, so the peaks are known: not a byte more, and not a byte less.
#[test]
fn the_peaks_are_exact() {
    for same_stream in [true, false] {
        let (_, allocator) = fresh();
        // Warm, so that later rounds are hits; and the streams have all been seen.
        let stream = |t: usize| Stream::from_raw(if same_stream { 8 } else { 8 * t as u64 });
        let all: Vec<_> = (0..THREADS).map(|t| allocator.alloc_on(8 * MIB, stream(t)).unwrap()).collect();
        drop(all);
        let barrier = Barrier::new(THREADS);
        for round in 1..=20 {
            allocator.reset_peak_memory_stats();
            thread::scope(|s| {
                for t in 0..THREADS {
                    let (allocator, barrier) = (&allocator, &barrier);
                    s.spawn(move || {
                        barrier.wait();
                        // Everybody's block is alive at once here, and this is the most.
                        let block = allocator.alloc_on((t + 1) * round * 4096, stream(t)).unwrap();
                        barrier.wait();
                        drop(block);
                        barrier.wait();
                        // Afterwards one at a time is alive, or a few: less than before in any case.
                        drop(allocator.alloc_on((t + 1) * round * 1024, stream(t)).unwrap());
                    });
                }
            });
            let stats = allocator.memory_stats();
            let expected = (1..=THREADS).sum::<usize>() * round * 4096;
            assert_eq!(stats.allocated_bytes.all.peak, expected as i64, "round {round}, {same_stream}");
            assert_eq!(stats.requested_bytes.all.peak, expected as i64);
            assert_eq!(stats.active_bytes.all.peak, expected as i64);
            assert_eq!(stats.allocation.all.peak, THREADS as i64);
            assert_eq!(stats.allocation.small_pool.peak, THREADS as i64);
            assert_eq!(stats.allocated_bytes.all.current, 0);
        }
        allocator.verify().unwrap();
    }
}

/// A failure says which settings were in force: the report must not wait for who changes them while that one waits for
/// what the report holds.
#[test]
fn a_request_fails_while_settings_change() {
    let (tell, told) = mpsc::channel();
    // Not scoped: threads that wait for each other would keep the test from failing.
    thread::spawn(move || {
        let allocator = Allocator::simulated(SimDevice::new(64 << 20));
        let failing = AtomicUsize::new(THREADS - 1);
        thread::scope(|s| {
            for t in 1..THREADS {
                let (allocator, failing) = (&allocator, &failing);
                s.spawn(move || {
                    for _ in 0..5 * ROUNDS {
                        allocator.alloc_on(100 * MIB, Stream::from_raw(8 * t as u64)).unwrap_err();
                    }
                    failing.fetch_sub(1, Ordering::Relaxed);
                });
            }
            while failing.load(Ordering::Relaxed) > 0 {
                allocator.set_per_process_memory_fraction(0.9).unwrap();
                allocator.set_allocator_settings("garbage_collection_threshold:0.5").unwrap();
            }
        });
        tell.send(()).unwrap();
    });
    assert!(told.recv_timeout(Duration::from_secs(60)).is_ok(), "the threads wait for each other");
}
