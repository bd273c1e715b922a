//! Bounds of values, and options that exclude one another. The parser checks each value as it reads it;
//! [`Config::validate`] checks a whole configuration, one put together in code as well.

use super::error::ConfigError;
use super::tokens::MAX_MIB;
use super::{Config, MIB, ReserveSize};

/// Checks the bounds that PyTorch puts on its options [spec 15.3].
pub(super) fn large_segment_size(bytes: u64) -> Result<(), ConfigError> {
    let rule = "CachingAllocator option large_segment_size_mb must be > 10 MB";
    ensure(bytes > 10 * MIB, "large_segment_size_mb", || rule.to_owned())
}

/// A limit that must not be below the large segment size.
pub(super) fn split_limit(key: &str, bytes: u64, large: u64) -> Result<(), ConfigError> {
    ensure(bytes >= large, key, || {
        format!("CachingAllocator option {key} too small, must be >= {}", large / MIB)
    })
}

pub(super) fn garbage_collection_threshold(x: f64) -> Result<(), ConfigError> {
    let rule = "garbage_collect_threshold is invalid, set it in (0.0, 1.0)";
    ensure(x > 0.0 && x < 1.0, "garbage_collection_threshold", || rule.to_owned())
}

pub(super) fn per_process_memory_fraction(x: f64) -> Result<(), ConfigError> {
    let rule = "per_process_memory_fraction is invalid, set it in [0.0, 1.0]";
    ensure((0.0..=1.0).contains(&x), "per_process_memory_fraction", || rule.to_owned())
}

pub(super) fn register_threads(n: u64) -> Result<(), ConfigError> {
    const KEY: &str = "pinned_num_register_threads";
    ensure(n.is_power_of_two(), KEY, || format!("Number of register threads has to be power of 2, got {n}"))?;
    ensure(n <= 128, KEY, || {
        format!("Number of register threads should be less than or equal to 128, got {n}")
    })
}

pub(super) fn pinned_reserve(bytes: u64) -> Result<(), ConfigError> {
    let rule = "Pinned reserve segment size has to be greater than 0";
    ensure(bytes > 0, "pinned_reserve_segment_size_mb", || rule.to_owned())
}

pub(super) fn expandable_reserve(size: ReserveSize) -> Result<(), ConfigError> {
    const KEY: &str = "expandable_segments_reserve";
    let good = match size {
        ReserveSize::Fraction(fraction) => fraction > 0.0 && fraction.is_finite(),
        ReserveSize::Bytes(bytes) => bytes > 0,
    };
    ensure(good, KEY, || {
        format!("{KEY} must be a positive fraction of the device's memory, or a size like 64G")
    })
}

fn ensure(good: bool, key: &str, message: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if good { Ok(()) } else { Err(ConfigError::value(key, message())) }
}

impl Config {
    /// Checks every value, and that no two options exclude one another.
    ///
    /// Parsing does this; call it for a configuration that was put together in code.
    ///
    /// # Errors
    /// [`ConfigError::InvalidValue`] or [`ConfigError::Conflict`] for the first thing wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_values()?;
        self.validate_combinations()
    }

    fn validate_values(&self) -> Result<(), ConfigError> {
        large_segment_size(self.large_segment_size)?;
        for (key, limit) in [
            ("max_split_size_mb", self.max_split_size),
            ("max_non_split_rounding_mb", self.max_non_split_rounding),
        ] {
            if let Some(bytes) = limit {
                split_limit(key, bytes, self.large_segment_size)?;
            }
        }
        // 0 is how "off" is kept; a text cannot say it.
        if self.garbage_collection_threshold != 0.0 {
            garbage_collection_threshold(self.garbage_collection_threshold)?;
        }
        self.roundup_power2_divisions.validate("roundup_power2_divisions")?;
        per_process_memory_fraction(self.per_process_memory_fraction)?;
        register_threads(u64::from(self.pinned.num_register_threads))?;
        if let Some(size) = self.expandable_segments_reserve {
            expandable_reserve(size)?;
        }
        if let Some(idle) = self.release_idle_after {
            let whole =
                idle.subsec_nanos().is_multiple_of(1_000_000) && u64::try_from(idle.as_millis()).is_ok();
            ensure(whole, "release_idle_after_ms", || {
                "release_idle_after_ms takes whole milliseconds".to_owned()
            })?;
        }
        self.validate_whole_mib()
    }

    /// Sizes that have a key in MiB are whole MiB, so that every configuration has a text.
    fn validate_whole_mib(&self) -> Result<(), ConfigError> {
        for (key, bytes) in [
            ("large_segment_size_mb", Some(self.large_segment_size)),
            ("max_split_size_mb", self.max_split_size),
            ("max_non_split_rounding_mb", self.max_non_split_rounding),
            ("pinned_reserve_segment_size_mb", Some(self.pinned.reserve_segment_size)),
            ("pinned_max_round_threshold_mb", self.pinned.max_round_threshold),
            ("pinned_max_cached_size_mb", self.pinned.max_cached_size),
        ] {
            let bytes = bytes.unwrap_or(0);
            ensure(bytes.is_multiple_of(MIB) && bytes / MIB <= MAX_MIB, key, || {
                format!("{key}: {bytes} bytes is not a whole number of MiB")
            })?;
        }
        Ok(())
    }

    fn validate_combinations(&self) -> Result<(), ConfigError> {
        // A replay has to do what PyTorch did, down to the driver calls.
        let mirror = "a replay of PyTorch does exactly what PyTorch does, which has no such option";
        for (on, first) in [
            (self.fraction_of_process, "fraction_of_process"),
            (self.borrow_across_streams, "borrow_across_streams"),
            (self.release_idle_after.is_some(), "release_idle_after_ms"),
        ] {
            if on && self.mirror_defects {
                return Err(ConfigError::Conflict { first, second: "mirror_defects", reason: mirror });
            }
        }
        if self.expandable_segments
            && !self.mirror_defects
            && !self.large_segment_size.is_multiple_of(2 * MIB)
        {
            return Err(ConfigError::Conflict {
                first: "expandable_segments",
                second: "large_segment_size_mb",
                reason: "physical pages are multiples of 2 MiB; make the large segment size even",
            });
        }
        Ok(())
    }
}
