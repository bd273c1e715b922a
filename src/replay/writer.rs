//! Writes recordings.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::error::{TraceError, TraceResult};
use super::header::Header;
use super::observation::Observation;
use super::request::Request;

/// Text compressed as one frame. Frames follow each other in the file, so that memory stays bounded.
const FRAME: usize = 4 << 20;

/// Writes one file of a recording: the `.req` or the `.obs` side. Compressed if the name ends in `.zst`.
///
/// [`finish`](TraceWriter::finish) must be called; what is dropped before it may be incomplete.
#[derive(Debug)]
pub struct TraceWriter {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    compressed: bool,
}

impl TraceWriter {
    /// Creates the file, which begins with the header. `header.requests` must be the number of requests that
    /// will follow: readers check it.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path, header: &Header) -> TraceResult<Self> {
        let file =
            File::create(path).map_err(|e| TraceError::new(path, 0, format!("cannot be created: {e}")))?;
        let compressed = path.extension().is_some_and(|e| e == "zst");
        let mut buffer = serde_json::to_vec(header).map_err(|e| TraceError::new(path, 1, e))?;
        buffer.push(b'\n');
        Ok(TraceWriter { file, path: path.to_owned(), buffer, compressed })
    }

    /// Adds a request.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn request(&mut self, request: &Request) -> TraceResult<()> {
        let written = writeln!(self.buffer, "{request}");
        self.check(written)?;
        self.flush_if_full()
    }

    /// Adds an observation.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn observation(&mut self, observation: &Observation) -> TraceResult<()> {
        let written = write!(self.buffer, "{observation}");
        self.check(written)?;
        self.flush_if_full()
    }

    /// Writes what is still held back.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> TraceResult<()> {
        self.flush()
    }

    fn flush_if_full(&mut self) -> TraceResult<()> {
        if self.buffer.len() < FRAME { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> TraceResult<()> {
        let text = std::mem::take(&mut self.buffer);
        let written = if self.compressed {
            self.file.write_all(&compress_to_vec(text.as_slice(), CompressionLevel::Fastest))
        } else {
            self.file.write_all(&text)
        };
        self.check(written)
    }

    fn check(&self, written: io::Result<()>) -> TraceResult<()> {
        written.map_err(|e| TraceError::new(&self.path, 0, format!("cannot be written: {e}")))
    }
}
