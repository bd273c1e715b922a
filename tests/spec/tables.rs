//! The specification's tables and worked examples, each for the model and for the allocator. All with PyTorch's
//! defects, because the tables show what PyTorch does; `defects` has both ways.

mod calls;
mod defects;
mod expandable;
mod pools;
mod sizes;

use crate::model::Model;
use crate::model::device::MIB;
use crate::model::real::Real;
use crate::model::rules::Conf;
use crate::model::subject::Subject;

pub(crate) const GIB: u64 = 1024 * MIB;

/// Makes a fresh subject from device memory and options.
pub(crate) type Make<'a> = &'a dyn Fn(u64, &str) -> Box<dyn Subject>;
/// The same, with or without `mirror_defects`.
pub(crate) type MakeEither<'a> = &'a dyn Fn(u64, &str, bool) -> Box<dyn Subject>;

pub(crate) fn of_model(total: u64, conf: &str, mirror: bool) -> Box<dyn Subject> {
    Box::new(Model::new(total, Conf::parse(conf), mirror))
}

pub(crate) fn of_allocator(total: u64, conf: &str, mirror: bool) -> Box<dyn Subject> {
    Box::new(Real::new(total, &Conf::parse(conf), mirror))
}

macro_rules! tables {
    ($($room:ident::$table:ident)+) => {
        mod model_follows {
            $(#[test] fn $table() { super::$room::$table(&|total, conf| super::of_model(total, conf, true)) })+
        }
        mod allocator_follows {
            $(
                #[test]
                fn $table() { super::$room::$table(&|total, conf| super::of_allocator(total, conf, true)) }
            )+
        }
    };
}

tables! {
    sizes::spec_2_2_request_to_block
    sizes::spec_2_3_block_to_segment
    sizes::spec_3_3_remainders
    sizes::spec_3_5_oversize
    sizes::spec_3_5_size_just_below_max_split
    calls::spec_4_1_zero_bytes
    calls::spec_4_5_frees_one_that_is_large_enough
    calls::spec_4_5_frees_several_from_the_highest_down
    calls::spec_5_2_whole_small_segment_free_again
    calls::spec_6_3_one_busy_stream_does_not_delay_others
    calls::spec_8_1_fraction_reads_back_floored
    calls::spec_8_1_total_equal_to_the_cap_is_allowed
    calls::spec_8_1_lowering_frees_nothing
    calls::spec_8_1_expandable_overshoots
    calls::spec_9_2_max_split_size_is_frozen
    expandable::spec_13_1_modes_do_not_share_blocks
    expandable::spec_13_2_reservation_size
    expandable::spec_13_4_walk_finds_a_block_that_the_search_refuses
    expandable::spec_13_5_growth_of_the_tail
    expandable::spec_13_5_and_13_6_hole_is_unmapped_and_reused
    pools::spec_14_2_begin_twice_is_an_error
    pools::spec_14_2_live_blocks_survive_their_pool
    pools::spec_14_2_pools_in_use_keep_their_memory
    pools::spec_14_3_no_retry_while_a_pool_is_active
    pools::spec_14_3_empty_cache_skips_default_pools
    pools::spec_14_4_no_split_hands_out_whole_segments
    pools::spec_4_4_an_overflow_pool_is_split_without_expandable_mode
    pools::spec_14_4_use_on_oom_serves_the_default_pool
}

pub(crate) fn get(subject: &dyn Subject, key: &str) -> i64 {
    subject.stats()[key]
}

pub(crate) fn allocated(subject: &dyn Subject) -> u64 {
    get(subject, "allocated_bytes.all.current") as u64
}

pub(crate) fn reserved(subject: &dyn Subject) -> u64 {
    get(subject, "reserved_bytes.all.current") as u64
}

pub(crate) fn alloc(subject: &mut dyn Subject, bytes: u64) -> u64 {
    subject.alloc(bytes, 0).expect("enough memory")
}

/// Leaves a free block of `bytes` in the cache.
pub(crate) fn cache(subject: &mut dyn Subject, bytes: u64) {
    let address = alloc(subject, bytes);
    subject.free(address).expect("a live address");
}
