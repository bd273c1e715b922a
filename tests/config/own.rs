//! gpucache's own options, defaults, and errors.

use std::time::Duration;

use gpucache::Config;
use gpucache::config::{ConfigError, Divisions, ReserveSize};

use crate::{MIB, error, parse};

#[test]
fn defaults() {
    let config = Config::default();
    assert_eq!(config.max_split_bytes(), u64::MAX);
    assert_eq!(config.max_non_split_rounding_bytes(), 20 * MIB);
    assert_eq!(config.to_string(), "");
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(parse("large_segment_size_mb:64").max_non_split_rounding_bytes(), 64 * MIB);
}

#[test]
fn later_and_own_options() {
    let config = parse(
        "throw_on_cudamalloc_oom:True,pinned_free_catch_all:True,pinned_max_round_threshold_mb:64,\
         pinned_max_cached_size_mb:128,expandable_segments_reserve:0.5,fraction_of_process:True,\
         borrow_across_streams:True,release_idle_after_ms:2500,caching:False,backend:native",
    );
    assert!(config.throw_on_cudamalloc_oom && config.pinned.free_catch_all);
    assert_eq!(config.pinned.max_round_threshold, Some(64 * MIB));
    assert_eq!(config.pinned.max_cached_size, Some(128 * MIB));
    assert_eq!(config.expandable_segments_reserve, Some(ReserveSize::Fraction(0.5)));
    assert!(config.fraction_of_process && config.borrow_across_streams && !config.caching);
    assert_eq!(config.release_idle_after, Some(Duration::from_millis(2500)));
    assert_eq!(parse("release_idle_after_ms:none").release_idle_after, None);
    assert!(parse("mirror_defects:True").mirror_defects);
    let reserve =
        |text: &str| parse(&format!("expandable_segments_reserve:{text}")).expandable_segments_reserve;
    assert_eq!(reserve("64G"), Some(ReserveSize::Bytes(64 << 30)));
    assert_eq!(reserve("512MiB"), Some(ReserveSize::Bytes(512 << 20)));
    for bad in ["0", "-1", "inf", "nan", "0G", "7X"] {
        assert!(
            error(&format!("expandable_segments_reserve:{bad}")).contains("expandable_segments_reserve"),
            "{bad}"
        );
    }
}

#[test]
fn unknown_keys_name_the_nearest() {
    assert_eq!(
        error("max_split_size:100"),
        "Unrecognized key 'max_split_size' in allocator config. Did you mean 'max_split_size_mb'?"
    );
    assert_eq!(error("zzz:1"), "Unrecognized key 'zzz' in allocator config.");
    assert!(error("Expandable_Segments:True").contains("Did you mean 'expandable_segments'?"));
}

#[test]
fn the_asynchronous_backend_is_refused() {
    let error = Config::parse("backend:cudaMallocAsync").unwrap_err();
    assert!(matches!(error, ConfigError::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains("backend:cudaMallocAsync is not supported by gpucache"), "{error}");
}

#[test]
fn impossible_combinations() {
    for (text, second) in [
        ("mirror_defects:True,borrow_across_streams:True", "mirror_defects"),
        ("mirror_defects:True,fraction_of_process:True", "mirror_defects"),
        ("mirror_defects:True,release_idle_after_ms:5", "mirror_defects"),
        ("expandable_segments:True,large_segment_size_mb:25", "large_segment_size_mb"),
    ] {
        let error = Config::parse(text).unwrap_err();
        assert!(matches!(error, ConfigError::Conflict { second: s, .. } if s == second), "{text}: {error:?}");
    }
}

#[test]
fn configurations_of_the_recordings_are_accepted() {
    for text in [
        "expandable_segments:True",
        "expandable_segments:True,roundup_power2_divisions:4",
        "expandable_segments:True,garbage_collection_threshold:0.6",
        "max_split_size_mb:64,roundup_power2_divisions:4,garbage_collection_threshold:0.6",
        "max_split_size_mb:32,max_non_split_rounding_mb:40",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "large_segment_size_mb:64",
        "expandable_segments:True,max_split_size_mb:64,large_segment_size_mb:64,mirror_defects:True",
    ] {
        parse(text);
    }
}

#[test]
fn configurations_made_in_code_are_checked() {
    let broken: &[fn(&mut Config)] = &[
        |c| c.max_split_size = Some(MIB),
        |c| c.max_split_size = Some(64 * MIB + 1),
        |c| c.large_segment_size = 10 * MIB,
        |c| c.garbage_collection_threshold = f64::NAN,
        |c| c.per_process_memory_fraction = -0.5,
        |c| c.roundup_power2_divisions = Divisions::uniform(3),
        |c| c.pinned.num_register_threads = 0,
        |c| c.expandable_segments_reserve = Some(ReserveSize::Bytes(0)),
        |c| c.release_idle_after = Some(Duration::from_micros(1500)),
    ];
    for (index, change) in broken.iter().enumerate() {
        let mut config = Config::default();
        change(&mut config);
        assert!(matches!(config.validate(), Err(ConfigError::InvalidValue { .. })), "{index}");
    }
}
