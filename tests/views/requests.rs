//! Foreign histories as request streams.

use gpucache::import::{ImportError, Imported, parse_rmm_log, read_snapshot, requests};
use gpucache::observe::file::SnapshotFile;
use gpucache::observe::history::{Frames, TraceAction, TraceEntry};
use gpucache::replay::{Request, RequestReader, TraceWriter};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshots/pytorch-2.11.pickle");

fn lines(imported: &Imported) -> Vec<String> {
    imported.requests.iter().map(Request::to_string).collect()
}

fn history(entries: &[(TraceAction, u64, u64)]) -> SnapshotFile {
    let entry = |&(action, addr, size): &(TraceAction, u64, u64)| TraceEntry {
        action,
        addr,
        size,
        stream: 0,
        time_us: 0,
        user_metadata: "".into(),
        frames: Frames::None,
    };
    SnapshotFile { device_traces: vec![entries.iter().map(entry).collect()], ..SnapshotFile::default() }
}

#[test]
fn frees_failures_and_releases_become_requests() {
    use TraceAction as A;
    let file = history(&[
        (A::FreeRequested, 0xa0, 100), // lived before
        (A::FreeCompleted, 0xa0, 100),
        (A::SegmentAlloc, 0x100, 2 << 20),
        (A::Alloc, 0x100, 700),
        (A::Alloc, 0x200, 800),
        (A::FreeRequested, 0x100, 700), // completes later
        (A::SegmentFree, 0x900, 2 << 20),
        (A::FreeRequested, 0x200, 800),
        (A::FreeCompleted, 0x200, 800),
        (A::FreeCompleted, 0x100, 700),
        (A::Alloc, 0x100, 600),
        (A::SegmentFree, 0x500, 2 << 20), // makes room, so not empty_cache
        (A::Oom, 4096, 1 << 30),
    ]);
    let imported = requests(&file, 0, Some(1 << 30)).unwrap();
    let expected = [
        "i -1",
        "a 100 0",
        "i 0",
        "f 1",
        "a 700 0",
        "a 800 0",
        "D 2",
        "e",
        "f 1",
        "C 2",
        "a 600 0",
        "a 1073741824 0",
        "x 1",
        "i 1",
    ];
    assert_eq!(lines(&imported), expected);
    assert_eq!(imported.header.requests, expected.len() as u64);
    assert_eq!(imported.header.total_memory, 1 << 30);
}

#[test]
fn a_history_of_pytorch_becomes_a_recording_that_reads_back() {
    let file = read_snapshot(RECORDED.as_ref()).unwrap();
    let imported = requests(&file, 0, None).unwrap();
    let count = |letter: &str| lines(&imported).iter().filter(|l| l.starts_with(letter)).count();
    // 85 in the history, 2 that lived before it, 1 that failed.
    assert_eq!(count("a "), 88);
    assert_eq!((count("x "), count("e")), (1, 1));
    assert_eq!(count("f ") + count("D "), 74);
    assert_eq!(count("D ") - count("C "), 1, "one free was still pending at the end");
    // The stand-in device had 4 GiB, which the out-of-memory entry tells.
    assert_eq!(imported.header.total_memory, 4 << 30);
    assert_eq!(imported.header.alloc_conf, "roundup_power2_divisions:4,max_split_size_mb:200");

    let path = std::env::temp_dir().join(format!("gpucache-import-{}.req.zst", std::process::id()));
    let mut writer = TraceWriter::create(&path, &imported.header).unwrap();
    for request in &imported.requests {
        writer.request(request).unwrap();
    }
    writer.finish().unwrap();
    let reader = RequestReader::open(&path).unwrap();
    let back: Vec<Request> = reader.map(Result::unwrap).collect();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(back, imported.requests);
}

#[test]
fn without_a_history_the_error_says_how_to_record_one() {
    let e = requests(&SnapshotFile::default(), 0, None).unwrap_err();
    assert!(
        e.to_string().contains("device_traces[0]") && e.to_string().contains("record_memory_history"),
        "{e}"
    );
}

const LOG: &str = "\
Thread,Time,Action,Pointer,Size,Stream
26721,11:35:20:738520,allocate,0x7fa2a0000000,1000,0x0
26721,11:35:20:738600,allocate,0x7fa2a0000400,2000,0x55d1c0
26721,11:35:20:738700,free,0x7fa2a0000000,1000,0x0
26721,11:35:20:738710,free,0x7fa2b0000000,512,0x0
26721,11:35:20:738720,allocate failure,(nil),4096,0x0
26721,11:35:20:738730,allocate,0x7fa2a0000000,300,0x0
";

#[test]
fn an_rmm_log_becomes_requests() {
    let imported = parse_rmm_log(LOG.as_bytes(), None).unwrap();
    let expected =
        ["i -1", "a 512 0", "i 0", "a 1000 0", "a 2000 1", "f 2", "f 3", "a 4096 0", "x 1", "a 300 0", "i 1"];
    assert_eq!(lines(&imported), expected);
    assert_eq!(imported.header.stream_ptrs, ["0", "55d1c0"]);
    assert_eq!(imported.header.total_memory, 1 << 30);
}

#[test]
fn wrong_rmm_logs_name_the_line() {
    let fails = |text: &str| -> ImportError { parse_rmm_log(text.as_bytes(), None).unwrap_err() };
    for (text, message) in [
        ("", "line 1: no column 'Action'"),
        ("Thread,Time,Act,Pointer,Size,Stream\n", "line 1: no column 'Action'"),
        ("Action,Pointer,Size,Stream\nallocate,0x10,12\n", "line 2: 3 fields instead of 4"),
        (
            "Action,Pointer,Size,Stream\nallocate,0x20,1,0\nallocate,0x10,many,0x0\n",
            "line 3: Size 'many' is not",
        ),
        ("Action,Pointer,Size,Stream\nallocate,qq,1,0x0\n", "line 2: Pointer 'qq' is not"),
        ("Action,Pointer,Size,Stream\nmove,0x10,1,0x0\n", "line 2: Action 'move' is not known"),
        (
            "Action,Pointer,Size,Stream\nallocate,0x10,1,0\nallocate,0x10,1,0\n",
            "line 3: pointer 0x10 is allocated again",
        ),
    ] {
        assert!(fails(text).to_string().starts_with(message), "{}", fails(text));
    }
}
