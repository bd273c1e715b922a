//! Logs of RMM's `logging_resource_adaptor`: CSV with the columns `Thread,Time,Action,Pointer,Size,Stream`.

use std::path::Path;

use csv::{ByteRecord, ReaderBuilder};

use super::error::{ImportError, Position};
use super::requests::{Imported, Recorder};
use crate::units::short_size;

const GIB: u64 = 1 << 30;

/// Reads a log file into a request stream. See [`parse_rmm_log`].
///
/// # Errors
/// The file can't be read or is no such log.
pub fn read_rmm_log(path: &Path, total_memory: Option<u64>) -> Result<Imported, ImportError> {
    let bytes = super::read_file(path)?;
    parse_rmm_log(&bytes, total_memory).map_err(|e| e.in_file(path))
}

/// Turns a log into a request stream: `allocate`, `free` and `allocate failure` (which later versions call
/// `failure`). A free of an unknown pointer is one of an allocation before the log began. Without `total_memory`
/// (bytes) the device is taken to have twice the highest sum of live bytes.
///
/// # Errors
/// A column is missing, a field is wrong, or a pointer is handed out twice; the error has the line.
pub fn parse_rmm_log(bytes: &[u8], total_memory: Option<u64>) -> Result<Imported, ImportError> {
    let mut reader = ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let header = reader.byte_headers().map_err(|e| csv_error(&e))?.clone();
    let columns = Columns::find(&header)?;
    let mut log = Log::default();
    let mut record = ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(|e| csv_error(&e))? {
        let line = record.position().map_or(0, csv::Position::line);
        log.add(&columns, &record).map_err(|what| ImportError::new(Position::Line(line, 0), what))?;
    }
    let mut notes = Vec::new();
    let total = total_memory.unwrap_or_else(|| {
        let twice = log.peak.saturating_mul(2).checked_next_multiple_of(GIB).unwrap_or(log.peak).max(GIB);
        notes.push(format!("device memory assumed: {} (twice the highest live bytes)", short_size(twice)));
        twice
    });
    log.recorder.finish("rmm", "", total, notes)
}

/// Where the columns are; their order is free.
struct Columns {
    action: usize,
    pointer: usize,
    size: usize,
    stream: usize,
}

impl Columns {
    fn find(header: &ByteRecord) -> Result<Self, ImportError> {
        let at = |name: &str| {
            header.iter().position(|h| h.eq_ignore_ascii_case(name.as_bytes())).ok_or_else(|| {
                let found: Vec<_> = header.iter().take(12).map(|h| excerpt(h, 20)).collect();
                let what = format!(
                    "no column '{name}': an RMM log has Thread,Time,Action,Pointer,Size,Stream, this file {}",
                    found.join(",")
                );
                ImportError::new(Position::Line(1, 0), what)
            })
        };
        Ok(Columns {
            action: at("Action")?,
            pointer: at("Pointer")?,
            size: at("Size")?,
            stream: at("Stream")?,
        })
    }
}

#[derive(Default)]
struct Log {
    recorder: Recorder,
    live: u64,
    peak: u64,
}

impl Log {
    fn add(&mut self, columns: &Columns, record: &ByteRecord) -> Result<(), String> {
        let field = |at: usize| record.get(at).unwrap_or_default();
        let size = std::str::from_utf8(field(columns.size)).ok().and_then(|t| t.parse::<u64>().ok());
        let size = size
            .ok_or_else(|| format!("Size '{}' is not a number of bytes", excerpt(field(columns.size), 40)))?;
        let stream = number("Stream", field(columns.stream))?;
        let pointer = number("Pointer", field(columns.pointer))?;
        match field(columns.action) {
            b"allocate" => {
                // Requests of 0 bytes all get the null pointer.
                if pointer != 0 && self.recorder.is_live(pointer) {
                    return Err(format!("pointer {pointer:#x} is allocated again, but was not freed"));
                }
                self.recorder.alloc(pointer, size, stream);
                self.live = self.live.saturating_add(size);
                self.peak = self.peak.max(self.live);
            }
            b"free" => {
                self.recorder.free(pointer, size, stream);
                self.live = self.live.saturating_sub(size);
            }
            b"allocate failure" | b"failure" => self.recorder.failed(size, stream),
            other => {
                let known = "'allocate', 'free' and 'allocate failure'";
                return Err(format!("Action '{}' is not known, {known} are", excerpt(other, 40)));
            }
        }
        Ok(())
    }
}

/// A handle or pointer: hexadecimal with or without `0x`, or `(nil)`.
fn number(column: &str, field: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(field).unwrap_or_default();
    if text == "(nil)" {
        return Ok(0);
    }
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X")).unwrap_or(text);
    u64::from_str_radix(digits, 16)
        .map_err(|_| format!("{column} '{}' is not a hexadecimal number", excerpt(field, 40)))
}

fn csv_error(e: &csv::Error) -> ImportError {
    let line = e.position().map_or(1, csv::Position::line);
    let what = match e.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields instead of {expected_len}: the line is damaged or the log truncated")
        }
        _ => format!("not CSV: {e}"),
    };
    ImportError::new(Position::Line(line, 0), what)
}

fn excerpt(field: &[u8], longest: usize) -> String {
    String::from_utf8_lossy(&field[..field.len().min(longest)]).into_owned()
}
