//! The simulated GPU: streams, events, kernels that touch memory.

use crate::code;
use gpucache::device::sim::{AddressPolicy, SimDevice};
use gpucache::device::{Device, Event, HandleType, Stream};

fn gpu() -> SimDevice {
    SimDevice::new(1 << 30)
}

#[test]
fn an_event_is_complete_unless_its_stream_is_held() {
    let gpu = gpu();
    let (s, t) = (gpu.create_stream(), gpu.create_stream());
    assert!(Stream::DEFAULT < s && s < t);
    let (e, f) = (gpu.event_create().unwrap(), gpu.event_create().unwrap());
    assert!(gpu.event_query(e).unwrap(), "never recorded");
    gpu.event_record(e, s).unwrap();
    assert!(gpu.event_query(e).unwrap());
    gpu.hold(s);
    assert!(gpu.event_query(e).unwrap(), "was complete before");
    gpu.event_record(e, s).unwrap();
    gpu.event_record(f, t).unwrap();
    assert!(!gpu.event_query(e).unwrap());
    assert!(gpu.event_query(f).unwrap(), "another stream");
    gpu.release(s);
    assert!(gpu.event_query(e).unwrap());
    assert_eq!(gpu.blocked_waits(), 0);
}

#[test]
fn a_new_record_forgets_the_old_one() {
    let gpu = gpu();
    let s = gpu.create_stream();
    let e = gpu.event_create().unwrap();
    gpu.hold(s);
    gpu.event_record(e, s).unwrap();
    gpu.event_record(e, Stream::DEFAULT).unwrap();
    assert!(gpu.event_query(e).unwrap());
    gpu.release(s);
    assert!(gpu.event_query(e).unwrap());
}

#[test]
fn every_blocking_call_lets_held_streams_finish_and_is_counted() {
    type Wait = fn(&SimDevice, Stream, Event);
    let waits: [Wait; 4] = [
        |gpu, _, e| gpu.event_synchronize(e).unwrap(),
        |gpu, s, _| gpu.stream_synchronize(s).unwrap(),
        |gpu, _, _| gpu.device_synchronize().unwrap(),
        |gpu, _, _| {
            let a = gpu.malloc(512).unwrap();
            gpu.free(a).unwrap();
        },
    ];
    for wait in waits {
        let gpu = gpu();
        let (s, t) = (gpu.create_stream(), gpu.create_stream());
        let e = gpu.event_create().unwrap();
        let f = gpu.event_create().unwrap();
        wait(&gpu, s, e);
        assert_eq!(gpu.blocked_waits(), 0);
        gpu.hold(s);
        gpu.hold(t);
        gpu.event_record(e, s).unwrap();
        gpu.event_record(f, t).unwrap();
        wait(&gpu, s, e);
        assert_eq!(gpu.blocked_waits(), 1);
        assert!(gpu.event_query(f).unwrap(), "all held streams finish");
        gpu.event_record(f, t).unwrap();
        assert!(gpu.event_query(f).unwrap(), "and are not held any more");
    }
}

#[test]
fn waiting_for_a_held_stream_can_be_an_error() {
    let gpu = SimDevice::builder().deadlock_on_wait(true).build();
    let s = gpu.create_stream();
    let a = gpu.malloc(512).unwrap();
    gpu.hold(s);
    assert_eq!(code(gpu.device_synchronize()), 702);
    assert_eq!(code(gpu.free(a)), 702);
    gpu.stream_synchronize(Stream::DEFAULT).unwrap();
    gpu.release_all();
    gpu.free(a).unwrap();
    gpu.assert_clean();
}

#[test]
fn free_need_not_wait() {
    let gpu = SimDevice::builder().free_waits(false).build();
    let a = gpu.malloc(512).unwrap();
    gpu.hold(Stream::DEFAULT);
    gpu.free(a).unwrap();
    assert_eq!(gpu.blocked_waits(), 0);
}

#[test]
fn a_stuck_event_completes_only_by_hand() {
    let gpu = gpu();
    let e = gpu.event_create().unwrap();
    gpu.stick_next_event();
    gpu.event_record(e, Stream::DEFAULT).unwrap();
    assert!(!gpu.event_query(e).unwrap());
    gpu.device_synchronize().unwrap();
    assert_eq!(code(gpu.event_synchronize(e)), 702);
    let s = gpu.create_stream();
    gpu.stream_wait_event(s, e).unwrap();
    assert_eq!(code(gpu.stream_synchronize(s)), 702);
    gpu.complete_event(e).unwrap();
    gpu.stream_synchronize(s).unwrap();
    assert!(gpu.event_query(e).unwrap());
    gpu.event_destroy(e).unwrap();
    gpu.assert_clean();
}

#[test]
fn events_and_streams_that_do_not_exist() {
    let gpu = SimDevice::builder().strict_streams(true).build();
    let s = gpu.create_stream();
    let e = gpu.event_create().unwrap();
    assert_eq!(code(gpu.event_query(Event(99))), 400);
    assert_eq!(code(gpu.event_record(e, Stream::from_raw(0xabc))), 400);
    gpu.destroy_stream(s).unwrap();
    assert_eq!(code(gpu.stream_wait_event(s, e)), 400);
    gpu.event_destroy(e).unwrap();
    assert_eq!(code(gpu.event_destroy(e)), 400);
    assert_eq!(code(gpu.event_record(e, Stream::DEFAULT)), 400);
    let misuses = gpu.misuses();
    assert_eq!(misuses.len(), 5, "{misuses:?}");
    assert!(misuses[0].contains("unknown") && misuses[4].contains("destroyed"), "{misuses:?}");
}

#[test]
fn a_pending_event_may_be_destroyed() {
    let gpu = gpu();
    let (s, t) = (gpu.create_stream(), gpu.create_stream());
    let a = gpu.malloc(512).unwrap();
    let e = gpu.event_create().unwrap();
    gpu.hold(s);
    gpu.event_record(e, s).unwrap();
    gpu.stream_wait_event(t, e).unwrap();
    gpu.event_destroy(e).unwrap();
    gpu.write(t, a, 512, 7);
    assert_eq!(gpu.read_now(a), None, "still waits for the event");
    gpu.release(s);
    assert_eq!(gpu.read_now(a), Some(7));
    gpu.free(a).unwrap();
    gpu.assert_clean();
}

#[test]
fn kernels_run_when_their_stream_comes_to_them() {
    let gpu = gpu();
    let (s, t) = (gpu.create_stream(), gpu.create_stream());
    let a = gpu.malloc(1024).unwrap();
    gpu.write(s, a, 1024, 1);
    assert_eq!(gpu.read_now(a + 1023), Some(1));
    gpu.hold(s);
    gpu.expect(s, a, 1024, 1);
    gpu.write(t, a + 100, 8, 2); // the other stream does not wait: a race
    gpu.release(s);
    assert_eq!(gpu.mismatches().len(), 1);
    assert!(gpu.mismatches()[0].contains("expected 1, found Some(2)"), "{:?}", gpu.mismatches());
}

#[test]
fn an_event_orders_two_streams() {
    let gpu = gpu();
    let (s, t) = (gpu.create_stream(), gpu.create_stream());
    let a = gpu.malloc(1024).unwrap();
    let e = gpu.event_create().unwrap();
    gpu.write(s, a, 1024, 1);
    gpu.hold(s);
    gpu.expect(s, a, 1024, 1);
    gpu.event_record(e, s).unwrap();
    gpu.stream_wait_event(t, e).unwrap();
    gpu.write(t, a, 1024, 2);
    gpu.event_record(e, t).unwrap(); // the wait keeps meaning the first record
    assert!(!gpu.event_query(e).unwrap());
    assert_eq!(gpu.read_now(a), Some(1));
    gpu.release(s);
    assert_eq!(gpu.read_now(a), Some(2));
    assert!(gpu.event_query(e).unwrap());
    assert_eq!(gpu.mismatches(), Vec::<String>::new());
}

#[test]
fn new_memory_has_no_content() {
    let gpu = SimDevice::builder().address_policy(AddressPolicy::FirstFit).build();
    let a = gpu.malloc(1024).unwrap();
    gpu.write(Stream::DEFAULT, a, 1024, 1);
    gpu.free(a).unwrap();
    assert_eq!(gpu.read_now(a), None);
    assert_eq!(gpu.malloc(1024).unwrap(), a);
    assert_eq!(gpu.read_now(a), None);
}

#[test]
fn a_wait_means_the_record_that_was_there() {
    let gpu = gpu();
    let (s, t) = (gpu.create_stream(), gpu.create_stream());
    let a = gpu.malloc(1024).unwrap();
    let e = gpu.event_create().unwrap();
    gpu.hold(s);
    gpu.event_record(e, s).unwrap();
    gpu.stream_wait_event(t, e).unwrap();
    gpu.event_record(e, Stream::DEFAULT).unwrap(); // complete at once, but t waits for the first record
    gpu.write(t, a, 1024, 1);
    assert_eq!(gpu.read_now(a), None);
    gpu.release(s);
    assert_eq!(gpu.read_now(a), Some(1));
}

#[test]
fn touching_memory_that_is_gone_is_a_misuse() {
    let gpu = SimDevice::builder().free_waits(false).build();
    let s = gpu.create_stream();
    let a = gpu.malloc(1024).unwrap();
    gpu.hold(s);
    gpu.write(s, a, 1024, 1);
    gpu.free(a).unwrap();
    gpu.release(s);
    assert!(gpu.misuses()[0].contains("illegal address"), "{:?}", gpu.misuses());
    let b = gpu.malloc(1024).unwrap();
    gpu.write(s, b, 1025, 1);
    assert_eq!(gpu.misuses().len(), 2, "one byte too far");
    gpu.write(s, u64::MAX, u64::MAX, 1);
    assert_eq!(gpu.misuses().len(), 3);
}

#[test]
fn one_page_at_two_addresses_is_one_content() {
    let gpu = gpu();
    let page = 2 << 20;
    let at = gpu.address_reserve(3 * page).unwrap();
    let [h, k] = [0, 1].map(|_| gpu.mem_create(page, HandleType::None).unwrap());
    for (n, handle) in [h, k, h].into_iter().enumerate() {
        gpu.mem_map(at + n as u64 * page, page, handle).unwrap();
    }
    gpu.mem_set_access(at, 3 * page, 0).unwrap();
    gpu.write(Stream::DEFAULT, at + 2 * page, page, 5);
    assert_eq!(gpu.read_now(at), Some(5));
    assert_eq!(gpu.read_now(at + page), None);
    gpu.write(Stream::DEFAULT, at + page - 1, 2, 6); // across two mappings
    assert_eq!(gpu.read_now(at + 3 * page - 1), Some(6));
    gpu.mem_unmap(at, page).unwrap();
    assert_eq!(gpu.read_now(at), None);
    gpu.expect(Stream::DEFAULT, at + 2 * page, page - 1, 5);
    assert_eq!((gpu.mismatches(), gpu.misuses()), (vec![], vec![]));
}

#[test]
fn unmapping_under_a_busy_stream_is_seen() {
    let gpu = gpu();
    let page = 2 << 20;
    let at = gpu.address_reserve(page).unwrap();
    let h = gpu.mem_create(page, HandleType::None).unwrap();
    gpu.mem_map(at, page, h).unwrap();
    gpu.write(Stream::DEFAULT, at, 1, 1);
    assert_eq!(gpu.misuses().len(), 1, "no access rights yet");
    gpu.mem_set_access(at, page, 0).unwrap();
    gpu.hold(Stream::DEFAULT);
    gpu.write(Stream::DEFAULT, at, 1, 1);
    gpu.mem_unmap(at, page).unwrap(); // the driver does not wait here
    gpu.release_all();
    assert_eq!(gpu.misuses().len(), 2);
}
