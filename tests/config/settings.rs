//! Options changed at run time.

use gpucache::config::Divisions;

use crate::{MIB, parse};

/// [spec 15.1]
#[test]
fn a_settings_call_resets_four_options() {
    let mut config = parse(
        "large_segment_size_mb:32,max_split_size_mb:100,max_non_split_rounding_mb:50,roundup_power2_divisions:4,\
         garbage_collection_threshold:0.5,expandable_segments:True,per_process_memory_fraction:0.5",
    );
    config.apply("release_lock_on_cudamalloc:True").unwrap();
    assert_eq!(config.max_split_size, None);
    assert_eq!(config.max_non_split_rounding_bytes(), 32 * MIB);
    assert_eq!(config.roundup_power2_divisions, Divisions::default());
    assert!(config.garbage_collection_threshold == 0.0);
    assert!(config.expandable_segments && config.release_lock_on_cudamalloc);
    assert_eq!(config.large_segment_size, 32 * MIB);
    assert_eq!(config.source, "release_lock_on_cudamalloc:True");
    // The bound is the segment size kept from before.
    assert!(config.apply("max_split_size_mb:30").is_err());
}

#[test]
fn a_failed_settings_call_changes_nothing() {
    let mut config = parse("max_split_size_mb:100");
    let before = config.clone();
    assert!(config.apply("expandable_segments:True,max_split_size_mb:19").is_err());
    assert_eq!(config, before);
}

#[test]
fn under_mirror_defects_values_before_the_mistake_stay() {
    let mut config = parse("max_split_size_mb:100,mirror_defects:True");
    assert!(config.apply("expandable_segments:True,max_split_size_mb:19").is_err());
    assert!(config.expandable_segments);
    assert_eq!(config.max_split_size, None);
    assert_eq!(config.source, "expandable_segments:True,max_split_size_mb:19");
}
