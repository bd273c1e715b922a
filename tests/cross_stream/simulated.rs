use std::collections::VecDeque;
use std::sync::Arc;

use gpucache::device::Stream;
use gpucache::device::sim::{CallKind, SimCall, SimDevice};
use gpucache::observe::history::TraceAction;
use gpucache::{Allocator, Config, HistoryOptions, TypedAllocation};

use super::naive::Naive;

const LEN: usize = 1 << 20;
const BYTES: u64 = 4 * LEN as u64;

fn device() -> (SimDevice, Stream, Stream) {
    let sim = SimDevice::new(4 << 30);
    let (a, b) = (sim.create_stream(), sim.create_stream());
    (sim, a, b)
}

#[test]
fn a_buffer_dropped_in_use_keeps_its_data() {
    let (sim, a, b) = device();
    for options in ["", "expandable_segments:True"] {
        let config = Config::parse(options).unwrap();
        let allocator = Allocator::builder().device(Arc::new(sim.clone())).config(config).build().unwrap();
        let buffer: TypedAllocation<f32> = allocator.typed(LEN, a).unwrap();
        let address = buffer.address();
        sim.write(a, address, BYTES, 1);
        sim.hold(b);
        sim.expect(b, address, BYTES, 1);
        buffer.record_stream(b);
        drop(buffer);

        let next: TypedAllocation<f32> = allocator.typed(LEN, a).unwrap();
        assert_ne!(next.address(), address, "handed out while the other stream reads it");
        sim.write(a, next.address(), BYTES, 7);
        sim.release(b);
        assert_eq!(sim.mismatches(), Vec::<String>::new());

        let after: TypedAllocation<f32> = allocator.typed(LEN, a).unwrap();
        assert_eq!(after.address(), address, "still kept back when the other stream is done");
        allocator.verify().unwrap();
    }
    sim.assert_clean();
}

#[test]
fn a_naive_allocator_spoils_it() {
    let (sim, a, b) = device();
    let mut naive = Naive::new(Arc::new(sim.clone()));
    let address = naive.alloc(BYTES, a);
    sim.write(a, address, BYTES, 1);
    sim.hold(b);
    sim.expect(b, address, BYTES, 1);
    naive.free(address, BYTES, a);
    let next = naive.alloc(BYTES, a);
    sim.write(a, next, BYTES, 7);
    sim.release(b);
    assert!(!sim.mismatches().is_empty(), "the test sees no reuse");
    naive.free(next, BYTES, a);
}

/// Buffers of two streams come and go at random while the other stream's readers are late.
#[test]
fn no_order_of_events_lets_data_be_spoiled() {
    let (sim, a, b) = device();
    let allocator = Allocator::simulated(sim.clone());
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let mut live: Vec<(TypedAllocation<u8>, u64)> = Vec::new();
    for stamp in 1..2000 {
        let (home, other) = if below(2) == 0 { (a, b) } else { (b, a) };
        match below(6) {
            0 => sim.hold(other),
            1 => sim.release(home),
            2 | 3 if !live.is_empty() => {
                let (buffer, value) = live.swap_remove(below(live.len() as u64) as usize);
                let reader = if buffer.stream() == a { b } else { a };
                // Only after the writer: data is handed over in order.
                sim.release(buffer.stream());
                sim.expect(reader, buffer.address(), buffer.num_bytes() as u64, value);
                buffer.record_stream(reader);
            }
            _ => {
                let buffer: TypedAllocation<u8> = allocator.typed(1 + below(3 << 20) as usize, home).unwrap();
                sim.write(home, buffer.address(), buffer.num_bytes() as u64, stamp);
                live.push((buffer, stamp));
            }
        }
        assert_eq!(sim.mismatches(), Vec::<String>::new(), "after step {stamp}");
    }
    drop(live);
    sim.release_all();
    allocator.verify().unwrap();
    drop(allocator);
    sim.assert_clean();
}

/// Five blocks wait at any time, and one event is done per pair: one query finds it, the next ends the search.
#[test]
fn a_recorded_pair_is_one_record_and_two_queries() {
    let (sim, a, b) = device();
    let allocator = Allocator::simulated(sim.clone());
    let mut pending = VecDeque::new();
    for round in 0..100 {
        if pending.len() == 5 {
            sim.complete_event(pending.pop_front().unwrap()).unwrap();
        }
        sim.reset_calls();
        sim.start_log();
        let block = allocator.alloc_on(4096, a).unwrap();
        block.record_stream(b);
        sim.stick_next_event();
        drop(block);
        let recorded = sim.take_log().into_iter().find_map(|logged| match logged.call {
            SimCall::EventRecord { event, .. } => Some(event),
            _ => None,
        });
        pending.push_back(recorded.unwrap());
        if round > 10 {
            assert_eq!((sim.calls(CallKind::EventRecord), sim.calls(CallKind::EventQuery)), (1, 2));
            assert_eq!(sim.total_calls(), 3);
        }
    }
    for event in pending {
        sim.complete_event(event).unwrap();
    }
    drop(allocator);
    sim.assert_clean();
}

/// Nothing looks in between, so that nothing need be settled: the history tells each half of each free, in its place.
#[test]
fn the_history_of_recorded_pairs_is_whole() {
    use TraceAction::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc};

    let (sim, a, b) = device();
    let allocator = Allocator::simulated(sim.clone());
    allocator.record_memory_history(Some(HistoryOptions::default()));
    let pair = || {
        let block = allocator.alloc_on(4096, a).unwrap();
        block.record_stream(b);
        block.address()
    };
    let addresses: Vec<u64> = (0..3).map(|_| pair()).collect();
    sim.hold(b);
    let last = pair();
    let beside = pair();
    sim.release(b);
    assert_eq!(addresses, [last; 3]);
    assert_ne!(beside, last);

    let once = |address| [(Alloc, address), (FreeRequested, address)];
    let pair = [(Alloc, last), (FreeRequested, last), (FreeCompleted, last)];
    let mut expected = vec![(SegmentAlloc, last)];
    expected.extend([pair; 3].concat());
    expected.extend([once(last), once(beside)].concat());
    let told = allocator.take_history().into_iter().map(|entry| (entry.action, entry.addr));
    assert_eq!(told.collect::<Vec<_>>(), expected);
    drop(allocator);
    sim.assert_clean();
}

#[test]
fn recorded_pairs_of_many_threads_leave_the_books_right() {
    let (sim, shared, side) = device();
    let allocator = Allocator::simulated(sim.clone());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (sim, allocator) = (&sim, &allocator);
            let home = if thread % 2 == 0 { shared } else { sim.create_stream() };
            scope.spawn(move || {
                for round in 0..1000_usize {
                    let address = allocator.alloc_raw(4096 << (round / 50 % 3), home).unwrap();
                    allocator.record_stream_raw(address, side).unwrap();
                    allocator.free_raw(address).unwrap();
                }
            });
        }
        scope.spawn(|| (0..100).for_each(|_| allocator.verify().unwrap()));
    });
    allocator.verify().unwrap();
    assert_eq!(allocator.memory_allocated(), 0);
    drop(allocator);
    sim.assert_clean();
}
