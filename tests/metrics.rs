//! Figures for monitoring, and figures for other processes.
#![cfg(all(feature = "metrics", feature = "export"))]
#![allow(clippy::unwrap_used)] // not only in functions that are tests
#![allow(clippy::float_cmp)] // small integers

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use gpucache::device::sim::SimDevice;
use gpucache::export::{Exported, exports_in};
use gpucache::metrics::{AllocatorCollector, Figures, JsonLogger, Kind, Number, families, openmetrics_text};
use gpucache::{Allocation, Allocator, HistoryOptions};

#[allow(dead_code)] // its main
#[path = "../examples/metrics_http.rs"]
mod metrics_http;

fn gpu(ordinal: u32) -> Allocator {
    Allocator::simulated(SimDevice::builder().total_memory(1 << 30).ordinal(ordinal).build())
}

/// A small segment with 512 and 2048 bytes live, a large one with a hole of 3 MiB.
fn fill(gpu: &Allocator) -> Vec<Allocation> {
    let mut live: Vec<Allocation> =
        [512, 2048, 3 << 20, 4 << 20, 5 << 20].map(|bytes| gpu.alloc(bytes).unwrap()).into();
    live.remove(2);
    live
}

/// Samples of one family: labels as they stand in the text, and the number.
type Samples = Vec<(String, f64)>;

/// A strict reader of the OpenMetrics that is used here: each family once, with HELP and TYPE in front of its samples,
/// counters with `_total`, and an end. (`scripts/scrape.py` asks Prometheus' own reader.)
fn parse(text: &str) -> BTreeMap<String, Samples> {
    let body = text.strip_suffix("# EOF\n").expect("an end");
    let mut families: BTreeMap<String, Samples> = BTreeMap::new();
    let mut family = String::new();
    let mut suffix = "";
    let mut lines = body.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split_once(' ').map(|(name, _)| name.to_owned()).expect("a text");
            let kind =
                lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {family} "))).expect(line);
            suffix = match kind {
                "counter" => "_total",
                "gauge" => "",
                other => panic!("{other}"),
            };
            assert!(families.insert(family.clone(), Vec::new()).is_none(), "{family} comes twice");
            continue;
        }
        let sample = line.strip_prefix(&format!("{family}{suffix}{{")).expect(line);
        let (labels, number) = sample.rsplit_once("} ").expect(line);
        let samples = families.get_mut(&family).expect(line);
        assert!(samples.iter().all(|(known, _)| known != labels), "{line} comes twice");
        samples.push((labels.to_owned(), number.parse().expect(line)));
    }
    families
}

/// The number with these labels; each value must stand in quotes.
fn value(scrape: &BTreeMap<String, Samples>, family: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |text: &str| labels.iter().all(|(name, value)| text.contains(&format!("{name}=\"{value}\"")));
    scrape[family].iter().find(|(text, _)| has(text)).map(|(_, number)| *number)
}

fn scrape(collector: &AllocatorCollector) -> BTreeMap<String, Samples> {
    parse(&openmetrics_text(collector).unwrap())
}

#[test]
fn every_statistic_is_read_back() {
    let gpu = gpu(3);
    let _live = fill(&gpu);
    let scrape = scrape(&AllocatorCollector::new([&gpu]));
    let stats = gpu.memory_stats();
    for (key, expected) in stats.to_map() {
        let words: Vec<&str> = key.split('.').collect();
        let (family, pool) = match words[..] {
            [name] => (format!("gpucache_{name}"), None),
            [name, field] => (format!("gpucache_{name}_{field}"), None),
            [name, pool, field] => (format!("gpucache_{name}_{field}"), Some(("pool", pool))),
            _ => panic!("{key}"),
        };
        let labels: Vec<_> = [("device", "3")].into_iter().chain(pool).collect();
        assert_eq!(value(&scrape, &family, &labels), Some(expected as f64), "{key}");
    }
    assert!(stats.allocated_bytes.all.freed > 0);
}

#[test]
fn blocks_by_size_and_fragmentation() {
    let gpu = gpu(0);
    let _live = fill(&gpu);
    let scrape = scrape(&AllocatorCollector::new([&gpu]));
    let count = |family: &str, pool, le| {
        value(&scrape, family, &[("device", "0"), ("pool", pool), ("le", le)]).unwrap()
    };
    assert_eq!(count("gpucache_live_blocks_by_size", "small_pool", "512.0"), 1.0);
    assert_eq!(count("gpucache_live_blocks_by_size", "small_pool", "2048.0"), 2.0);
    assert_eq!(count("gpucache_live_blocks_by_size", "large_pool", "2097152.0"), 0.0);
    assert_eq!(count("gpucache_live_blocks_by_size", "large_pool", "+Inf"), 2.0);
    assert_eq!(count("gpucache_free_blocks_by_size", "large_pool", "8388608.0"), 2.0);
    // Free: 3 MiB before the live blocks and 8 MiB behind them.
    let large = [("device", "0"), ("pool", "large_pool")];
    assert_eq!(value(&scrape, "gpucache_free_blocks_bytes", &large), Some(11.0 * 1_048_576.0));
    assert_eq!(value(&scrape, "gpucache_free_blocks_largest_bytes", &large), Some(8.0 * 1_048_576.0));
    let dust = value(&scrape, "gpucache_pool_fragmentation_ratio", &large).unwrap();
    assert!((dust - 3.0 / 11.0).abs() < 1e-12, "{dust}");
}

#[test]
fn ages_come_from_the_history() {
    let gpu = gpu(0);
    let collector = AllocatorCollector::new([&gpu]).with_ages();
    let live = |scrape: &BTreeMap<String, Samples>, le| {
        value(scrape, "gpucache_live_blocks_by_age", &[("pool", "small_pool"), ("le", le)])
    };
    let unknown = gpu.alloc(512).unwrap();
    assert!(!scrape(&collector).contains_key("gpucache_live_blocks_by_age"));
    gpu.record_memory_history(Some(HistoryOptions::default()));
    let known = gpu.alloc(512).unwrap();
    thread::sleep(Duration::from_millis(11));
    let figures = scrape(&collector);
    assert_eq!((live(&figures, "0.01"), live(&figures, "+Inf")), (Some(0.0), Some(1.0)));
    drop((unknown, known));
    let free =
        value(&scrape(&collector), "gpucache_free_blocks_by_age", &[("pool", "small_pool"), ("le", "+Inf")]);
    assert_eq!(free, Some(1.0));
}

#[test]
fn devices_and_private_pools_are_labels() {
    let gpus = [gpu(0), gpu(1)];
    let pool = gpus[1].create_pool();
    let block = pool.scope(|| gpus[1].alloc(1000)).unwrap().unwrap();
    let collector = AllocatorCollector::new(&gpus);
    let figures = scrape(&collector);
    let reserved =
        |device| value(&figures, "gpucache_reserved_bytes_current", &[("device", device), ("pool", "all")]);
    assert_eq!((reserved("0"), reserved("1")), (Some(0.0), Some(2_097_152.0)));
    let id = format!("({},{})", pool.id().0, pool.id().1);
    let labels = [("device", "1"), ("pool", id.as_str())];
    assert_eq!(value(&figures, "gpucache_private_pool_allocated_bytes", &labels), Some(1024.0));

    drop((block, pool, gpus));
    assert_eq!(openmetrics_text(&collector).unwrap(), "# EOF\n");
}

#[test]
fn a_scrape_over_http() {
    let gpu = gpu(0);
    let _live = fill(&gpu);
    let collector = AllocatorCollector::new([&gpu]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        for _ in 0..2 {
            metrics_http::answer(&listener.accept().unwrap().0, &collector).unwrap();
        }
    });
    let get = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    };
    let (head, body) = get("/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0"));
    let scrape = parse(&body);
    let labels = [("device", "0"), ("pool", "all")];
    let expected = Some(gpu.memory_allocated() as f64);
    assert_eq!(value(&scrape, "gpucache_allocated_bytes_current", &labels), expected);
    assert!(get("/").0.starts_with("HTTP/1.1 404"));
    server.join().unwrap();
}

#[test]
fn families_are_named_once_and_counters_only_grow() {
    let gpu = gpu(0);
    let before = families(&[Figures::of(&gpu)]);
    let mut names: Vec<&str> = before.iter().map(|family| family.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), before.len());
    drop(fill(&gpu));
    gpu.empty_cache().unwrap();
    let after = families(&[Figures::of(&gpu)]);
    for (old, new) in before.iter().zip(&after).filter(|(old, _)| old.kind == Kind::Counter) {
        for (old, new) in old.samples.iter().zip(&new.samples) {
            let (Number::Integer(old), Number::Integer(new)) = (old.number, new.number) else { panic!() };
            assert!(new >= old);
        }
    }
}

#[test]
fn json_lines_warn() {
    let gpu = Allocator::simulated(SimDevice::new(64 << 20));
    let mut log = JsonLogger::new(&gpu, Vec::new()).warn_above(32 << 20);
    log.log().unwrap();
    let live = gpu.alloc(40 << 20).unwrap();
    log.log().unwrap();
    gpu.alloc(40 << 20).unwrap_err();
    log.log().unwrap();
    let lines: Vec<serde_json::Value> = String::from_utf8(log.writer().clone())
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let levels: Vec<&str> = lines.iter().map(|line| line["level"].as_str().unwrap()).collect();
    assert_eq!(levels, ["info", "warn", "warn"]);
    assert_eq!(lines[0].get("message"), None);
    assert_eq!(lines[1]["message"], "41943040 bytes reserved, more than the threshold of 33554432");
    assert_eq!(lines[2]["message"], "1 requests ran out of memory since the last line");
    assert_eq!((&lines[2]["reserved_bytes"], &lines[2]["num_ooms"]), (&(40 << 20).into(), &1.into()));
    drop((live, gpu));
    assert!(!log.log().unwrap());
}

/// A writer that tests can look into.
#[derive(Clone, Default)]
struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_periodic_log_ends_with_its_handle_and_with_the_allocator() {
    let gpu = gpu(0);
    let out = Shared::default();
    let lines = || String::from_utf8(out.0.lock().unwrap().clone()).unwrap().lines().count();
    let log = JsonLogger::new(&gpu, out.clone()).every(Duration::from_millis(2)).unwrap();
    wait_for(|| lines() >= 3);
    drop(log);
    let at_the_end = lines();
    let second = JsonLogger::new(&gpu, out.clone()).every(Duration::from_millis(2)).unwrap();
    wait_for(|| lines() > at_the_end);
    drop(gpu);
    drop(second);
}

fn wait_for(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(10), "waited in vain");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A folder of one test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpucache-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn exports(&self) -> Vec<Exported> {
        exports_in(std::slice::from_ref(&self.0))
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

#[test]
fn an_export_shows_the_figures_until_the_allocator_goes() {
    let folder = Folder::new("export");
    let gpu = gpu(2);
    let path = gpu.export_in(&folder.0).unwrap();
    assert_eq!(gpu.export_in(Path::new("/nonexistent")).unwrap(), path, "a second call changes nothing");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&path).unwrap().len(), 512);
    let live = fill(&gpu);
    wait_for(|| folder.exports()[0].allocated == gpu.memory_allocated());

    let shown = &folder.exports()[0];
    assert_eq!((shown.pid, shown.device), (std::process::id().into(), 2));
    assert_eq!((shown.reserved, shown.max_reserved), (gpu.memory_reserved(), gpu.max_memory_reserved()));
    assert_eq!((shown.max_allocated, shown.total), (gpu.max_memory_allocated(), 1 << 30));
    assert_eq!((shown.allocations, shown.allocations_made, shown.driver_calls), (4, 5, 2));
    assert_eq!(shown.device_name, gpu.device().properties().name);
    gpu.set_per_process_memory_fraction(0.5).unwrap();
    wait_for(|| folder.exports()[0].allowed == 1 << 29);

    drop(gpu);
    assert_eq!(folder.files(), 0);
    drop(live);
}

#[test]
fn files_of_crashed_processes_go() {
    let folder = Folder::new("crashed");
    let gpu = gpu(0);
    let path = gpu.export_in(&folder.0).unwrap();
    let good = fs::read(&path).unwrap();
    // The same process id, but another start time: word 4 of the file.
    let mut other = good.clone();
    other[32] ^= 1;
    fs::write(folder.0.join("gpucache-1-0-0.export"), &other).unwrap();
    assert_eq!((folder.exports().len(), folder.files()), (1, 1), "a reader cleans up");

    fs::write(folder.0.join("gpucache-1-0-0.export"), &other).unwrap();
    let second = self::gpu(1);
    second.export_in(&folder.0).unwrap();
    assert_eq!(folder.files(), 2, "a new export cleans up");
}

#[test]
fn foreign_files_are_skipped_and_kept() {
    let folder = Folder::new("foreign");
    let gpu = gpu(0);
    let good = fs::read(gpu.export_in(&folder.0).unwrap()).unwrap();
    let mut files = vec![Vec::new(), good[..511].to_vec(), [&good[..], &[0]].concat(), vec![0xff; 512]];
    // Another magic, another version, a write that never ends, one that never began.
    for (at, byte) in [(0, 0), (8, 2), (16, 1), (16, 0)] {
        let mut bytes = good.clone();
        bytes[at] = byte;
        files.push(bytes);
    }
    for (index, bytes) in files.iter().enumerate() {
        fs::write(folder.0.join(format!("gpucache-9-0-{index}.export")), bytes).unwrap();
    }
    std::os::unix::fs::symlink("/dev/zero", folder.0.join("gpucache-link.export")).unwrap();
    fs::create_dir(folder.0.join("gpucache-folder.export")).unwrap();
    let kept = folder.files();
    assert_eq!(folder.exports().len(), 1);
    assert_eq!(folder.files(), kept);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let error = gpu(0).export_in(Path::new("/nonexistent/folder")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/folder/gpucache-"), "{error}");
    assert!(exports_in(&[PathBuf::from("/nonexistent/folder")]).is_empty());
}

#[cfg(feature = "metrics-facade")]
mod facade {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use gpucache::metrics::{Figures, publish};
    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    /// Keeps what it is given, by name and labels.
    #[derive(Default)]
    struct Kept(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

    impl Kept {
        fn slot(&self, key: &Key) -> Arc<AtomicU64> {
            let labels: Vec<String> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
            let name = format!("{}{{{}}}", key.name(), labels.join(","));
            self.0.lock().unwrap().entry(name).or_default().clone()
        }

        fn raw(&self, name: &str) -> u64 {
            self.0.lock().unwrap()[name].load(Ordering::Relaxed)
        }
    }

    impl Recorder for Kept {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.slot(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.slot(key))
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            panic!("states are gauges")
        }
    }

    #[test]
    fn a_recorder_of_the_facade_gets_every_number() {
        let gpu = super::gpu(5);
        let _live = super::fill(&gpu);
        let kept = Kept::default();
        metrics::with_local_recorder(&kept, || publish(&[Figures::of(&gpu)]));
        let gauge = |name: &str| f64::from_bits(kept.raw(name));
        assert_eq!(
            gauge("gpucache_allocated_bytes_current{device=5,pool=all}"),
            gpu.memory_allocated() as f64
        );
        assert_eq!(kept.raw("gpucache_allocation_allocated{device=5,pool=all}"), 5);
        assert_eq!(gauge("gpucache_live_blocks_by_size{device=5,pool=small_pool,le=+Inf}"), 2.0);
    }
}
