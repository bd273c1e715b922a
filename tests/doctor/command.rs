//! `gpucache doctor SNAPSHOT`: from a file, through the program itself.

use std::path::PathBuf;
use std::process::{Command, Output};

use gpucache::device::sim::SimDevice;
use gpucache::observe::file::SnapshotFile;
use gpucache::{Allocator, HistoryOptions};
use serde_json::Value;

use super::{GIB, MIB};

fn doctor(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpucache")).arg("doctor").args(args).output().unwrap()
}

fn written(name: &str, gpu: &Allocator) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let file = SnapshotFile::merge([gpu.memory_snapshot()]);
    file.write_pickle(std::fs::File::create(&path).unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The causes of the first device.
fn causes(output: &Output) -> Vec<String> {
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = all[0]["findings"].as_array().unwrap();
    findings.iter().map(|f| f["cause"].as_str().unwrap().to_owned()).collect()
}

/// A device of 12 GiB with six pieces of 512 MiB free, and a request of 2 GiB that failed.
fn fragmented() -> (Allocator, Vec<gpucache::Allocation>) {
    let gpu = Allocator::simulated(SimDevice::new(12 << 30));
    gpu.record_memory_history(Some(HistoryOptions::default()));
    let first: Vec<_> = (0..6).map(|_| gpu.alloc(2 * GIB).unwrap()).collect();
    drop(first);
    let live = (0..6).map(|_| gpu.alloc(1536 * MIB).unwrap()).collect();
    (gpu, live)
}

#[test]
fn the_request_that_failed_is_found_in_the_history() {
    let (gpu, _live) = fragmented();
    assert!(gpu.alloc(2 * GIB).is_err());
    let path = written("doctor-failed.pickle", &gpu);
    let output = doctor(&[&path, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(causes(&output), ["fragmented"]);
    let text = String::from_utf8(doctor(&[&path]).stdout).unwrap();
    assert!(text.contains("A request of 2.00 GiB on stream 0x0 fails."), "{text}");
    assert!(text.contains("1. fragmented (3.00 GiB, certain)") && text.contains("command.rs:"), "{text}");
}

#[test]
fn a_request_can_be_asked_about() {
    let (gpu, _live) = fragmented();
    let path = written("doctor-asked.pickle", &gpu);
    let ask = |size| doctor(&[&path, "--capacity", "12G", "--request", size, "--json"]);
    let fails = ask("2G");
    assert_eq!((fails.status.code(), causes(&fails)), (Some(1), vec!["fragmented".to_owned()]));
    let fits = ask("512M");
    assert_eq!((fits.status.code(), causes(&fits)), (Some(0), Vec::new()));
    let overview = doctor(&[&path, "--json"]);
    assert_eq!((overview.status.code(), causes(&overview)), (Some(0), vec!["fragmented".to_owned()]));
}

/// The file does not say that there was a limit, but that much was free.
#[test]
fn a_limit_is_guessed_from_what_was_free() {
    let gpu = Allocator::simulated(SimDevice::new(12 << 30));
    gpu.record_memory_history(Some(HistoryOptions::default()));
    gpu.set_per_process_memory_fraction(0.25).unwrap();
    assert!(gpu.alloc(4 * GIB).is_err());
    assert_eq!(causes(&doctor(&[&written("doctor-cap.pickle", &gpu), "--json"])), ["cap"]);
}

#[test]
fn bad_input_is_told_with_status_2() {
    let garbage = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("doctor-garbage.pickle");
    std::fs::write(&garbage, b"\x80\x04garbage").unwrap();
    let (gpu, _live) = fragmented();
    let path = written("doctor-device.pickle", &gpu);
    for (args, says) in [
        (vec!["/nowhere/snapshot.pickle"], "/nowhere/snapshot.pickle"),
        (vec![garbage.to_str().unwrap()], "doctor-garbage.pickle"),
        (vec![&path, "--device", "3"], "no device 3"),
        (vec![&path, "--request", "2G"], "--capacity"),
        (vec!["--capacity", "2G"], "SNAPSHOT"),
        (vec![&path, "--capacity", "12X", "--request", "2G"], "'12X' is not a size"),
    ] {
        let output = doctor(&args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: {text}");
    }
}

#[test]
fn the_machine_is_checked_on_any_machine() {
    let output = doctor(&["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().any(|c| c["what"] == "driver") && checks.iter().any(|c| c["what"] == "options"));
    let wrong = checks.iter().any(|c| c["level"] == "problem");
    assert_eq!(output.status.code(), Some(i32::from(wrong)));

    let mut command = Command::new(env!("CARGO_BIN_EXE_gpucache"));
    let output = command.arg("doctor").env("GPUCACHE_ALLOC_CONF", "no_such_option:1").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("no_such_option"), "{text}");
}
