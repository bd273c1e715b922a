//! Line 1 of a recording: what was recorded, and under which conditions.

use serde::{Deserialize, Serialize};

use crate::device::Stream;

/// Value of [`Header::format`].
pub const FORMAT: &str = "gpucache-golden";
/// The newest [`Header::version`] that this crate reads.
pub const VERSION: u32 = 1;
/// More streams than this are refused: a header must not make a replay allocate without bound.
const MAX_STREAMS: usize = 4096;

/// The JSON object in line 1 of both files of a case (`docs/trace-format.md`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the format; 1.
    pub version: u32,
    /// Name of the case.
    pub case: String,
    /// `rule`, `fuzz`, `real`, or any other word.
    pub kind: String,
    /// Short name of the configuration.
    pub config: String,
    /// The configuration, as `PYTORCH_CUDA_ALLOC_CONF` has it.
    pub alloc_conf: String,
    /// Memory of the device in bytes.
    pub total_memory: u64,
    /// Argument of `set_per_process_memory_fraction` before the first request.
    pub fraction: Option<f64>,
    /// The cap in bytes that follows from it.
    pub allowed_bytes: Option<u64>,
    /// Number of streams.
    pub streams: u32,
    /// Raw handles of the streams, hexadecimal; 0 is the default stream.
    pub stream_ptrs: Vec<String>,
    /// Number of request lines.
    pub requests: u64,
    /// `req` or `obs`; older files may lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// Names of the columns of an `@` line (`obs`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub row: Vec<String>,
    /// Their values before the first request (`obs`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub row0: Vec<i64>,
    /// Names of the columns of a `*` line (`obs`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub full: Vec<String>,
    /// Which events are recorded (`obs`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventSet>,
    /// Everything else (library versions, seeds, measured results), kept as it is.
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// Which events the observations hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventSet {
    /// Every event.
    #[serde(rename = "all")]
    All,
    /// Without `al`, and without an `fr` that its own `fc` follows directly.
    #[serde(rename = "segment+deferred")]
    SegmentAndDeferred,
    /// Only `sa sf sm su om`.
    #[serde(rename = "segment")]
    Segment,
}

impl Header {
    /// Reads and checks line 1.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let header: Header = serde_json::from_str(line).map_err(|e| {
            format!("line 1 must be the JSON header of a recording (see docs/trace-format.md): {e}")
        })?;
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("unknown format '{}', expected '{FORMAT}'", self.format));
        }
        if self.version != VERSION {
            return Err(format!(
                "format version {} is not known, this program reads {VERSION}",
                self.version
            ));
        }
        if self.stream_ptrs.len() != self.streams as usize {
            let listed = self.stream_ptrs.len();
            return Err(format!("streams is {}, but stream_ptrs lists {listed}", self.streams));
        }
        if self.stream_ptrs.is_empty() || self.stream_ptrs.len() > MAX_STREAMS {
            return Err(format!("streams must be 1 to {MAX_STREAMS}"));
        }
        if !self.row.is_empty() && self.row.len() != super::observation::COLUMNS {
            return Err(format!("row must name {} columns or none", super::observation::COLUMNS));
        }
        self.parse_streams().map(drop)
    }

    fn parse_streams(&self) -> Result<Vec<Stream>, String> {
        let parse = |text: &String| {
            u64::from_str_radix(text, 16)
                .map(Stream::from_raw)
                .map_err(|e| format!("stream_ptrs: '{text}' is not a hexadecimal handle: {e}"))
        };
        self.stream_ptrs.iter().map(parse).collect()
    }

    /// The streams by index. Handles that are not hexadecimal (only possible in a header made by hand) are
    /// left out.
    pub fn stream_handles(&self) -> Vec<Stream> {
        self.parse_streams().unwrap_or_default()
    }
}
