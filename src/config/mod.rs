//! Options, their parser and their validation [spec 15].
//!
//! [`OPTIONS`] is the one table of options: it drives the parser, `Display` and `docs/configuration.md`.

mod divisions;
mod env;
mod error;
mod numbers;
mod options;
mod parse;
mod table;
mod tokens;
mod validate;
mod values;

use std::fmt;
use std::time::Duration;

pub use divisions::Divisions;
pub use error::ConfigError;
pub use options::{ConfigOption, OPTIONS, find as find_option};

const MIB: u64 = 1 << 20;

/// The allocator's options. `Config::default()` is PyTorch's default configuration.
///
/// Sizes are in bytes. `Display` shows what differs from the defaults, as text that `parse` reads back.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Blocks of this size or more are not split (`max_split_size_mb`); `None`: all are.
    pub max_split_size: Option<u64>,
    /// How much larger than the request an unsplit oversize block may be (`max_non_split_rounding_mb`);
    /// `None`: the large segment size.
    pub max_non_split_rounding: Option<u64>,
    /// Segment for requests between 1 and 10 MiB (`large_segment_size_mb`). Default 20 MiB.
    pub large_segment_size: u64,
    /// Fraction of the cap above which old cached segments are given back (`garbage_collection_threshold`); 0: off.
    pub garbage_collection_threshold: f64,
    /// `roundup_power2_divisions`.
    pub roundup_power2_divisions: Divisions,
    /// `expandable_segments`.
    pub expandable_segments: bool,
    /// `expandable_segments_reserve`: address space per reservation; `None`: 9/8 of the device.
    pub expandable_segments_reserve: Option<ReserveSize>,
    /// `release_lock_on_cudamalloc`: accepted; no lock that a hit needs is ever held over a driver call here.
    pub release_lock_on_cudamalloc: bool,
    /// `graph_capture_record_stream_reuse`.
    pub graph_capture_record_stream_reuse: bool,
    /// `per_process_memory_fraction`, 0 to 1. Default 1: no cap.
    pub per_process_memory_fraction: f64,
    /// `throw_on_cudamalloc_oom` (PyTorch 2.12): refuse what would exceed the cap before anything is released.
    pub throw_on_cudamalloc_oom: bool,
    /// Pinned host memory options.
    pub pinned: PinnedConfig,
    /// The cap counts the CUDA context and other libraries of this process too (gpucache's own).
    pub fraction_of_process: bool,
    /// Take an idle block of another stream before growing, ordered by an event (gpucache's own).
    pub borrow_across_streams: bool,
    /// Give cached segments back after they were idle this long (gpucache's own).
    pub release_idle_after: Option<Duration>,
    /// Reproduce PyTorch's defects [spec 23], for replays (gpucache's own).
    pub mirror_defects: bool,
    /// Whether freed memory is kept. `false`: every request goes to the driver [spec 4.1].
    pub caching: bool,
    /// The text that the options came from, as `memory_snapshot` shows it.
    pub source: String,
}

/// A size relative to the device or in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReserveSize {
    /// A fraction of the device's memory.
    Fraction(f64),
    /// Bytes.
    Bytes(u64),
}

/// Options of the pinned host memory allocator [spec 17].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedConfig {
    /// `pinned_use_cuda_host_register`.
    pub use_host_register: bool,
    /// `pinned_num_register_threads`.
    pub num_register_threads: u32,
    /// `pinned_reserve_segment_size_mb`, in bytes; 0: none.
    pub reserve_segment_size: u64,
    /// `pinned_use_background_threads`.
    pub use_background_threads: bool,
    /// `pinned_max_round_threshold_mb`, in bytes.
    pub max_round_threshold: Option<u64>,
    /// `pinned_max_cached_size_mb`, in bytes.
    pub max_cached_size: Option<u64>,
    /// `pinned_free_catch_all`.
    pub free_catch_all: bool,
}

impl Default for PinnedConfig {
    fn default() -> Self {
        PinnedConfig {
            use_host_register: false,
            num_register_threads: 1,
            reserve_segment_size: 0,
            use_background_threads: false,
            max_round_threshold: None,
            max_cached_size: None,
            free_catch_all: false,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_split_size: None,
            max_non_split_rounding: None,
            large_segment_size: 20 * MIB,
            garbage_collection_threshold: 0.0,
            roundup_power2_divisions: Divisions::default(),
            expandable_segments: false,
            expandable_segments_reserve: None,
            release_lock_on_cudamalloc: false,
            graph_capture_record_stream_reuse: false,
            per_process_memory_fraction: 1.0,
            throw_on_cudamalloc_oom: false,
            pinned: PinnedConfig::default(),
            fraction_of_process: false,
            borrow_across_streams: false,
            release_idle_after: None,
            mirror_defects: false,
            caching: true,
            source: String::new(),
        }
    }
}

impl Config {
    /// Reads a text of options, `key:value,key:value,...`, on top of the defaults [spec 15.2].
    ///
    /// Accepts what PyTorch accepts, and gpucache's own keys.
    ///
    /// # Errors
    /// What is wrong with the text; see [`ConfigError`].
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut config = Config::default();
        config.apply(text)?;
        Ok(config)
    }

    /// Changes options at run time, as PyTorch's settings call does [spec 15.1]: `max_split_size_mb`,
    /// `max_non_split_rounding_mb`, `garbage_collection_threshold` and `roundup_power2_divisions` fall back to
    /// their defaults unless the text names them; all others are kept.
    ///
    /// # Errors
    /// What is wrong with the text; then nothing has changed. (Under `mirror_defects` the values before the
    /// mistake are in force, as in PyTorch.)
    pub fn apply(&mut self, text: &str) -> Result<(), ConfigError> {
        let mut next = self.clone();
        let outcome = parse::apply(&mut next, text).and_then(|()| next.validate());
        if outcome.is_ok() || self.mirror_defects {
            *self = next;
        }
        outcome
    }

    /// `max_split_size` with "unlimited" as `u64::MAX`.
    #[inline]
    pub fn max_split_bytes(&self) -> u64 {
        self.max_split_size.unwrap_or(u64::MAX)
    }

    /// `max_non_split_rounding`, or else the large segment size.
    #[inline]
    pub fn max_non_split_rounding_bytes(&self) -> u64 {
        self.max_non_split_rounding.unwrap_or(self.large_segment_size)
    }
}

/// The options that are not at their defaults, as a text that [`Config::parse`] reads back. Empty if all are.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let defaults = Config::default();
        let mut comma = "";
        for option in OPTIONS {
            let value = option.value(self);
            if value != option.value(&defaults) {
                write!(f, "{comma}{}:{value}", option.name)?;
                comma = ",";
            }
        }
        Ok(())
    }
}
