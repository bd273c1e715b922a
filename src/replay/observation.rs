//! Observations: the lines of an `.obs` file as types, with their texts (`docs/trace-format.md`).

use std::fmt;

use super::fields::{Fields, excerpt};
use crate::observe::history::TraceAction;

/// Columns of an `@` line.
pub const COLUMNS: usize = 10;

/// One `+` line: an entry of the allocator's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// What happened; never [`TraceAction::Snapshot`].
    pub action: TraceAction,
    /// Address; the device's free bytes for [`TraceAction::Oom`].
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Stream, by index.
    pub stream: u64,
}

/// RESULT of an `@` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request has no result.
    None,
    /// The address; 0 for a request of 0 bytes.
    Address(u64),
    /// Out of memory.
    OutOfMemory,
    /// Another error.
    Error,
}

/// One `!` line.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// What it is: `exc`, `mem_get_info`, `segments`, `summary`, `summary_abbreviated`, `host`, or another word.
    pub key: String,
    /// Its value.
    pub value: serde_json::Value,
}

/// What the allocator answered to one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Events in the allocator's order.
    pub events: Vec<TraceEvent>,
    /// The result.
    pub outcome: Outcome,
    /// Change of the columns since the request before, if recorded.
    pub deltas: Option<[i64; COLUMNS]>,
    /// Values of all statistics, in the order of `Header::full`, if recorded.
    pub full: Option<Vec<i64>>,
    /// Notes in order.
    pub notes: Vec<Note>,
}

const CODES: [(TraceAction, &str); 8] = [
    (TraceAction::SegmentAlloc, "sa"),
    (TraceAction::SegmentFree, "sf"),
    (TraceAction::SegmentMap, "sm"),
    (TraceAction::SegmentUnmap, "su"),
    (TraceAction::Alloc, "al"),
    (TraceAction::FreeRequested, "fr"),
    (TraceAction::FreeCompleted, "fc"),
    (TraceAction::Oom, "om"),
];

/// The two letters of an action; `None` for what is not recorded.
pub(crate) fn code(action: TraceAction) -> Option<&'static str> {
    CODES.iter().find(|(a, _)| *a == action).map(|(_, code)| *code)
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = code(self.action).unwrap_or("??");
        write!(f, "+ {code} {:x} {} {}", self.address, self.size, self.stream)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::None => f.write_str("-"),
            Outcome::Address(a) => write!(f, "{a:x}"),
            Outcome::OutOfMemory => f.write_str("oom"),
            Outcome::Error => f.write_str("err"),
        }
    }
}

impl TraceEvent {
    /// Reads a `+` line.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(line: &str) -> Result<Self, String> {
        let mut f = Fields::new(line.strip_prefix("+ ").ok_or("an event begins with '+ '")?);
        let word = f.word("code")?;
        let action = CODES.iter().find(|(_, code)| *code == word).map(|(action, _)| *action);
        let action = action.ok_or_else(|| format!("unknown event code '{}'", excerpt(word)))?;
        let event = TraceEvent {
            action,
            address: f.hex("address")?,
            size: f.number("size")?,
            stream: f.number("stream")?,
        };
        f.end()?;
        Ok(event)
    }
}

/// Reads an `@` line.
pub(crate) fn parse_result(line: &str) -> Result<(Outcome, Option<[i64; COLUMNS]>), String> {
    let mut f = Fields::new(line.strip_prefix("@ ").ok_or("a result begins with '@ '")?);
    let outcome = match f.word("result")? {
        "-" => Outcome::None,
        "oom" => Outcome::OutOfMemory,
        "err" => Outcome::Error,
        word => Outcome::Address(
            u64::from_str_radix(word, 16).map_err(|e| format!("result '{}': {e}", excerpt(word)))?,
        ),
    };
    if f.rest.peek().is_none() {
        return Ok((outcome, None));
    }
    let mut deltas = [0; COLUMNS];
    for delta in &mut deltas {
        *delta = f.number("column")?;
    }
    f.end()?;
    Ok((outcome, Some(deltas)))
}

/// Reads a `*` line of `columns` values.
pub(crate) fn parse_full(line: &str, columns: usize) -> Result<Vec<i64>, String> {
    let mut f = Fields::new(line.strip_prefix("* ").ok_or("statistics begin with '* '")?);
    let values = (0..columns).map(|_| f.number("statistic")).collect::<Result<Vec<i64>, _>>()?;
    f.end()?;
    Ok(values)
}

impl Note {
    /// Reads a `!` line.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(line: &str) -> Result<Self, String> {
        let rest = line.strip_prefix("! ").ok_or("a note begins with '! '")?;
        let (key, json) = rest.split_once(' ').ok_or("a note has a key and a JSON value")?;
        let value = serde_json::from_str(json).map_err(|e| format!("note '{}': {e}", excerpt(key)))?;
        Ok(Note { key: key.to_owned(), value })
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in &self.events {
            writeln!(f, "{event}")?;
        }
        write!(f, "@ {}", self.outcome)?;
        for delta in self.deltas.iter().flatten() {
            write!(f, " {delta}")?;
        }
        writeln!(f)?;
        if let Some(full) = &self.full {
            f.write_str("*")?;
            for value in full {
                write!(f, " {value}")?;
            }
            writeln!(f)?;
        }
        for note in &self.notes {
            writeln!(f, "! {} {}", note.key, note.value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_reads_back_as_written() {
        for (_, code) in CODES {
            let line = format!("+ {code} 7febf0000000 2097152 3");
            assert_eq!(TraceEvent::parse(&line).unwrap().to_string(), line);
        }
        assert!(TraceEvent::parse("+ zz 0 0 0").unwrap_err().contains("event code 'zz'"));
    }

    #[test]
    fn results_with_and_without_columns() {
        for (text, outcome) in [
            ("-", Outcome::None),
            ("0", Outcome::Address(0)),
            ("oom", Outcome::OutOfMemory),
            ("err", Outcome::Error),
        ] {
            assert_eq!(parse_result(&format!("@ {text}")).unwrap(), (outcome, None));
            assert_eq!(outcome.to_string(), text);
        }
        let (outcome, deltas) = parse_result("@ 7f00 1 -2 3 4 5 6 7 8 9 10").unwrap();
        assert_eq!(outcome, Outcome::Address(0x7f00));
        assert_eq!(deltas, Some([1, -2, 3, 4, 5, 6, 7, 8, 9, 10]));
        assert!(parse_result("@ - 1 2").is_err());
        assert!(parse_result("@ - 1 2 3 4 5 6 7 8 9 10 11").is_err());
    }
}
