//! Private pools [spec 14].

use super::{GIB, Make, alloc, allocated, cache, get, reserved};
use crate::model::device::MIB;

pub(crate) fn spec_14_2_begin_twice_is_an_error(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    assert!(subject.begin_pool(pool).is_err());
    subject.end_pool(pool);
}

pub(crate) fn spec_14_2_live_blocks_survive_their_pool(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    let address = alloc(&mut *subject, 3 * MIB);
    subject.end_pool(pool);
    subject.drop_pool(pool);
    assert_eq!(reserved(&*subject), 20 * MIB);
    subject.free(address).expect("a live address");
    assert_eq!(reserved(&*subject), 20 * MIB);
    subject.empty_cache();
    assert_eq!(reserved(&*subject), 0);
}

pub(crate) fn spec_14_2_pools_in_use_keep_their_memory(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    cache(&mut *subject, 3 * MIB);
    subject.end_pool(pool);
    subject.empty_cache();
    assert_eq!(reserved(&*subject), 20 * MIB, "the pool has a user");
    alloc(&mut *subject, 3 * MIB);
    assert_eq!(reserved(&*subject), 40 * MIB, "and serves nobody else");
    subject.drop_pool(pool);
    assert_eq!(reserved(&*subject), 20 * MIB, "the last user returns it");
}

pub(crate) fn spec_14_3_no_retry_while_a_pool_is_active(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    assert!(subject.alloc(2 * GIB, 0).is_err());
    assert_eq!(get(&*subject, "num_ooms"), 1);
    assert_eq!(get(&*subject, "num_alloc_retries"), 0);
    assert_eq!(get(&*subject, "num_sync_all_streams"), 0);
    subject.end_pool(pool);
}

pub(crate) fn spec_14_3_empty_cache_skips_default_pools(make: Make) {
    let mut subject = make(GIB, "");
    cache(&mut *subject, 3 * MIB);
    let pool = subject.create_pool();
    subject.begin_pool(pool).expect("not active");
    subject.empty_cache();
    assert_eq!((reserved(&*subject), get(&*subject, "num_sync_all_streams")), (20 * MIB, 0));
    subject.end_pool(pool);
    subject.empty_cache();
    assert_eq!((reserved(&*subject), get(&*subject, "num_sync_all_streams")), (0, 1));
}

pub(crate) fn spec_14_4_no_split_hands_out_whole_segments(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.set_no_split(pool);
    subject.begin_pool(pool).expect("not active");
    alloc(&mut *subject, 100);
    assert_eq!(allocated(&*subject), 2 * MIB);
    alloc(&mut *subject, 3 * MIB);
    assert_eq!(allocated(&*subject), 22 * MIB);
    subject.end_pool(pool);
}

/// Asked of PyTorch's allocator: expandable mode, which would split 512 KiB off, is off for an overflow pool.
pub(crate) fn spec_4_4_an_overflow_pool_is_split_without_expandable_mode(make: Make) {
    let mut subject = make(160 * MIB, "");
    let pool = subject.create_pool();
    subject.set_use_on_oom(pool);
    subject.begin_pool(pool).expect("not active");
    cache(&mut *subject, 91_226_112);
    subject.end_pool(pool);
    subject.set_settings("expandable_segments:True");
    alloc(&mut *subject, 91_750_400);
    assert_eq!((allocated(&*subject), reserved(&*subject)), (92_274_688, 92_274_688));
}

pub(crate) fn spec_14_4_use_on_oom_serves_the_default_pool(make: Make) {
    let mut subject = make(GIB, "");
    let pool = subject.create_pool();
    subject.set_use_on_oom(pool);
    subject.begin_pool(pool).expect("not active");
    cache(&mut *subject, 900 * MIB);
    subject.end_pool(pool);
    alloc(&mut *subject, 800 * MIB);
    assert_eq!(reserved(&*subject), 900 * MIB);
    for counter in ["num_ooms", "num_alloc_retries", "num_sync_all_streams"] {
        assert_eq!(get(&*subject, counter), 0, "{counter}");
    }
    assert_eq!(get(&*subject, "num_device_alloc"), 1, "no driver call on behalf of the overflow pool");
}
