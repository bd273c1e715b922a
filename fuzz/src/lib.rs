//! What the targets do with their input. A target fails by a panic, by memory (`-rss_limit_mb`) or by time
//! (`-timeout`); the functions add what must hold for input that is accepted.

use gpucache::import::{Imported, parse_rmm_log, parse_snapshot, requests};
use gpucache::observe::inspect::{InspectOptions, inspect};
use gpucache::observe::timeline;
use gpucache::replay::{ObservationReader, Request, RequestReader};

/// A snapshot, pickle or JSON: what is accepted can be summed up, written and read again, and turned into requests.
pub fn snapshot(bytes: &[u8]) {
    let Ok(file) = parse_snapshot(bytes) else { return };
    for device in file.devices() {
        let seen = inspect(&file, device, InspectOptions::default());
        assert!(seen.totals.allocated <= seen.totals.active && seen.totals.active <= seen.totals.reserved);
        let _ = seen.to_string();
        assert_eq!(timeline::points(&file, device).len(), file.trace(device).len() + 1);
        if let Ok(imported) = requests(&file, device, None) {
            check_requests(&imported);
        }
    }
    let mut pickle = Vec::new();
    file.write_pickle(&mut pickle).unwrap();
    assert_eq!(parse_snapshot(&pickle).unwrap(), file);
    let mut json = Vec::new();
    file.write_json(&mut json).unwrap();
    assert_eq!(parse_snapshot(&json).unwrap(), file);
    file.write_chrome(&mut std::io::sink()).unwrap();
}

/// An RMM log.
pub fn rmm_log(bytes: &[u8]) {
    if let Ok(imported) = parse_rmm_log(bytes, None) {
        check_requests(&imported);
    }
}

/// Every request names an allocation that is there, and reads back as written.
fn check_requests(imported: &Imported) {
    assert_eq!(imported.header.requests, imported.requests.len() as u64);
    let mut count = 0;
    for request in &imported.requests {
        match *request {
            Request::Alloc { stream, .. } => {
                assert!(stream < imported.header.streams);
                count += 1;
            }
            Request::Free { back }
            | Request::FreeIfLive { back }
            | Request::DeferredFree { back }
            | Request::Complete { back } => assert!((1..=count).contains(&back)),
            _ => {}
        }
        assert_eq!(Request::parse(&request.to_string()).as_ref(), Ok(request));
    }
}

/// Both sides of a recording. The readers take files, so the input goes through one (in memory on most systems).
pub fn recording(bytes: &[u8]) {
    let dir =
        if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let path = dir.join(format!("gpucache-fuzz-{}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    if let Ok(reader) = RequestReader::open(&path) {
        reader.for_each(drop);
    }
    if let Ok(reader) = ObservationReader::open(&path) {
        reader.for_each(drop);
    }
    std::fs::remove_file(&path).unwrap();
}

/// Options, and sizes as the command line takes them.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = gpucache::units::parse_size(text);
    if let Err(error) = gpucache::Config::parse(text) {
        assert!(!error.to_string().is_empty());
    }
}
