//! Snapshots of one or several devices as one file: PyTorch's dictionary [spec 12.4].

use std::io::{self, Write};
use std::sync::Arc;

use super::history::TraceEntry;
use super::snapshot::{SegmentInfo, Snapshot};
use super::{chrome, encode, json, pickle};
use crate::config::Config;

/// What PyTorch's `_snapshot()` returns: the segments and histories of all devices, and the options in force.
///
/// Made from this crate's snapshots with [`SnapshotFile::merge`], or read from a file (feature `import`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SnapshotFile {
    /// Segments, device by device, within a device by ascending address.
    pub segments: Vec<SegmentInfo>,
    /// One history per device, indexed by device number, oldest entry first.
    pub device_traces: Vec<Vec<TraceEntry>>,
    /// The options in force.
    pub settings: Settings,
    /// Named ranges of the program, in order of time.
    pub annotations: Vec<Annotation>,
}

/// The options that a snapshot shows, in PyTorch's units [spec 12.4].
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The text that the options came from (`PYTORCH_CUDA_ALLOC_CONF`).
    pub source: String,
    /// Bytes; -1: unlimited.
    pub max_split_size: i64,
    /// Fraction, 0: off.
    pub garbage_collection_threshold: f64,
    /// Whether segments are expandable.
    pub expandable_segments: bool,
    /// Threads that register pinned memory.
    pub pinned_num_register_threads: u32,
    /// Accepted without effect here.
    pub release_lock_on_cudamalloc: bool,
    /// Pinned memory through registration.
    pub pinned_use_cuda_host_register: bool,
    /// Reuse during graph capture.
    pub graph_capture_record_stream_reuse: bool,
    /// Divisions for sizes from 2^k MiB, k = 0 to 15.
    pub roundup_power2_divisions: [u32; 16],
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        Settings {
            source: config.source.clone(),
            max_split_size: config.max_split_size.and_then(|v| i64::try_from(v).ok()).unwrap_or(-1),
            garbage_collection_threshold: config.garbage_collection_threshold,
            expandable_segments: config.expandable_segments,
            pinned_num_register_threads: config.pinned.num_register_threads,
            release_lock_on_cudamalloc: config.release_lock_on_cudamalloc,
            pinned_use_cuda_host_register: config.pinned.use_host_register,
            graph_capture_record_stream_reuse: config.graph_capture_record_stream_reuse,
            roundup_power2_divisions: config.roundup_power2_divisions.0,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings::from(&Config::default())
    }
}

/// Begin or end of a named range of the program, as profilers mark them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// Whether the range begins (`START`) or ends (`END`).
    pub start: bool,
    /// The range's name.
    pub name: Arc<str>,
    /// Device ordinal.
    pub device: u32,
    /// Wall clock, microseconds since the epoch.
    pub time_us: u64,
}

impl SnapshotFile {
    /// Puts the snapshots of several devices together. The options are those of the lowest device.
    ///
    /// Two snapshots of the same device: their segments and histories are appended.
    pub fn merge(snapshots: impl IntoIterator<Item = Snapshot>) -> Self {
        let mut snapshots: Vec<Snapshot> = snapshots.into_iter().collect();
        snapshots.sort_by_key(|s| s.device);
        let mut file = SnapshotFile::default();
        if let Some(first) = snapshots.first() {
            file.settings = Settings::from(&first.config);
        }
        for snapshot in snapshots {
            let index = snapshot.device as usize;
            if file.device_traces.len() <= index {
                file.device_traces.resize_with(index + 1, Vec::new);
            }
            file.device_traces[index].extend(snapshot.trace);
            file.segments.extend(snapshot.segments);
        }
        file
    }

    /// The device numbers that have segments or history, ascending.
    pub fn devices(&self) -> Vec<u32> {
        let traced = self.device_traces.iter().zip(0..).filter(|(t, _)| !t.is_empty()).map(|(_, d)| d);
        let mut all: Vec<u32> = self.segments.iter().map(|s| s.device).chain(traced).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The history of one device; empty if none was recorded.
    pub fn trace(&self, device: u32) -> &[TraceEntry] {
        self.device_traces.get(device as usize).map_or(&[], Vec::as_slice)
    }

    /// The segments of one device.
    pub fn segments_of(&self, device: u32) -> impl Iterator<Item = &SegmentInfo> {
        self.segments.iter().filter(move |s| s.device == device)
    }

    /// Writes Python's pickle, protocol 2, which all of PyTorch's viewers and tools read [spec 12.5].
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_pickle(&self, out: impl Write) -> io::Result<()> {
        pickle::write(out, |encoder| encode::snapshot(self, encoder))
    }

    /// Writes JSON, which recent web viewers of PyTorch read [spec 12.5].
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, out: impl Write) -> io::Result<()> {
        json::write(out, |encoder| encode::snapshot(self, encoder))
    }

    /// Writes the history as trace events, for Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing`:
    /// counters (allocated, active, reserved), one track per segment, and each block's life by call site.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_chrome(&self, out: impl Write) -> io::Result<()> {
        json::write(out, |encoder| chrome::trace(self, encoder))
    }
}
