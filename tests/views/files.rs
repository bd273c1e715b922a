//! Snapshots as files: what is written reads back, and what PyTorch wrote is understood.

use std::sync::Arc;

use gpucache::import::{ImportError, Position, parse_snapshot, read_snapshot};
use gpucache::observe::file::SnapshotFile;
use gpucache::observe::history::{Frame, Frames, TraceAction, TraceEntry};
use gpucache::observe::inspect::{InspectOptions, inspect};
use gpucache::observe::snapshot::{BlockInfo, BlockState, PoolId, PoolKind, SegmentInfo, Snapshot};
use gpucache::observe::timeline;

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshots/pytorch-2.11.pickle");

fn recorded() -> SnapshotFile {
    read_snapshot(RECORDED.as_ref()).unwrap()
}

/// The expected numbers are PyTorch's own: `record.py` printed them (memory_stats at the time of the snapshot).
#[test]
fn a_pickle_of_pytorch_is_understood() {
    let file = recorded();
    let sum = |which: fn(&SegmentInfo) -> u64| file.segments.iter().map(which).sum::<u64>();
    assert_eq!(file.segments.len(), 5);
    assert_eq!(sum(|s| s.allocated_size), 70_533_632);
    assert_eq!(sum(|s| s.active_size), 73_679_360);
    assert_eq!(sum(|s| s.total_size), 88_080_384);
    assert_eq!(sum(|s| s.requested_size), 63_568_640);
    let active = file.segments.iter().flat_map(|s| &s.blocks).filter(|b| b.state != BlockState::Inactive);
    assert_eq!(active.count(), 14);
    assert_eq!(file.device_traces.iter().map(Vec::len).collect::<Vec<_>>(), [252]);
    assert_eq!(file.settings.source, "roundup_power2_divisions:4,max_split_size_mb:200");
    assert_eq!(file.settings.max_split_size, 200 << 20);
    assert_eq!(file.settings.roundup_power2_divisions, [4; 16]);
    let Frames::Stack(stack) = &file.device_traces[0][0].frames else { panic!("a stack was recorded") };
    assert_eq!((&*stack[0].name, &*stack[0].filename, stack[0].line), ("tensor", "train.py", stack[0].line));
    let oom = file.device_traces[0].iter().find(|t| t.action == TraceAction::Oom).unwrap();
    assert_eq!(oom.size, 5 << 30);
}

#[test]
fn what_is_written_reads_back() {
    let file = recorded();
    let mut pickle = Vec::new();
    file.write_pickle(&mut pickle).unwrap();
    assert_eq!(parse_snapshot(&pickle).unwrap(), file);
    let mut json = Vec::new();
    file.write_json(&mut json).unwrap();
    assert_eq!(parse_snapshot(&json).unwrap(), file);
}

#[test]
fn keys_stand_in_pytorchs_order() {
    let mut json = Vec::new();
    recorded().write_json(&mut json).unwrap();
    let text = String::from_utf8(json).unwrap();
    let in_order = |from: &str, keys: &[&str]| {
        let mut at = text.find(from).unwrap();
        for key in keys {
            let key = format!("\"{key}\":");
            at += text[at..].find(&key).unwrap_or_else(|| panic!("{key} is missing or out of order"));
        }
    };
    in_order("{", &["segments", "device_traces", "allocator_settings", "external_annotations"]);
    let segment = [
        "device",
        "address",
        "total_size",
        "allocated_size",
        "active_size",
        "requested_size",
        "stream",
        "segment_type",
        "segment_pool_id",
        "is_expandable",
        "frames",
        "blocks",
    ];
    in_order("\"segments\":", &segment);
    in_order("\"blocks\":", &["address", "size", "requested_size", "state", "frames"]);
    let entry = ["action", "addr", "size", "stream", "time_us", "compile_context", "user_metadata", "frames"];
    in_order("\"device_traces\":", &entry);
    in_order("\"action\":\"oom\"", &["device_free", "size", "stream", "time_us", "compile_context"]);
}

#[test]
fn totals_over_time_end_where_the_snapshot_is() {
    let file = recorded();
    let points = timeline::points(&file, 0);
    assert_eq!(points.len(), 253);
    let last = points.last().unwrap();
    assert_eq!((last.allocated, last.active, last.reserved), (70_533_632, 73_679_360, 88_080_384));
    // Before the recording: one block of 5 MiB in a 20 MiB segment and one of 900 bytes in a 2 MiB one.
    assert_eq!(points[0].reserved, 22 << 20);
    assert!(points.iter().all(|p| p.allocated <= p.active && p.active <= p.reserved), "{points:?}");
}

/// Files may hold any number.
#[test]
fn totals_over_time_of_impossible_sizes() {
    for bytes in [0, i64::MAX as u64, 1 << 63, u64::MAX] {
        let mut file = recorded();
        for segment in &mut file.segments {
            (segment.total_size, segment.allocated_size, segment.active_size) = (bytes, bytes, bytes);
            segment.blocks.iter_mut().for_each(|b| (b.size, b.requested_size) = (bytes, bytes));
        }
        let points = timeline::points(&file, 0);
        assert_eq!(points.len(), file.trace(0).len() + 1);
        file.device_traces[0].iter_mut().for_each(|e| e.size = bytes);
        assert_eq!(timeline::points(&file, 0).len(), points.len());
    }
}

#[test]
fn a_segment_that_few_bytes_keep_is_named() {
    let mut file = recorded();
    file.segments = vec![segment(
        0,
        0x10_0000_0000,
        &[(512, BlockState::ActiveAllocated), (20 << 20, BlockState::Inactive)],
    )];
    let seen = inspect(&file, 0, InspectOptions::default());
    assert_eq!((seen.pinned_segments, seen.pinned_idle), (1, 20 << 20));
    assert_eq!(seen.pinned[0].kept_by[0].size, 512);
    assert_eq!(seen.totals.inactive_split, 20 << 20);
    assert_eq!(seen.sites[0].site, "src/main.rs:7 work");
}

fn stack() -> Frames {
    let frame = Frame { name: "work".into(), filename: "src/main.rs".into(), line: 7 };
    Frames::Stack(Arc::from([frame]))
}

fn segment(device: u32, address: u64, blocks: &[(u64, BlockState)]) -> SegmentInfo {
    let mut at = address;
    let blocks: Vec<BlockInfo> = blocks
        .iter()
        .map(|&(size, state)| {
            let block = BlockInfo { address: at, size, requested_size: size, state, frames: stack() };
            at += size;
            block
        })
        .collect();
    let sum =
        |wanted: fn(BlockState) -> bool| blocks.iter().filter(|b| wanted(b.state)).map(|b| b.size).sum();
    SegmentInfo {
        device,
        address,
        total_size: at - address,
        allocated_size: sum(|s| s == BlockState::ActiveAllocated),
        active_size: sum(|s| s != BlockState::Inactive),
        requested_size: sum(|s| s != BlockState::Inactive),
        stream: 0,
        segment_type: PoolKind::Large,
        segment_pool_id: PoolId(0, 3),
        is_expandable: true,
        frames: Frames::None,
        blocks,
    }
}

#[test]
fn devices_are_told_apart_by_number() {
    let snapshot = |device: u32| Snapshot {
        device,
        segments: vec![segment(device, 0x7000_0000_0000, &[(1 << 20, BlockState::ActivePendingFree)])],
        trace: vec![TraceEntry {
            action: TraceAction::Alloc,
            addr: 0x7000_0000_0000,
            size: 1000,
            stream: 0,
            time_us: 5,
            user_metadata: "step \"1\"".into(),
            frames: Frames::None,
        }],
        config: gpucache::Config::default(),
    };
    let file = SnapshotFile::merge([snapshot(2), snapshot(0)]);
    assert_eq!(file.devices(), [0, 2]);
    assert_eq!(file.device_traces.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 1]);
    let mut bytes = Vec::new();
    file.write_pickle(&mut bytes).unwrap();
    assert_eq!(parse_snapshot(&bytes).unwrap(), file);
}

#[test]
fn trace_events_are_json_with_counters_tracks_and_lives() {
    let mut bytes = Vec::new();
    recorded().write_chrome(&mut bytes).unwrap();
    let all: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let events = all["traceEvents"].as_array().unwrap();
    let count = |phase: &str, name: &str| {
        events.iter().filter(|e| e["ph"] == phase && (name.is_empty() || e["name"] == name)).count()
    };
    assert!(count("C", "reserved") > 1 && count("C", "allocated") > 1 && count("C", "active") > 1);
    // 11 segments were made during the recording, 2 lived before it.
    assert_eq!(count("X", ""), 13);
    assert_eq!(count("i", "oom"), 1);
    assert_eq!(count("b", ""), 85);
    // Ends of lives that began in the recording: two of the 73 frees were of older blocks, or fewer.
    assert!((71..=73).contains(&count("e", "")));
    let stray = events.iter().filter(|e| e["ph"] == "i" && e["name"] == "alloc" && e["tid"] == 0).count();
    assert_eq!(stray, 0, "every allocation is in a known segment");
}

fn error(bytes: &[u8]) -> ImportError {
    parse_snapshot(bytes).unwrap_err()
}

#[test]
fn pickles_that_would_run_code_are_refused_by_name() {
    // What `pickle.dumps` makes of an object whose __reduce__ is (os.system, ("true",)), protocols 0, 2 and 4.
    let hostile: [(&[u8], &str); 3] = [
        (b"cposix\nsystem\np0\n(Vtrue\np1\ntp2\nRp3\n.", "GLOBAL"),
        (b"\x80\x02cposix\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03.", "GLOBAL"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.", "GLOBAL"),
    ];
    for (bytes, name) in hostile {
        let e = error(bytes);
        assert!(e.what.contains(name) && matches!(e.position, Position::Byte(_)), "{e}");
    }
    for op in [b'R', b'b', b'i', b'o', 0x81, 0x92, 0x82, b'P', b'Q', 0x97] {
        assert!(error(&[0x80, 4, op, 0, 0]).what.contains("nothing in a file is run"));
    }
}

#[test]
fn damaged_pickles_name_the_byte() {
    let e = error(b"\x80\x02X\xff\xff\xff\xff");
    assert_eq!((e.position.clone(), e.to_string().contains("truncated")), (Position::Byte(2), true), "{e}");
    for (bytes, what) in [
        (&b""[..], "empty"),
        (b"\x80\x07.", "protocol 7"),
        (b"\x80\x02.", "a value is needed"),
        (b"\x80\x02N", "file ends"),
        (b"\x80\x02NN.", "left over"),
        (b"\x80\x02N.N", "1 bytes follow"),
        (b"\x80\x02N(NNu.", "below them is None"),
        (b"\x80\x02}(Nu.", "no value"),
        (b"\x80\x02Na.", "a value is needed"),
        (b"\x80\x02h\x05.", "memo 5"),
        (b"\x80\x02\x8b\xff\xff\xff\xff.", "integer of 4294967295 bytes"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff.", "truncated"),
        (b"PK\x03\x04", "zip"),
        (b"<!DOCTYPE html>", "HTML"),
        (b"\xff\xfe", "not known"),
    ] {
        let e = error(bytes).to_string();
        assert!(e.contains(what), "{bytes:?}: {e}");
    }
    let whole = std::fs::read(RECORDED).unwrap();
    for cut in (0..whole.len()).step_by(7) {
        assert!(parse_snapshot(&whole[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn wrong_values_name_their_place() {
    let e = error(br#"{"segments":[{"device":0,"address":0,"total_size":512,"blocks":[{"size":"x","state":"inactive"}]}]}"#);
    assert_eq!(e.to_string(), "segments[0].blocks[0].size: expected an integer, found a string");
    let e = error(br#"{"segments":[{"device":0,"address":0,"total_size":512,"blocks":[]}]}"#);
    assert_eq!(
        e.to_string(),
        "segments[0].blocks: the blocks leave 512 of the segment's 512 bytes uncovered"
    );
    let e = error(br#"{"segments": [}"#);
    assert_eq!(e.position, Position::Line(1, 15));
    let e = error(br#"{"a": 1}"#);
    assert!(e.to_string().contains("'segments'"), "{e}");
    let e = error(br#"{"segments":[],"device_traces":[[{"action":"alloc","size":1}]]}"#);
    assert_eq!(e.to_string(), "device_traces[0][0]: the key 'addr' is missing");
    let e = read_snapshot("/nonexistent/snapshot.pickle".as_ref()).unwrap_err();
    assert!(e.to_string().starts_with("/nonexistent/snapshot.pickle: can't be read"), "{e}");
}

/// One segment, listed a million times through the memo, each with a list of blocks that is shared too.
#[test]
fn sharing_does_not_multiply() {
    let mut bytes = b"\x80\x02}(X\x08\x00\x00\x00segments](".to_vec();
    bytes.extend(
        b"}(X\x06\x00\x00\x00deviceK\x00X\x07\x00\x00\x00addressK\x00X\x0a\x00\x00\x00total_sizeK\x00",
    );
    bytes.extend(b"X\x06\x00\x00\x00blocks](}(X\x04\x00\x00\x00sizeK\x00X\x05\x00\x00\x00stateX\x08\x00\x00\x00inactiveuq\x01");
    bytes.extend(b"h\x01".repeat(2000));
    bytes.extend(b"euq\x02");
    bytes.extend(b"h\x02".repeat(2000));
    bytes.extend(b"eu.");
    assert!(error(&bytes).what.contains("again and again"));
    // A list that contains itself, and nesting deeper than any stack.
    assert!(error(b"\x80\x02]q\x00h\x00a.").what.contains("expected a dictionary"));
    let mut deep = b"\x80\x02".to_vec();
    deep.extend(b"(".repeat(1 << 20));
    deep.extend(b"l".repeat(1 << 20));
    deep.push(b'.');
    assert!(parse_snapshot(&deep).is_err());
    assert!(parse_snapshot("[".repeat(1 << 20).as_bytes()).is_err());
}
