//! PyTorch's defects [spec 23]: reproduced with `mirror_defects`, absent without.

use super::{GIB, MakeEither, alloc, allocated, cache, get, of_allocator, of_model, reserved};
use crate::model::Failure;
use crate::model::device::{Call, MIB};

macro_rules! defects {
    ($($defect:ident)+) => {
        mod of_the_model {
            $(#[test] fn $defect() { super::$defect(&super::of_model) })+
        }
        mod of_the_allocator {
            $(
                #[test]
                fn $defect() { super::$defect(&super::of_allocator) }
            )+
        }
    };
}

defects! {
    spec_23_2_streams_recorded_while_a_pool_is_active
    spec_23_6_cap_overshot_by_whole_pages
    spec_23_7_failed_begin_leaks_a_use
    spec_23_13_live_memory_returned_to_the_driver
    spec_23_14_lowered_max_split_frees_nothing_inside_a_segment
    oom_with_a_fitting_block_in_the_pool
}

fn spec_23_2_streams_recorded_while_a_pool_is_active(make: MakeEither) {
    for (mirror, waiting) in [(true, 0), (false, 1)] {
        let mut subject = make(GIB, "", mirror);
        let pool = subject.create_pool();
        subject.hold(0x100);
        subject.begin_pool(pool).expect("not active");
        let address = alloc(&mut *subject, 3 * MIB);
        subject.record_stream(address, 0x100);
        subject.free(address).expect("a live address");
        subject.end_pool(pool);
        alloc(&mut *subject, 512);
        let active = get(&*subject, "active.all.current") - get(&*subject, "allocation.all.current");
        assert_eq!(active, waiting, "with mirror_defects {mirror}");
    }
}

#[test]
fn spec_23_5_sticky_size_below_max_split() {
    let make = of_allocator;
    for (mirror, calls) in [(true, 5), (false, 1)] {
        let mut subject = make(GIB, "max_split_size_mb:100", mirror);
        for _ in 0..5 {
            cache(&mut *subject, 99 * MIB);
        }
        assert_eq!(get(&*subject, "num_device_alloc"), calls, "with mirror_defects {mirror}");
    }
}

fn spec_23_6_cap_overshot_by_whole_pages(make: MakeEither) {
    for (mirror, mapped) in [(true, 40 * MIB), (false, 0)] {
        let mut subject = make(300 * MIB, "expandable_segments:True", mirror);
        subject.set_fraction(0.1);
        assert_eq!(subject.alloc(21 * MIB, 0).is_ok(), mirror);
        assert_eq!(reserved(&*subject), mapped, "with mirror_defects {mirror}");
    }
}

fn spec_23_7_failed_begin_leaks_a_use(make: MakeEither) {
    for (mirror, kept) in [(true, 20 * MIB), (false, 0)] {
        let mut subject = make(GIB, "", mirror);
        let pool = subject.create_pool();
        subject.begin_pool(pool).expect("not active");
        subject.begin_pool(pool).expect_err("already active");
        cache(&mut *subject, 3 * MIB);
        subject.end_pool(pool);
        subject.drop_pool(pool);
        assert_eq!(reserved(&*subject), kept, "with mirror_defects {mirror}");
    }
}

/// Limit 100 MiB; a segment of 210 MiB is made whole, then split because expandable mode is on, then its front is
/// free and a request does not fit. Without the defect, nobody's memory goes.
fn spec_23_13_live_memory_returned_to_the_driver(make: MakeEither) {
    let mut subject = make(400 * MIB, "max_split_size_mb:100", false);
    cache(&mut *subject, 210 * MIB);
    subject.set_settings("max_split_size_mb:100,expandable_segments:True");
    let front = alloc(&mut *subject, 195 * MIB);
    alloc(&mut *subject, 10 * MIB);
    subject.free(front).expect("a live address");
    subject.alloc(300 * MIB, 0).expect_err("does not fit");
    assert!(!subject.calls().iter().any(|call| matches!(call, Call::Free { .. })));
    assert_eq!((reserved(&*subject), allocated(&*subject)), (210 * MIB, 10 * MIB));
    subject.verify();
}

/// With `mirror_defects` the model frees inside the segment, as PyTorch does; the allocator refuses even then.
fn spec_23_14_lowered_max_split_frees_nothing_inside_a_segment(make: MakeEither) {
    let mut subject = make(400 * MIB, "", false);
    cache(&mut *subject, 300 * MIB);
    alloc(&mut *subject, 20 * MIB);
    subject.set_settings("max_split_size_mb:100");
    assert_eq!(subject.alloc(350 * MIB, 0), Err(Failure::OutOfMemory));
    subject.verify();
}

/// Two neighbours wait for a busy stream. The retry waits for them, and then they would fit together; their
/// segment cannot be released, because a third block lives in it.
fn oom_with_a_fitting_block_in_the_pool(make: MakeEither) {
    for mirror in [true, false] {
        let mut subject = make(100 * MIB, "", mirror);
        cache(&mut *subject, 90 * MIB);
        let waiting = [40 * MIB, 40 * MIB].map(|bytes| alloc(&mut *subject, bytes));
        alloc(&mut *subject, 5 * MIB);
        subject.hold(0x100);
        for address in waiting {
            subject.record_stream(address, 0x100);
            subject.free(address).expect("a live address");
        }
        let outcome = subject.alloc(70 * MIB, 0);
        assert_eq!(outcome, if mirror { Err(Failure::OutOfMemory) } else { Ok(waiting[0]) });
        assert_eq!(get(&*subject, "num_ooms"), i64::from(mirror));
        assert_eq!(get(&*subject, "num_alloc_retries"), 1);
    }
}
