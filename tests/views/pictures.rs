//! Pictures: everything asked for is in them, and they stay small. To look at them, set `GPUCACHE_PICTURES` to a
//! directory.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpucache::import::read_snapshot;
use gpucache::observe::file::SnapshotFile;
use gpucache::observe::history::{Frame, Frames, TraceAction, TraceEntry};
use gpucache::observe::snapshot::{BlockInfo, BlockState, PoolId, PoolKind, SegmentInfo};
use gpucache::plot::{ColorBy, Panel, PlotError, PlotOptions, TimeAxis, png, svg};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshots/pytorch-2.11.pickle");
const MIB: u64 = 1 << 20;

/// Random numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// 10,000 blocks in segments of several streams and pools, with a history of how they came about.
fn large() -> SnapshotFile {
    let mut random = Random(7);
    let mut file = SnapshotFile { device_traces: vec![Vec::new()], ..SnapshotFile::default() };
    let mut base = 0x7f00_0000_0000;
    let mut time = 1_800_000_000_000_000;
    let mut blocks_left = 10_000_u64;
    while blocks_left > 0 {
        let small = random.below(5) == 0;
        let (size, kind) = if small {
            (2 * MIB, PoolKind::Small)
        } else {
            ((20 + 2 * random.below(200)) * MIB, PoolKind::Large)
        };
        let stream = if random.below(6) == 0 { 0x55d0_1000 } else { 0 };
        let count = (2 + random.below(60)).min(blocks_left);
        let segment =
            fill(&mut random, (base, size, count), (stream, kind), &mut time, &mut file.device_traces[0]);
        blocks_left -= segment.blocks.len() as u64;
        base += size + 2 * MIB;
        file.segments.push(segment);
    }
    file
}

fn fill(
    random: &mut Random,
    (base, size, count): (u64, u64, u64),
    (stream, kind): (u64, PoolKind),
    time: &mut u64,
    trace: &mut Vec<TraceEntry>,
) -> SegmentInfo {
    let mut event = |action, addr, size, frames: &Frames| {
        *time += 40;
        trace.push(TraceEntry {
            action,
            addr,
            size,
            stream,
            time_us: *time,
            user_metadata: "".into(),
            frames: frames.clone(),
        });
    };
    event(TraceAction::SegmentAlloc, base, size, &Frames::None);
    let cuts: BTreeSet<u64> = (0..count - 1).map(|_| 512 * (1 + random.below(size / 512 - 1))).collect();
    let mut at = 0;
    let mut blocks = Vec::new();
    for end in cuts.into_iter().chain([size]) {
        let frame = Frame {
            name: "forward".into(),
            filename: format!("model/layers/block{}.py", random.below(14)).into(),
            line: 40,
        };
        let frames = Frames::Stack(Arc::from([frame]));
        let state = match random.below(10) {
            0..6 => BlockState::ActiveAllocated,
            6 => BlockState::ActivePendingFree,
            _ => BlockState::Inactive,
        };
        let block = BlockInfo { address: base + at, size: end - at, requested_size: end - at, state, frames };
        event(TraceAction::Alloc, block.address, block.size, &block.frames);
        if state != BlockState::ActiveAllocated {
            event(TraceAction::FreeRequested, block.address, block.size, &block.frames);
        }
        if state == BlockState::Inactive {
            event(TraceAction::FreeCompleted, block.address, block.size, &block.frames);
        }
        blocks.push(block);
        at = end;
    }
    let sum =
        |wanted: fn(BlockState) -> bool| blocks.iter().filter(|b| wanted(b.state)).map(|b| b.size).sum();
    SegmentInfo {
        device: 0,
        address: base,
        total_size: size,
        allocated_size: sum(|s| s == BlockState::ActiveAllocated),
        active_size: sum(|s| s != BlockState::Inactive),
        requested_size: sum(|s| s != BlockState::Inactive),
        stream,
        segment_type: kind,
        segment_pool_id: PoolId::DEFAULT,
        is_expandable: false,
        frames: Frames::None,
        blocks,
    }
}

fn keep(name: &str, svg: &str, png: Option<&[u8]>) {
    let Some(dir) = std::env::var_os("GPUCACHE_PICTURES").map(std::path::PathBuf::from) else { return };
    std::fs::write(dir.join(format!("{name}.svg")), svg).unwrap();
    if let Some(png) = png {
        std::fs::write(dir.join(format!("{name}.png")), png).unwrap();
    }
}

fn draw(name: &str, file: &SnapshotFile, options: &PlotOptions) -> String {
    let text = svg(file, options).unwrap();
    if std::env::var_os("GPUCACHE_PICTURES").is_some() {
        keep(name, &text, Some(&png(file, options).unwrap()));
    }
    text
}

#[test]
fn a_recorded_snapshot_has_every_panel_with_its_key() {
    let file = read_snapshot(RECORDED.as_ref()).unwrap();
    let options = PlotOptions {
        title: "pytorch-2.11.pickle".into(),
        cap: Some(128 * MIB),
        color: ColorBy::Site,
        axis: TimeAxis::Events,
        ..PlotOptions::default()
    };
    let text = draw("recorded", &file, &options);
    for wanted in [
        "pytorch-2.11.pickle",
        "Memory over time",
        "Fragmentation over time",
        "Segments",
        "reserved (peak 98 MiB)",
        "cap 128 MiB",
        "out of memory (1)",
        "default stream",
        "entries of the history",
        "train.py",
    ] {
        assert!(text.contains(wanted), "'{wanted}' is missing");
    }
}

#[test]
fn ten_thousand_blocks_stay_readable_and_small() {
    let file = large();
    assert!(file.segments.iter().map(|s| s.blocks.len()).sum::<usize>() >= 10_000);
    for (color, name) in
        [(ColorBy::State, "large-state"), (ColorBy::Age, "large-age"), (ColorBy::Site, "large-site")]
    {
        let text = draw(name, &file, &PlotOptions { color, cap: Some(100 << 30), ..PlotOptions::default() });
        assert!(text.len() < 4 << 20, "{name}: {} bytes", text.len());
    }
}

#[test]
fn a_png_has_the_signature_and_twice_the_width() {
    let file = read_snapshot(RECORDED.as_ref()).unwrap();
    let options = PlotOptions { panels: vec![Panel::Segments], width: 700, ..PlotOptions::default() };
    let bytes = png(&file, &options).unwrap();
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(u32::from_be_bytes(bytes[16..20].try_into().unwrap()), 1400);
}

#[test]
fn what_cannot_be_drawn_says_why() {
    let mut file = read_snapshot(RECORDED.as_ref()).unwrap();
    let fails = |file: &SnapshotFile, options: &PlotOptions| svg(file, options).unwrap_err();
    let other = PlotOptions { device: 3, ..PlotOptions::default() };
    assert_eq!(fails(&file, &other).to_string(), "the snapshot has nothing about device 3; it has 0");
    let narrow = PlotOptions { width: 10, ..PlotOptions::default() };
    assert!(matches!(fails(&file, &narrow), PlotError::Option(_)));
    file.device_traces.clear();
    let timeline = PlotOptions { panels: vec![Panel::Timeline], ..PlotOptions::default() };
    assert_eq!(fails(&file, &timeline), PlotError::NoHistory);
    assert!(svg(&file, &PlotOptions::default()).is_ok(), "the map needs no history");
}
