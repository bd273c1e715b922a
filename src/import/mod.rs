//! Readers of foreign files: PyTorch's snapshots (pickle and JSON) and RMM's logs, and the way from them to a request
//! stream that `replay` and `tune` run.
//!
//! Files are not trusted. Nothing in them is executed: of pickle only the opcodes for plain data are understood.
//! Memory is bounded by a multiple of the file's size, nesting costs no stack, and every error names the file and the
//! place in it.

mod arena;
mod error;
mod json;
mod pickle;
mod requests;
mod rmm;
mod snapshot;
mod walk;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use error::{ImportError, Position};
pub use requests::{Imported, requests};
pub use rmm::{parse_rmm_log, read_rmm_log};

use crate::observe::file::SnapshotFile;

/// Larger files are refused: the readers need several times this much memory.
pub const MAX_FILE_BYTES: u64 = 2 << 30;

/// Reads a snapshot file: a pickle (protocols 0 to 5) or JSON, found out by its first byte.
///
/// # Errors
/// The file can't be read, is too large, or holds something else.
pub fn read_snapshot(path: &Path) -> Result<SnapshotFile, ImportError> {
    let bytes = read_file(path)?;
    parse_snapshot(&bytes).map_err(|e| e.in_file(path))
}

/// Reads a snapshot from the bytes of a pickle or JSON file.
///
/// # Errors
/// The bytes are neither, are damaged, or hold something that is no snapshot. The error names no file.
pub fn parse_snapshot(bytes: &[u8]) -> Result<SnapshotFile, ImportError> {
    let arena = match first_byte(bytes) {
        None => return Err(ImportError::new(Position::Byte(0), "the file is empty")),
        Some(b'{' | b'[') => json::read(bytes)?,
        _ => {
            if let Some(kind) = foreign(bytes) {
                let what = format!("this is {kind}, not a snapshot: expected a pickle or JSON");
                return Err(ImportError::new(Position::Byte(0), what));
            }
            pickle::read(bytes)?
        }
    };
    snapshot::convert(&arena)
}

fn first_byte(bytes: &[u8]) -> Option<u8> {
    bytes.iter().copied().find(|b| !b.is_ascii_whitespace())
}

/// Names kinds of files that people mistake for snapshots.
fn foreign(bytes: &[u8]) -> Option<&'static str> {
    const KINDS: [(&[u8], &str); 5] = [
        (b"PK\x03\x04", "a zip archive (torch.save writes those; use torch.cuda.memory._dump_snapshot)"),
        (b"\x1f\x8b", "a gzip file (unpack it first)"),
        (b"\x28\xb5\x2f\xfd", "a zstd file (unpack it first)"),
        (b"<", "an HTML or XML page"),
        (b"\x7fELF", "a program"),
    ];
    KINDS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, kind)| *kind)
}

/// The whole file, if it is not too large.
fn read_file(path: &Path) -> Result<Vec<u8>, ImportError> {
    let fail =
        |e: std::io::Error| ImportError::new(Position::File, format!("can't be read: {e}")).in_file(path);
    let file = File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let what = format!("larger than {MAX_FILE_BYTES} bytes, which is not supported");
        return Err(ImportError::new(Position::File, what).in_file(path));
    }
    Ok(bytes)
}
