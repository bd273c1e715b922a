//! Live blocks by call site and age, growth between marks, the report at the end.

use std::sync::{Arc, Mutex};

use gpucache::device::sim::SimDevice;
use gpucache::observe::leaks::LeakReport;
use gpucache::{Allocator, HistoryOptions};

use super::MIB;

fn sim() -> Allocator {
    Allocator::simulated(SimDevice::new(1 << 30))
}

#[test]
fn growth_is_told_by_call_site() {
    let gpu = sim();
    let before = gpu.alloc(3 * MIB).unwrap();
    let mark = gpu.mark();
    assert_eq!(gpu.since(&mark).net_bytes(), 0);
    assert!(gpu.since(&mark).sites.is_empty());

    let kept: Vec<_> = (0..3).map(|_| gpu.alloc(2 * MIB).unwrap()).collect();
    let line = line!() - 1;
    drop(gpu.alloc(5 * MIB).unwrap());
    drop(before);
    let growth = gpu.since(&mark);
    assert_eq!((growth.before, growth.now), (3 << 20, 6 << 20));
    assert_eq!(growth.sites.len(), 2, "{growth}");
    assert_eq!(growth.sites[0].site, format!("{}:{line}", file!()));
    assert_eq!((growth.sites[0].new_blocks, growth.sites[0].new_bytes), (3, 6 << 20));
    assert_eq!((growth.sites[1].gone_blocks, growth.sites[1].gone_bytes), (1, 3 << 20));
    assert!(growth.to_string().contains(&growth.sites[0].site));
    assert!(!growth.to_string().contains(&growth.sites[1].site), "what shrank is not listed");
    drop(kept);
}

/// The same place, freed and allocated again, is another block.
#[test]
fn a_reused_block_counts_as_new() {
    let gpu = sim();
    for bytes in [700, 2 * MIB, 20 * MIB] {
        let first = gpu.alloc(bytes).unwrap();
        let mark = gpu.mark();
        let address = first.address();
        drop(first);
        let second = gpu.alloc(bytes).unwrap();
        assert_eq!(second.address(), address);
        let growth = gpu.since(&mark);
        let (new, gone) = growth.sites.iter().fold((0, 0), |s, g| (s.0 + g.new_blocks, s.1 + g.gone_blocks));
        assert_eq!((new, gone), (1, 1), "{bytes}");
    }
}

#[test]
fn ages_come_from_the_history() {
    let gpu = sim();
    let old = gpu.alloc(512).unwrap();
    assert!(gpu.live_blocks().iter().all(|b| b.age.is_none()));
    gpu.record_memory_history(Some(HistoryOptions::default()));
    let new = gpu.alloc(512).unwrap();
    let blocks = gpu.live_blocks();
    let age_of = |address| blocks.iter().find(|b| b.address == address).unwrap().age;
    assert_eq!(age_of(old.address()), None, "older than the history");
    assert!(age_of(new.address()).is_some());
    assert!(gpu.leaks().to_string().contains("s old"));
}

fn watch(gpu: &Allocator) -> Arc<Mutex<Vec<LeakReport>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = seen.clone();
    gpu.attach_leak_observer(move |report| into.lock().unwrap().push(report.clone()));
    seen
}

#[test]
fn the_last_handle_reports_what_is_live() {
    let gpu = sim();
    let seen = watch(&gpu);
    gpu.report_leaks_on_drop(true);
    let other_handle = gpu.clone();
    let leaked = gpu.alloc(1000).unwrap();
    drop(gpu);
    assert!(seen.lock().unwrap().is_empty(), "a handle is left");
    drop(other_handle);
    let reports = seen.lock().unwrap();
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].bytes, reports[0].blocks), (1024, 1));
    assert!(reports[0].sites[0].site.starts_with(file!()));
    drop(leaked);
}

#[test]
fn nothing_live_is_nothing_to_report() {
    let gpu = sim();
    let seen = watch(&gpu);
    drop(gpu.alloc(1000).unwrap());
    drop(gpu);
    assert!(seen.lock().unwrap().is_empty());
}

#[test]
fn a_panicking_observer_does_not_leave_the_drop() {
    let gpu = sim();
    gpu.attach_leak_observer(|_| panic!("an observer's own fault"));
    let leaked = gpu.alloc(1000).unwrap();
    drop(gpu);
    drop(leaked);
}
