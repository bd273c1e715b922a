//! Who asked for a segment, in snapshots and in the history.

use gpucache::device::sim::SimDevice;
use gpucache::observe::history::{Frames, TraceAction};
use gpucache::{Allocation, Allocator, HistoryOptions};
use proptest::prelude::*;

fn is_here(frames: &Frames) -> bool {
    matches!(frames, Frames::Site(site) if site.file() == file!())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever was cut, joined, mapped and unmapped: every segment knows it, and so does every event of one.
    #[test]
    fn every_segment_knows_who_asked_for_it(
        expandable in any::<bool>(),
        ops in prop::collection::vec((0u8..5, 1usize..60, any::<prop::sample::Index>()), 1..60),
    ) {
        let gpu = Allocator::simulated(SimDevice::new(1 << 30));
        if expandable {
            gpu.set_allocator_settings("expandable_segments:True").unwrap();
        }
        gpu.record_memory_history(Some(HistoryOptions::default()));
        let mut live: Vec<Allocation> = Vec::new();
        for (op, units, which) in ops {
            match op {
                0 => live.push(gpu.alloc(units * 700).unwrap()),
                1 => live.push(gpu.alloc(units << 18).unwrap()),
                2 | 3 if !live.is_empty() => drop(live.swap_remove(which.index(live.len()))),
                _ => { gpu.empty_cache().unwrap(); }
            }
            for segment in gpu.memory_snapshot().segments {
                prop_assert!(is_here(&segment.frames), "{segment:?}");
            }
            gpu.verify().unwrap();
        }
        drop(live);
        gpu.empty_cache().unwrap();
        let of_segments = [
            TraceAction::SegmentAlloc,
            TraceAction::SegmentFree,
            TraceAction::SegmentMap,
            TraceAction::SegmentUnmap,
        ];
        for event in gpu.take_history() {
            prop_assert!(!of_segments.contains(&event.action) || is_here(&event.frames), "{event:?}");
        }
    }
}
