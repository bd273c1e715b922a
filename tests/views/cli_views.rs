//! The commands import, inspect and plot, as a user runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshots/pytorch-2.11.pickle");

/// A folder of its own for each test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpucache-cli-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn gpucache(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpucache")).args(args).output().unwrap()
}

/// Runs a command that must succeed; answers what it printed.
fn text(args: &[&str]) -> String {
    let output = gpucache(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with status 2; answers its one line of complaint.
fn complaint(args: &[&str]) -> String {
    let output = gpucache(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn import_then_replay_gives_pytorchs_peak() {
    let folder = Folder::new("import");
    let recording = folder.file("t.req.zst");
    let said = text(&["import", RECORDED, "-o", &recording]);
    assert!(said.contains("168 requests on 1 stream") && said.contains("4 GiB"), "{said}");
    let report: serde_json::Value = serde_json::from_str(&text(&["replay", "--json", &recording])).unwrap();
    // The highest reserved memory in PyTorch's own history.
    assert_eq!(report["peak_reserved_bytes"], 98 << 20);
    assert_eq!(report["first_pass"]["out_of_memory_events"], 1);
}

#[test]
fn snapshots_change_their_format_without_loss() {
    let folder = Folder::new("formats");
    let (json, pickle) = (folder.file("t.json"), folder.file("t.pickle"));
    text(&["import", RECORDED, "-o", &json]);
    text(&["import", &json, "-o", &pickle]);
    assert_eq!(text(&["inspect", "--json", &pickle]), text(&["inspect", "--json", RECORDED]));
    let events = folder.file("t.trace.json");
    text(&["import", &pickle, "-o", &events]);
    let events: serde_json::Value = serde_json::from_slice(&std::fs::read(events).unwrap()).unwrap();
    assert!(events["traceEvents"].as_array().unwrap().len() > 252);
}

#[test]
fn inspect_lists_what_holds_memory() {
    let said = text(&["inspect", RECORDED, "--top", "2"]);
    for wanted in ["reserved       84 MiB", "Pinned segments: 1", "train.py"] {
        assert!(said.contains(wanted), "'{wanted}' is missing in\n{said}");
    }
    let all: serde_json::Value = serde_json::from_str(&text(&["inspect", RECORDED, "--json"])).unwrap();
    assert_eq!(all[0]["reserved_bytes"], 84 << 20);
    assert_eq!(all[0]["active_blocks"], 14);
}

#[test]
fn plot_draws_snapshots_and_recordings() {
    let folder = Folder::new("plot");
    let (recording, from_snapshot, from_recording) =
        (folder.file("t.req"), folder.file("a.svg"), folder.file("b.svg"));
    text(&["import", RECORDED, "-o", &recording]);
    text(&["plot", RECORDED, "-o", &from_snapshot, "--color", "site", "--axis", "events", "--cap", "128M"]);
    text(&["plot", &recording, "-o", &from_recording, "--panels", "timeline"]);
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    assert!(read(&from_snapshot).contains("cap 128 MiB"));
    // Played again, the recording needs as much as it did in PyTorch.
    assert!(read(&from_recording).contains("reserved (peak 98 MiB)"));
}

#[test]
fn bad_input_is_one_line_that_names_file_and_place() {
    let folder = Folder::new("bad");
    let cut = folder.file("cut.pickle");
    std::fs::write(&cut, &std::fs::read(RECORDED).unwrap()[..500]).unwrap();
    let log = folder.file("rmm.csv");
    std::fs::write(&log, "Thread,Time,Action,Pointer,Size\n").unwrap();
    let out = folder.file("o.req");
    let said = complaint(&["inspect", &cut]);
    assert!(said.contains("cut.pickle: byte ") && said.contains("truncated"), "{said}");
    assert!(complaint(&["import", &log, "-o", &out]).contains("rmm.csv: line 1: no column 'Stream'"));
    assert!(complaint(&["import", RECORDED, "-o", "x.txt"]).contains("must end in .req"));
    assert!(complaint(&["plot", RECORDED, "-o", "x.gif"]).contains("must end in .svg or .png"));
    assert!(
        complaint(&["plot", RECORDED, "-o", &folder.file("x.svg"), "--device", "4"]).contains("it has 0")
    );
    assert!(complaint(&["inspect", "no-such-file"]).contains("no-such-file: can't be read"));
    assert!(!Path::new(&out).exists(), "nothing is left behind");
}
