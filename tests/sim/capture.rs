//! The simulated GPU: stream capture.

use crate::code;
use gpucache::device::sim::SimDevice;
use gpucache::device::{Device, DeviceError, Stream};

#[test]
fn launches_become_a_chain_of_nodes() {
    let gpu = SimDevice::new(1 << 30);
    let s = gpu.create_stream();
    assert_eq!(gpu.launch(s), None);
    let id = gpu.begin_capture(s).unwrap();
    assert_eq!(gpu.capture_status(s).unwrap(), Some(id));
    assert_eq!(gpu.capture_status(Stream::DEFAULT).unwrap(), None);
    assert_eq!(gpu.capture_terminals(s).unwrap(), []);
    let a = gpu.launch(s).unwrap();
    let b = gpu.launch(s).unwrap();
    assert_eq!(gpu.capture_terminals(s).unwrap(), [b]);
    assert_eq!(gpu.graph_node_dependencies(b).unwrap(), [a]);
    let graph = gpu.end_capture(s).unwrap();
    assert_eq!(graph.nodes, [(a, vec![]), (b, vec![a])]);
    assert_eq!(gpu.capture_status(s).unwrap(), None);
    assert_eq!(code(gpu.capture_terminals(s)), 1);
    assert_eq!(code(gpu.graph_node_dependencies(b)), 1);
}

#[test]
fn capture_ids_differ_between_devices() {
    let (one, two) = (SimDevice::new(1), SimDevice::new(1));
    let (s, t) = (one.create_stream(), two.create_stream());
    assert_ne!(one.begin_capture(s).unwrap(), two.begin_capture(t).unwrap());
}

#[test]
fn streams_fork_and_join_by_events() {
    let gpu = SimDevice::new(1 << 30);
    let (s, t) = (gpu.create_stream(), gpu.create_stream());
    let e = gpu.event_create().unwrap();
    let id = gpu.begin_capture(s).unwrap();
    let a = gpu.launch(s).unwrap();
    gpu.event_record(e, s).unwrap();
    let b = gpu.launch(s).unwrap();
    gpu.stream_wait_event(t, e).unwrap();
    assert_eq!(gpu.capture_status(t).unwrap(), Some(id));
    let c = gpu.launch(t).unwrap();
    gpu.event_record(e, t).unwrap();
    gpu.stream_wait_event(s, e).unwrap();
    assert_eq!(gpu.capture_terminals(s).unwrap(), [b, c]);
    let d = gpu.launch(s).unwrap();
    let graph = gpu.end_capture(s).unwrap();
    assert_eq!(graph.nodes, [(a, vec![]), (b, vec![a]), (c, vec![a]), (d, vec![b, c])]);
    assert_eq!(gpu.capture_status(t).unwrap(), None);
    assert_eq!(gpu.misuses(), Vec::<String>::new());
}

#[test]
fn a_stream_that_was_not_joined_back_is_an_error() {
    let gpu = SimDevice::new(1 << 30);
    let (s, t) = (gpu.create_stream(), gpu.create_stream());
    let e = gpu.event_create().unwrap();
    gpu.begin_capture(s).unwrap();
    gpu.event_record(e, s).unwrap();
    gpu.stream_wait_event(t, e).unwrap();
    gpu.launch(t);
    assert_eq!(code(gpu.end_capture(t)), 903);
    assert_eq!(code(gpu.end_capture(s)), 904);
    gpu.begin_capture(s).unwrap();
    gpu.end_capture(s).unwrap();
}

#[test]
fn captured_events_say_nothing_about_running_work() {
    let gpu = SimDevice::new(1 << 30);
    let s = gpu.create_stream();
    let [inside, outside] = [0, 1].map(|_| gpu.event_create().unwrap());
    gpu.event_record(outside, s).unwrap();
    gpu.begin_capture(s).unwrap();
    gpu.event_record(inside, s).unwrap();
    assert_eq!(code(gpu.event_query(inside)), 907);
    assert_eq!(code(gpu.event_synchronize(inside)), 907);
    assert!(gpu.event_query(outside).unwrap());
    gpu.end_capture(s).unwrap();
    assert_eq!(code(gpu.stream_wait_event(s, inside)), 907);
    gpu.event_record(inside, s).unwrap();
    assert!(gpu.event_query(inside).unwrap());
}

#[test]
fn what_a_capture_does_not_survive() {
    type Call = fn(&SimDevice, Stream) -> Result<(), DeviceError>;
    let gpu = SimDevice::new(1 << 30);
    let s = gpu.create_stream();
    let forbidden: [(Call, u32); 3] = [
        (|gpu, s| gpu.stream_synchronize(s), 900),
        (|gpu, _| gpu.device_synchronize(), 900),
        (|gpu, s| gpu.stream_wait_event(s, gpu.event_create()?), 905),
    ];
    for (call, number) in forbidden {
        gpu.begin_capture(s).unwrap();
        assert_eq!(code(call(&gpu, s)), number);
        assert_eq!(code(gpu.end_capture(s)), 901);
        assert_eq!(gpu.capture_status(s).unwrap(), None);
    }
    // Memory may be had, and other streams may be waited for.
    let t = gpu.create_stream();
    gpu.begin_capture(s).unwrap();
    let a = gpu.malloc(512).unwrap();
    gpu.stream_synchronize(t).unwrap();
    gpu.write(s, a, 512, 1);
    assert_eq!(gpu.read_now(a), None, "captured, not run");
    assert_eq!(gpu.end_capture(s).unwrap().nodes.len(), 1);
}

#[test]
fn captures_that_cannot_be() {
    let gpu = SimDevice::new(1 << 30);
    let (s, t) = (gpu.create_stream(), gpu.create_stream());
    let e = gpu.event_create().unwrap();
    assert_eq!(code(gpu.begin_capture(Stream::DEFAULT)), 900);
    assert_eq!(code(gpu.end_capture(s)), 903);
    gpu.begin_capture(s).unwrap();
    assert_eq!(code(gpu.begin_capture(s)), 1);
    gpu.begin_capture(t).unwrap();
    gpu.event_record(e, s).unwrap();
    assert_eq!(code(gpu.stream_wait_event(t, e)), 902);
}
