//! malloc, free, events, limits, statistics [spec 4 to 9].

use super::{GIB, Make, alloc, cache, get, reserved};
use crate::model::device::{Call, MIB};

pub(crate) fn spec_4_1_zero_bytes(make: Make) {
    let mut subject = make(GIB, "");
    let before = subject.stats();
    assert_eq!(subject.alloc(0, 0), Ok(0));
    subject.free(0).expect("freeing null is allowed");
    assert_eq!(subject.stats(), before);
}

pub(crate) fn spec_4_5_frees_one_that_is_large_enough(make: Make) {
    // The request in MiB, and which of the cached 2, 3 and 4 GiB goes.
    for (request, total, freed) in [(2560, 10 * GIB, 3 * GIB), (500, 9 * GIB, 2 * GIB)] {
        let mut subject = make(total, "max_split_size_mb:1024");
        let cached = [2, 3, 4].map(|gib| alloc(&mut *subject, gib * GIB));
        for address in cached {
            subject.free(address).expect("a live address");
        }
        alloc(&mut *subject, request * MIB);
        assert_eq!(reserved(&*subject), 9 * GIB - freed + request * MIB, "{request} MiB requested");
        assert_eq!(get(&*subject, "num_alloc_retries"), 0);
        assert_eq!(get(&*subject, "num_device_free"), 1);
    }
}

pub(crate) fn spec_4_5_frees_several_from_the_highest_down(make: Make) {
    let mut subject = make(8 * GIB, "max_split_size_mb:1024");
    let cached = [2 * GIB; 4].map(|bytes| alloc(&mut *subject, bytes));
    for address in cached {
        subject.free(address).expect("a live address");
    }
    alloc(&mut *subject, 5 * GIB);
    let frees: Vec<u64> = subject
        .calls()
        .iter()
        .filter_map(|call| if let Call::Free { address } = call { Some(*address) } else { None })
        .collect();
    assert_eq!(frees, [cached[3], cached[2], cached[1]]);
    assert_eq!(get(&*subject, "num_alloc_retries"), 0);
}

pub(crate) fn spec_5_2_whole_small_segment_free_again(make: Make) {
    let mut subject = make(GIB, "");
    cache(&mut *subject, 512);
    assert_eq!(get(&*subject, "inactive_split.all.freed"), 1);
    assert_eq!(get(&*subject, "inactive_split_bytes.all.freed"), 2_096_640);
    assert_eq!(get(&*subject, "inactive_split_bytes.all.current"), 0);
}

pub(crate) fn spec_6_3_one_busy_stream_does_not_delay_others(make: Make) {
    let mut subject = make(GIB, "");
    let (busy, idle) = (0x100, 0x200);
    let blocks = [busy, idle].map(|stream| (alloc(&mut *subject, 1000), stream));
    subject.hold(busy);
    for (address, stream) in blocks {
        subject.record_stream(address, stream);
        subject.free(address).expect("a live address");
    }
    assert_eq!(get(&*subject, "active.all.current"), 2, "both wait");
    alloc(&mut *subject, 64);
    assert_eq!(get(&*subject, "active.all.current"), 2, "the new one, and the one that the busy stream uses");
}

pub(crate) fn spec_8_1_fraction_reads_back_floored(make: Make) {
    let mut subject = make(10 * GIB, "");
    assert!((subject.fraction() - 1.0).abs() < f64::EPSILON);
    subject.set_fraction(0.333);
    assert!((subject.fraction() - 0.332_999_999_914_318_33).abs() < 1e-17, "{}", subject.fraction());
}

pub(crate) fn spec_8_1_total_equal_to_the_cap_is_allowed(make: Make) {
    let mut subject = make(GIB, "");
    subject.set_fraction(0.5);
    alloc(&mut *subject, 512 * MIB);
    assert!(subject.alloc(1, 0).is_err(), "above the cap");
    subject.set_fraction(1.0);
    alloc(&mut *subject, 1);
}

pub(crate) fn spec_8_1_lowering_frees_nothing(make: Make) {
    let mut subject = make(GIB, "");
    cache(&mut *subject, 512 * MIB);
    subject.set_fraction(0.25);
    assert_eq!(reserved(&*subject), 512 * MIB);
    alloc(&mut *subject, 512 * MIB);
    assert_eq!(get(&*subject, "num_device_alloc"), 1, "cached memory can be handed out above the cap");
}

/// Also defect 23.6.
pub(crate) fn spec_8_1_expandable_overshoots(make: Make) {
    let mut subject = make(300 * MIB, "expandable_segments:True");
    subject.set_fraction(0.1);
    alloc(&mut *subject, 21 * MIB);
    assert_eq!(reserved(&*subject), 40 * MIB);
}

pub(crate) fn spec_9_2_max_split_size_is_frozen(make: Make) {
    let mut subject = make(GIB, "");
    assert_eq!(get(&*subject, "max_split_size"), -1);
    subject.set_settings("max_split_size_mb:100");
    assert_eq!(get(&*subject, "max_split_size"), -1);
    assert_eq!(get(&*make(GIB, "max_split_size_mb:100"), "max_split_size"), 100 * MIB as i64);
}
