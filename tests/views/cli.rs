//! The command line: what it prints and how it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(path)
}

fn gpucache(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpucache")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn verify_says_ok_for_each_case_and_counts() {
    let output = gpucache(&["verify", golden("real").to_str().unwrap()]);
    let expected = "ok gnn_varsize-cap8.default\nok gnn_varsize-cap8.exp\nok gnn_varsize-cap8.mss128\n\
                    ok infer_server.default\nok opt13_LRO_b32.default\n5 passed, 0 failed\n";
    assert_eq!(stdout(&output), expected);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn verify_takes_single_files_and_names_a_case_once() {
    let req = golden("rules/coalesce_both.exp.req.zst");
    let obs = golden("rules/coalesce_both.exp.obs.zst");
    let output = gpucache(&["verify", req.to_str().unwrap(), obs.to_str().unwrap()]);
    assert_eq!(stdout(&output), "ok coalesce_both.exp\n1 passed, 0 failed\n");
}

#[test]
fn verify_reports_what_diverges_and_fails() {
    let folder = std::env::temp_dir().join(format!("gpucache-cli-{}", std::process::id()));
    fs::create_dir_all(folder.join("deep")).unwrap();
    let copy = |from: &str, to: &str| fs::copy(golden(from), folder.join(to)).unwrap();
    copy("rules/coalesce_both.default.req.zst", "good.req.zst");
    copy("rules/coalesce_both.default.obs.zst", "good.obs.zst");
    copy("rules/coalesce_both.default.req.zst", "deep/bad.req.zst");
    copy("rules/coalesce_prev.default.obs.zst", "deep/bad.obs.zst");
    copy("rules/coalesce_both.default.req.zst", "lonely.req.zst");
    let output = gpucache(&["verify", folder.to_str().unwrap()]);
    fs::remove_dir_all(&folder).unwrap();

    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("DIVERGES bad request 0: the two files belong to different recordings"),
        "{text}"
    );
    assert_eq!(lines[1], "ok good");
    assert!(lines[2].starts_with("DIVERGES lonely request 0: "), "{text}");
    assert!(lines[2].contains("lonely.obs.zst: cannot be read"), "{text}");
    assert_eq!(lines[3..], ["1 passed, 2 failed"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn verify_without_recordings_is_no_success() {
    let nowhere = gpucache(&["verify", "no/such/folder"]);
    assert!(stderr(&nowhere).contains("no/such/folder"));
    assert_eq!(nowhere.status.code(), Some(2));

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/replay");
    let nothing = gpucache(&["verify", source.to_str().unwrap()]);
    assert_eq!(stdout(&nothing), "0 passed, 0 failed\n");
    assert!(stderr(&nothing).contains("no recordings"));
    assert_eq!(nothing.status.code(), Some(2));

    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let wrong = gpucache(&["verify", text.to_str().unwrap()]);
    assert!(stderr(&wrong).contains("a recording is named NAME.req"));
}

/// Each committed model's peaks, as its header has them from the real allocator.
#[test]
fn replay_finds_the_recorded_peaks() {
    for (case, allocated, reserved) in [
        ("gnn_varsize-cap8.default", 6_662_477_824_i64, 8_474_591_232_i64),
        ("infer_server.default", 1_010_283_008, 3_089_104_896),
    ] {
        let file = golden("real").join(format!("{case}.req.zst"));
        let output = gpucache(&["replay", file.to_str().unwrap(), "--json", "--repeat", "2"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["case"], case);
        assert_eq!(
            (&report["peak_allocated_bytes"], &report["peak_reserved_bytes"]),
            (&allocated.into(), &reserved.into())
        );
        let utilisation = report["peak_active_bytes"].as_f64().unwrap() / reserved as f64;
        assert!((report["utilisation"].as_f64().unwrap() - utilisation).abs() < 1e-12);
        assert!(report["first_pass"]["driver_calls"].as_i64().unwrap() > 0);
        assert_eq!(report["steady_state"]["passes"], 1);
    }
}

#[test]
fn replay_prints_a_report_for_people() {
    let file = golden("real/infer_server.default.req.zst");
    let text = stdout(&gpucache(&["replay", file.to_str().unwrap()]));
    for part in [
        "infer_server.default: 46734 requests per pass",
        "peak allocated         1010283008 bytes    963.48 MiB",
        "peak reserved          3089104896 bytes      2.88 GiB",
        "utilisation                0.3270",
        "71 driver calls, 0 retries, 0 out of memory",
    ] {
        assert!(text.contains(part), "no '{part}' in\n{text}");
    }
    assert!(!text.contains("steady state"));
}

#[test]
fn replay_under_another_configuration_and_capacity() {
    let file = golden("fuzz/s022.default.req.zst");
    let run = |more: &[&str]| {
        let output = gpucache(&[&["replay", file.to_str().unwrap(), "--json"], more].concat());
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let small = run(&["--capacity", "256M"]);
    assert!(small["peak_reserved_bytes"].as_u64().unwrap() <= 256 << 20);
    assert!(small["first_pass"]["out_of_memory_events"].as_u64().unwrap() > 0);
    let large = run(&["--capacity", "100G", "--config", "expandable_segments:True"]);
    assert_eq!(large["first_pass"]["out_of_memory_events"], 0);
}

#[test]
fn replay_refuses_with_a_reason() {
    let file = golden("rules/coalesce_both.exp.req.zst");
    let file = file.to_str().unwrap();
    for (args, reason) in [
        (vec!["replay", "no-such.req"], "no-such.req: cannot be read"),
        (vec!["replay", file, "--config", "quack:1"], "quack"),
        (vec!["replay", file, "--capacity", "much"], "'much' is not a size"),
        (vec!["replay", file, "--device", "gpu"], "use sim, or cuda:0"),
        (vec!["replay", file, "--repeat", "0"], "--repeat"),
    ] {
        let output = gpucache(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(reason), "{args:?}: {}", stderr(&output));
    }
}
