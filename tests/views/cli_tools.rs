//! The commands `smi`, `top`, `tune`, `forecast` and `completions`: what they print and how they end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gpucache::Allocator;
use gpucache::device::sim::SimDevice;
use gpucache::replay::{Header, Request, RequestReader, TraceWriter};
use serde_json::Value;

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(path)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_owned()).unwrap()
}

/// A folder of one test's own, removed at its end. Commands look there for exports, and find no other.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpucache-tools-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpucache"));
        command.args(args).env("GPUCACHE_EXPORT_DIR", &self.0).env_remove("GPUCACHE_EXPORT");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)))
    }

    fn files(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// The simulated GPU with this name; there may be real ones on the machine too.
fn gpu<'a>(machine: &'a Value, name: &str) -> &'a Value {
    machine["gpus"].as_array().unwrap().iter().find(|gpu| gpu["name"] == name).unwrap()
}

#[test]
fn smi_shows_what_a_process_exports() {
    let folder = Folder::new("smi");
    let device = SimDevice::builder().total_memory(8 << 30).name("Sim A").build();
    let allocator = Allocator::simulated(device);
    let block = allocator.alloc(1 << 30).unwrap();
    let _other = allocator.alloc(3 << 20).unwrap();
    drop(block);
    allocator.export_in(&folder.0).unwrap();

    let machine = folder.json(&["smi", "--json"]);
    let process = &gpu(&machine, "Sim A")["processes"][0];
    assert_eq!(process["pid"], std::process::id());
    let figures = &process["gpucache"];
    assert_eq!(figures["allocated"], allocator.memory_allocated());
    assert_eq!(figures["max_reserved"], allocator.max_memory_reserved());

    let table = text(&folder.run(&["smi"]).stdout);
    let pid = std::process::id().to_string();
    let line = table.lines().find(|line| line.contains(&format!(" {pid} "))).unwrap();
    for part in [" 3MiB", " 1027MiB", " 1044MiB"] {
        assert!(line.contains(part), "no '{part}' in {line}");
    }
    assert!(!table.contains('\u{1b}'), "no colours where there is no terminal");

    let fields = "--query-compute-apps=pid,gpucache.allocated,gpucache.reserved";
    let csv = text(&folder.run(&["smi", fields, "--format=csv,noheader,nounits"]).stdout);
    assert!(csv.lines().any(|line| line == format!("{pid}, 3, 1044")), "{csv}");
    let csv = text(&folder.run(&["smi", "--query-gpu=name,memory.total,gpucache.allocators"]).stdout);
    assert_eq!(csv.lines().next(), Some("name, memory.total [MiB], gpucache.allocators"));
    assert!(csv.lines().any(|line| line == "Sim A, 8192 MiB, 1"), "{csv}");
}

#[test]
fn smi_watches() {
    let folder = Folder::new("watch");
    let allocator = Allocator::simulated(SimDevice::builder().total_memory(1 << 30).name("Sim W").build());
    allocator.export_in(&folder.0).unwrap();
    for command in [["smi", "--watch=0.1"], ["top", "--interval=0.1"]] {
        let mut child =
            folder.command(&[&command[..], &["--json"]].concat()).stdout(Stdio::piped()).spawn().unwrap();
        let lines: Vec<String> =
            BufReader::new(child.stdout.take().unwrap()).lines().take(2).map(Result::unwrap).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines {
            gpu(&serde_json::from_str(&line).unwrap(), "Sim W");
        }
    }
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    let folder = Folder::new("killed");
    let file = golden("real/infer_server.default.req.zst");
    let mut child = folder
        .command(&["replay", file.to_str().unwrap(), "--repeat", "1000000"])
        .env("GPUCACHE_EXPORT", "1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let allocations = || {
        let machine = folder.json(&["smi", "--json"]);
        let gpus = machine["gpus"].as_array().unwrap().iter();
        let processes = gpus.flat_map(|gpu| gpu["processes"].as_array().unwrap());
        let own = processes.filter(|process| process["pid"] == child.id());
        own.filter_map(|process| process["gpucache"]["allocations_made"].as_u64()).sum::<u64>()
    };
    // It is shown, and the figures move.
    while allocations() == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "the export never came");
        thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(folder.files(), 1);
    folder.run(&["smi"]);
    assert_eq!(folder.files(), 0);
}

#[test]
fn smi_refuses_with_a_reason() {
    let folder = Folder::new("refuses");
    for (args, reason) in [
        (&["smi", "--query-gpu=index,quack"][..], "'quack' is not a field"),
        (&["smi", "--query-gpu=index", "--format=json"], "only csv|no format"),
        (&["smi", "--watch=0"], "'0' is no interval"),
        (&["smi", "--id=no-such-gpu"], "there is no GPU 'no-such-gpu'"),
        (&["smi", "--json", "--query-gpu=index"], "--json"),
        (&["top"], "top needs a terminal"),
    ] {
        let output = folder.run(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(reason.split('|').any(|reason| error.contains(reason)), "{args:?}: {error}");
    }
}

/// Everything is known of this recording: a larger configuration of its own is not needed, and the limit hurts.
#[test]
fn tune_finds_what_saves_memory() {
    let folder = Folder::new("tune");
    let file = golden("real/gnn_varsize-cap8.default.req.zst");
    let report = folder.json(&["tune", file.to_str().unwrap(), "--json"]);
    let rows = report["rows"].as_array().unwrap();
    let rank = |row: &Value| {
        (row["out_of_memory_events"].as_i64().unwrap(), row["peak_reserved_bytes"].as_i64().unwrap())
    };
    assert!(rows.len() > 20);
    assert!(rows.windows(2).all(|pair| rank(&pair[0]) <= rank(&pair[1])), "best first");
    assert_eq!(report["best"], rows[0]);
    assert_eq!(report["baseline"]["config"], "");
    assert_eq!(report["baseline"]["peak_reserved_bytes"], 8_474_591_232_i64, "as recorded");
    assert!(rank(&report["best"]) < rank(&report["baseline"]));

    // What tune says of a configuration is what replay says of it.
    let config = report["best"]["config"].as_str().unwrap();
    let capacity = report["capacity_bytes"].to_string();
    let args = ["replay", file.to_str().unwrap(), "--json", "--config", config, "--capacity", &capacity];
    let replayed = folder.json(&args);
    assert_eq!(replayed["peak_reserved_bytes"], report["best"]["peak_reserved_bytes"]);
    assert_eq!(replayed["first_pass"]["driver_calls"], report["best"]["driver_calls"]);
}

#[test]
fn tune_prints_the_best_and_what_it_saves() {
    let folder = Folder::new("tune-text");
    let file = golden("real/infer_server.default.req.zst");
    let file = file.to_str().unwrap();
    let output = folder.run(&["tune", file, "--vary", "expandable_segments=-/True"]);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert!(table.contains("2 configurations") && table.contains("<- compared with"), "{table}");
    assert!(table.contains("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"), "{table}");

    let output = folder.run(&["tune", file, "--vary", "garbage_collection_threshold=-/0.9"]);
    assert_eq!(output.status.code(), Some(1), "it does nothing without a limit");
    assert!(text(&output.stdout).contains("Nothing is better than (default)."));

    for (args, reason) in [
        (&["tune", file, "--vary", "quack=1"][..], "quack"),
        (&["tune", file, "--config", "max_split_size_mb:x"], "max_split_size_mb"),
        (&["tune", "no-such.req"], "no-such.req: cannot be read"),
    ] {
        let output = folder.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(reason), "{args:?}: {}", text(&output.stderr));
    }
}

/// A training of `iterations` steps: 64 MiB of weights, per sample 3 MiB + 1 MiB of activations.
fn record(path: &Path, batch: u64, iterations: u64) {
    const MIB: u64 = 1 << 20;
    let mut requests = vec![Request::Alloc { size: 64 * MIB, stream: 0 }];
    for iteration in 0..iterations {
        requests.push(Request::Iteration(iteration as i64));
        for per_sample in [3 * MIB, MIB] {
            requests.push(Request::Alloc { size: batch * per_sample, stream: 0 });
        }
        requests.extend([Request::Free { back: 1 }, Request::Free { back: 2 }]);
    }
    requests.push(Request::Iteration(iterations as i64));
    write(path, &requests);
}

fn write(path: &Path, requests: &[Request]) {
    let model = RequestReader::open(&golden("real/infer_server.default.req.zst")).unwrap();
    let header = Header { case: "toy".into(), requests: requests.len() as u64, ..model.header().clone() };
    let mut writer = TraceWriter::create(path, &header).unwrap();
    for request in requests {
        writer.request(request).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn forecast_finds_the_largest_batch() {
    let folder = Folder::new("forecast");
    let at = |batch: u64, iterations| {
        let path = folder.0.join(format!("b{batch}.req"));
        record(&path, batch, iterations);
        format!("{}@{batch}", path.display())
    };
    let (b8, b32, b20) = (at(8, 3), at(32, 2), at(20, 3));
    // Requests of 10 MiB and more get segments of their own, multiples of 2 MiB: 64 + 3 b + b MiB, rounded up.
    let forecast = folder.json(&["forecast", &b8, &b32, "--capacity", "1G", "--check", &b20, "--json"]);
    assert_eq!(forecast["largest"]["batch"], 240);
    assert_eq!(forecast["largest"]["peak_reserved_bytes"], 1_u64 << 30);
    assert_eq!(forecast["next"]["batch"], 241);
    assert_eq!(forecast["allocations"]["fixed"], 1);
    assert_eq!(forecast["allocations"]["even"], 4);
    assert_eq!(forecast["allocations"]["left_out_requests"], 5);
    assert_eq!(forecast["check"]["error"], 0.0);
    assert_eq!(forecast["check"]["recorded"], forecast["check"]["forecast"]);

    // The answer holds for a recording at that batch size, and the next one fails.
    for (batch, ooms) in [(240, 0), (241, 2)] {
        let file = at(batch, 2);
        let file = file.split('@').next().unwrap();
        let replay = folder.json(&["replay", file, "--capacity", "1G", "--json"]);
        assert_eq!(replay["first_pass"]["out_of_memory_events"], ooms, "{batch}");
    }
    let printed = text(&folder.run(&["forecast", &b8, &b32, "--capacity", "1G"]).stdout);
    assert!(printed.ends_with("Largest batch that fits 1024.00 MiB: 240\n"), "{printed}");
}

#[test]
fn forecast_refuses_what_does_not_go_together() {
    let folder = Folder::new("forecast-refuses");
    let file = |name: &str, requests: &[Request]| {
        write(&folder.0.join(name), requests);
        folder.0.join(name).display().to_string()
    };
    let alloc = |size| Request::Alloc { size, stream: 0 };
    let a = file("a.req", &[alloc(1), alloc(2), Request::Free { back: 1 }]);
    let b = file("b.req", &[alloc(1), alloc(4), Request::Free { back: 2 }]);
    let (a2, a4, b4) = (format!("{a}@2"), format!("{a}@4"), format!("{b}@4"));
    for (args, reason) in [
        (vec!["forecast", &a2, &b4], format!("{b}:4: 'f 2' where {a}:4 has 'f 1'")),
        (vec!["forecast", &a2, &a2], "two different batch sizes".to_owned()),
        (vec!["forecast", &a2, &a], "@16".to_owned()),
        (vec!["forecast", &a2, "none.req@4"], "none.req".to_owned()),
        (vec!["forecast", &a2, &a4, "--config", "quack:1"], "quack".to_owned()),
    ] {
        let output = folder.run(&args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(&reason), "{args:?}: {error}");
    }
    let large = file("large.req", &[alloc(1 << 30), alloc(2), Request::Free { back: 1 }]);
    let larger = file("larger.req", &[alloc(1 << 31), alloc(2), Request::Free { back: 1 }]);
    let args = ["forecast", &format!("{large}@1"), &format!("{larger}@2"), "--capacity", "100M"];
    let output = folder.run(&args);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("Not even batch size 1 fits 100.00 MiB."));
}

#[test]
fn verify_as_json() {
    let folder = Folder::new("verify");
    let copy = |from: &str, to: &str| fs::copy(golden(from), folder.0.join(to)).unwrap();
    copy("rules/coalesce_both.default.req.zst", "a.req.zst");
    copy("rules/coalesce_both.default.obs.zst", "a.obs.zst");
    copy("rules/coalesce_both.default.req.zst", "b.req.zst");
    copy("rules/coalesce_prev.default.obs.zst", "b.obs.zst");
    let output = folder.run(&["verify", "--json", folder.0.to_str().unwrap()]);
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((&lines[0]["case"], &lines[0]["ok"]), (&"a".into(), &true.into()));
    assert!(lines[0]["requests"].as_u64().unwrap() > 0);
    assert!(lines[1]["reason"].as_str().unwrap().contains("different recordings"));
    assert_eq!(lines[2], serde_json::json!({"passed": 1, "failed": 1}));
}

#[test]
fn completions_name_every_command() {
    let folder = Folder::new("completions");
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&folder.run(&["completions", shell]).stdout);
        for command in ["verify", "replay", "smi", "top", "tune", "forecast"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let wrong = folder.run(&["completions", "csh"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("bash"));
}

#[test]
fn exit_statuses_are_documented() {
    let help = text(&Folder::new("help").run(&["--help"]).stdout);
    assert!(help.contains("Exit status:"), "{help}");
}
