//! The committed recordings, replayed: every answer equal; and any change in a recording is found.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use gpucache::replay::{Divergence, verify_case};

fn golden(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(folder)
}

fn verify(req: &Path, obs: &Path) -> Result<u64, Divergence> {
    verify_case(req, obs, &AtomicU64::new(0))
}

/// Replays all recordings of a folder; how many there were.
fn verify_folder(folder: &str) -> usize {
    let mut verified = 0;
    for entry in fs::read_dir(golden(folder)).unwrap() {
        let req = entry.unwrap().path();
        let name = req.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".req.zst") {
            continue;
        }
        let obs = req.with_file_name(name.replace(".req.", ".obs."));
        if let Err(divergence) = verify(&req, &obs) {
            panic!("{name}: {divergence}\n{}", divergence.context.join("\n"));
        }
        verified += 1;
    }
    verified
}

#[test]
fn rules_replay_equal() {
    assert_eq!(verify_folder("rules"), 64);
}

#[test]
fn random_streams_replay_equal() {
    assert_eq!(verify_folder("fuzz"), 15);
}

#[test]
fn models_replay_equal() {
    assert_eq!(verify_folder("real"), 5);
}

fn unpack(path: &Path) -> String {
    let mut text = String::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(fs::File::open(path).unwrap()).unwrap();
    std::io::Read::read_to_string(&mut decoder, &mut text).unwrap();
    text
}

/// A recording of which each test changes something.
struct Altered {
    folder: PathBuf,
    req: String,
    obs: String,
}

impl Altered {
    fn new(test: &str, case: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("gpucache-verify-{}-{test}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let part = |part: &str| unpack(&golden("rules").join(format!("{case}.{part}.zst")));
        Altered { folder, req: part("req"), obs: part("obs") }
    }

    /// The verdict after replacing the first `from` in the observations by `to`.
    fn verdict(&self, from: &str, to: &str) -> Result<u64, Divergence> {
        assert!(self.obs.contains(from), "the recording has no '{from}'");
        self.verify(&self.req, &self.obs.replacen(from, to, 1))
    }

    fn verify(&self, req: &str, obs: &str) -> Result<u64, Divergence> {
        let (req_path, obs_path) = (self.folder.join("case.req"), self.folder.join("case.obs"));
        fs::write(&req_path, req).unwrap();
        fs::write(&obs_path, obs).unwrap();
        verify(&req_path, &obs_path)
    }
}

impl Drop for Altered {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn every_kind_of_difference_is_found_and_named() {
    let case = Altered::new("differences", "cap_oom.default");
    assert_eq!(case.verify(&case.req, &case.obs), Ok(10));
    for (from, to, request, reason) in [
        // A result; the ten columns; an event; all statistics; error texts; the snapshot; the summaries.
        ("\n@ 7febf2000000 ", "\n@ 7febf2000200 ", 1, "gives 7febf2000000, expected 7febf2000200"),
        ("\n@ oom 0 0 0", "\n@ oom 0 0 8", 2, "active_bytes.all.current is 41943040, expected 41943048"),
        ("+ sf 7fec12800000", "+ sf 7fec12800200", 5, "event 1 is '+ sf 7fec12800000"),
        ("+ om 229da20000 31457280", "+ om 229da20000 31457792", 2, "event 1 is '+ om"),
        ("\n* 1 1 0 1 1 1 0 1 0", "\n* 1 1 0 1 1 1 0 2 0", 0, "active.large_pool.peak is 1, expected 2"),
        ("Tried to allocate 30.00 MiB", "Tried to allocate 32.00 MiB", 2, "the error's text is"),
        ("64.00 MiB allowed;", "63.00 MiB allowed;", 2, "the error's text is"),
        ("\"total_size\":31457280", "\"total_size\":31457792", 9, "segments, line 1"),
        ("| Allocated memory ", "| Allocated Memory ", 9, "memory_summary(), line 8"),
        ("\"row\":[\"allocated_bytes", "\"row\":[\"allotted_bytes", 0, "unknown statistic 'allotted_bytes"),
    ] {
        let divergence = case.verdict(from, to).expect_err(from);
        assert_eq!(divergence.request, request, "{from}: {divergence}");
        assert!(divergence.to_string().contains(reason), "{from}: {divergence}");
    }
}

#[test]
fn the_difference_comes_with_the_requests_before_it() {
    let case = Altered::new("context", "cap_oom.default");
    let divergence = case.verdict("\n@ oom 0 -20971520", "\n@ oom 0 -20971521").unwrap_err();
    assert_eq!(divergence.context.len(), 6);
    assert_eq!(divergence.context[5], "5: a 48234496 0 -> oom");
    assert_eq!(divergence.context[0], "0: a 20971520 0 -> 7fec12800000");
}

#[test]
fn what_varies_from_run_to_run_is_not_compared() {
    let case = Altered::new("varying", "cap_oom.default");
    for (from, to) in [
        ("+ om 229da20000 ", "+ om 1 "),
        (
            "of which 138.46 GiB is free. ",
            "of which 1.00 GiB is free. Process 1 has 2.00 GiB memory in use. ",
        ),
        ("! mem_get_info [148668940288,", "! mem_get_info [1,"),
    ] {
        assert_eq!(case.verdict(from, to), Ok(10), "{from}");
    }
}

/// Two files that do not belong together, a refused configuration, a request that fails: verdicts, no panics.
#[test]
fn what_cannot_be_replayed_is_a_verdict() {
    let case = Altered::new("broken", "cap_oom.default");
    let check = |req: &str, obs: &str, reason: &str| {
        let divergence = case.verify(req, obs).expect_err(reason);
        assert!(divergence.to_string().contains(reason), "{divergence}");
    };
    let both = |from: &str, to: &str| (case.req.replace(from, to), case.obs.replace(from, to));
    check(&case.req.replace("cap_oom.default", "other"), &case.obs, "different recordings");
    let (req, obs) = both("\"alloc_conf\":\"\"", "\"alloc_conf\":\"max_split_size_mb:1\"");
    check(&req, &obs, "max_split_size");
    let (req, obs) = both("\"fraction\":0.", "\"fraction\":7.");
    check(&req, &obs, "fraction");
    check(&case.req, &case.obs[..case.obs.len() / 2], "case.obs:");
    check(&case.req.replacen("\nf 3", "\nf 9", 1), &case.obs, "allocation 9 back does not exist");
    check(&case.req.replacen("\nf 3", "\nF 1.5", 1), &case.obs, "gives err");
}
