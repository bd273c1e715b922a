//! What can be wrong with a foreign file.

use std::fmt;
use std::path::Path;

/// A file that can't be imported: which one, where in it, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportError {
    /// The file, if the bytes came from one.
    pub file: Option<String>,
    /// Where in it.
    pub position: Position,
    /// What is wrong, and what was expected.
    pub what: String,
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Position {
    /// The file as a whole.
    File,
    /// Byte offset from 0.
    Byte(u64),
    /// Line and column from 1; column 0: the whole line.
    Line(u64, u64),
    /// The value's place in the structure, like `segments[3].blocks[17].size`.
    Value(String),
}

impl ImportError {
    pub(crate) fn new(position: Position, what: impl Into<String>) -> Self {
        ImportError { file: None, position, what: what.into() }
    }

    pub(crate) fn in_file(self, path: &Path) -> Self {
        ImportError { file: Some(path.display().to_string()), ..self }
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        match &self.position {
            Position::File => {}
            Position::Byte(offset) => write!(f, "byte {offset}: ")?,
            Position::Line(line, 0) => write!(f, "line {line}: ")?,
            Position::Line(line, column) => write!(f, "line {line}, column {column}: ")?,
            Position::Value(path) => write!(f, "{path}: ")?,
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for ImportError {}
