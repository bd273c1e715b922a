//! What can be wrong with a recording.

use std::fmt;
use std::path::{Path, PathBuf};

/// The result of reading or writing a recording.
pub type TraceResult<T> = Result<T, TraceError>;

/// A recording that cannot be read or written: the file, the line and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 where the fault is not in a line (the file cannot be opened, say).
    pub line: u64,
    /// What is wrong.
    pub reason: String,
}

impl TraceError {
    pub(crate) fn new(path: &Path, line: u64, reason: impl fmt::Display) -> Self {
        TraceError { path: path.to_owned(), line, reason: reason.to_string() }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.path.display(), self.reason)
        } else {
            write!(f, "{}:{}: {}", self.path.display(), self.line, self.reason)
        }
    }
}

impl std::error::Error for TraceError {}
