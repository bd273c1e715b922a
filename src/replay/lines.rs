//! Lines of a plain or zstd-compressed text file, in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use super::error::{TraceError, TraceResult};

/// First bytes of a zstd frame (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The lines of one file, one after the other.
pub(crate) struct Lines {
    source: BufReader<Box<dyn Read + Send>>,
    path: PathBuf,
    number: u64,
    longest: usize,
    buffer: Vec<u8>,
}

impl Lines {
    /// Opens `path`, decompressing it if it begins like a zstd frame. Lines of more than `longest` bytes are
    /// refused.
    pub(crate) fn open(path: &Path, longest: usize) -> TraceResult<Self> {
        let fail = |e: io::Error| TraceError::new(path, 0, format!("cannot be read: {e}"));
        let mut file = BufReader::new(File::open(path).map_err(fail)?);
        let compressed = file.fill_buf().map_err(fail)?.starts_with(&ZSTD_MAGIC);
        let source: Box<dyn Read + Send> =
            if compressed { Box::new(ZstdReader::Ready(file)) } else { Box::new(file) };
        Ok(Lines {
            source: BufReader::new(source),
            path: path.to_owned(),
            number: 0,
            longest,
            buffer: Vec::new(),
        })
    }

    /// The next line without its end; `None` after the last one.
    pub(crate) fn next(&mut self) -> TraceResult<Option<&str>> {
        self.buffer.clear();
        let limit = self.longest as u64 + 1;
        let read = self.source.by_ref().take(limit).read_until(b'\n', &mut self.buffer);
        self.number += 1;
        match read {
            Err(e) => return Err(self.error(format!("damaged: {e}"))),
            Ok(0) => return Ok(None),
            Ok(_) => {}
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if self.buffer.len() > self.longest {
            return Err(self.error(format!("the line is longer than {} bytes", self.longest)));
        } else {
            return Err(self.error("the file ends within a line"));
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(line) => Ok(Some(line)),
            Err(e) => Err(TraceError::new(&self.path, self.number, format!("not UTF-8: {e}"))),
        }
    }

    /// An error about the line read last.
    pub(crate) fn error(&self, reason: impl std::fmt::Display) -> TraceError {
        TraceError::new(&self.path, self.number, reason)
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines")
            .field("path", &self.path)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Decompresses one frame after the other and checks their checksums.
enum ZstdReader {
    /// Between frames.
    Ready(BufReader<File>),
    /// Within a frame.
    Frame(Box<StreamingDecoder<BufReader<File>, FrameDecoder>>),
    /// After the end or an error.
    Done,
}

impl Read for ZstdReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(self, ZstdReader::Done) {
                ZstdReader::Done => return Ok(0),
                ZstdReader::Ready(mut file) => {
                    if file.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let frame = StreamingDecoder::new(file).map_err(io::Error::other)?;
                    *self = ZstdReader::Frame(Box::new(frame));
                }
                ZstdReader::Frame(mut frame) => {
                    let read = frame.read(out)?;
                    if read > 0 {
                        *self = ZstdReader::Frame(frame);
                        return Ok(read);
                    }
                    let decoder = &frame.decoder;
                    let stored = decoder.get_checksum_from_data();
                    if stored.is_some() && stored != decoder.get_calculated_checksum() {
                        return Err(io::Error::other("the checksum of the zstd frame does not match"));
                    }
                    *self = ZstdReader::Ready(frame.into_inner());
                }
            }
        }
    }
}
