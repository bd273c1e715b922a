//! Expandable segments [spec 13].

use super::{GIB, Make, alloc, cache, get, reserved};
use crate::model::device::{Call, MIB};

pub(crate) fn spec_13_1_modes_do_not_share_blocks(make: Make) {
    let mut subject = make(GIB, "expandable_segments:True");
    cache(&mut *subject, 20 * MIB);
    subject.set_settings("expandable_segments:False");
    cache(&mut *subject, 3 * MIB);
    assert_eq!(
        get(&*subject, "segment.all.current"),
        1,
        "free expandable memory is not handed out while off"
    );
    subject.set_settings("expandable_segments:True");
    alloc(&mut *subject, 20 * MIB);
    assert_eq!(reserved(&*subject), 40 * MIB, "both kinds may serve while on");
}

pub(crate) fn spec_13_2_reservation_size(make: Make) {
    let mut subject = make(10 * GIB, "expandable_segments:True");
    alloc(&mut *subject, 1);
    alloc(&mut *subject, 3 * MIB);
    let sizes: Vec<u64> = subject
        .calls()
        .iter()
        .filter_map(|call| if let Call::Reserve { bytes, .. } = call { Some(*bytes) } else { None })
        .collect();
    assert_eq!(sizes, [12_079_595_520; 2]);
}

/// The search refuses a free block of `max_split` or more; the walk of 13.4 finds it all the same, nothing is mapped.
pub(crate) fn spec_13_4_walk_finds_a_block_that_the_search_refuses(make: Make) {
    let mut subject = make(384 * MIB, "max_split_size_mb:64,expandable_segments:True");
    let base = alloc(&mut *subject, 64 * MIB);
    subject.free(base).expect("a live address");
    assert_eq!(alloc(&mut *subject, 4_409_642), base);
    assert_eq!((reserved(&*subject), get(&*subject, "num_device_alloc")), (80 * MIB, 1));
    assert_eq!(get(&*subject, "num_alloc_retries"), 0);
}

pub(crate) fn spec_13_5_growth_of_the_tail(make: Make) {
    let mut subject = make(GIB, "expandable_segments:True");
    let base = alloc(&mut *subject, 3 * MIB);
    assert_eq!(reserved(&*subject), 20 * MIB);
    assert_eq!(alloc(&mut *subject, 30 * MIB), base + 3 * MIB);
    assert_eq!(reserved(&*subject), 40 * MIB);
    assert_eq!(get(&*subject, "num_device_alloc"), 2);
}

pub(crate) fn spec_13_5_and_13_6_hole_is_unmapped_and_reused(make: Make) {
    let mut subject = make(GIB, "expandable_segments:True");
    let base = alloc(&mut *subject, 50 * MIB);
    assert_eq!(alloc(&mut *subject, 50 * MIB), base + 50 * MIB);
    subject.free(base).expect("a live address");
    subject.empty_cache();
    assert_eq!(reserved(&*subject), 60 * MIB, "pages 0 and 1 are gone, +40 to +50 MiB stays");
    assert_eq!(get(&*subject, "num_device_free"), 1, "one range");
    assert_eq!(alloc(&mut *subject, 45 * MIB), base);
    assert_eq!(reserved(&*subject), 100 * MIB);
    assert_eq!(alloc(&mut *subject, 5 * MIB), base + 45 * MIB);
}
