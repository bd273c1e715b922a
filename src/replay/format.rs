//! The lines of a recording as types, with their texts. The format is described in `docs/trace-format.md`.

use std::fmt;
use std::iter::Peekable;
use std::str::Split;

use crate::observe::history::TraceAction;

/// Columns of an `@` line.
pub const COLUMNS: usize = 10;

/// What the program asked for: one line of a `.req` file.
///
/// `back` names an allocation by its distance back: the number of `a` lines so far minus its own number, so that
/// 1 is the newest. Sizes are in bytes, streams are indices into [`Header::stream_ptrs`](super::Header).
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// `a SIZE STREAM`
    Alloc {
        /// Bytes, not rounded.
        size: u64,
        /// Stream.
        stream: u32,
    },
    /// `f k`
    Free {
        /// Which allocation.
        back: u64,
    },
    /// `x k`: frees an allocation that failed in the recording, if it succeeded in the replay.
    FreeIfLive {
        /// Which allocation.
        back: u64,
    },
    /// `r k STREAM`
    RecordStream {
        /// Which allocation.
        back: u64,
        /// Stream.
        stream: u32,
    },
    /// `b STREAM`: events recorded on it from now on do not complete before [`Request::Idle`].
    Busy {
        /// Stream.
        stream: u32,
    },
    /// `s`: every event recorded so far is complete.
    Idle,
    /// `e`
    EmptyCache,
    /// `F X`
    SetFraction(f64),
    /// `p`
    ResetPeak,
    /// `P`
    ResetAccumulated,
    /// `c TEXT`
    Settings(String),
    /// `i N`
    Iteration(i64),
    /// `D k`: a free whose completion was delayed.
    DeferredFree {
        /// Which allocation.
        back: u64,
    },
    /// `C k`: that completion, noticed by the next allocation.
    Complete {
        /// Which allocation.
        back: u64,
    },
    /// `pool+ N [use_on_oom] [no_split]`
    PoolBegin {
        /// The recording's number for the pool.
        pool: u32,
        /// Whether other requests may take from it when memory runs out.
        use_on_oom: bool,
        /// Whether its blocks are never split.
        no_split: bool,
    },
    /// `pool- N`
    PoolEnd {
        /// The pool.
        pool: u32,
    },
    /// `pooldel N`
    PoolDelete {
        /// The pool.
        pool: u32,
    },
    /// `graph+ N STREAM`
    GraphBegin {
        /// The recording's number for the graph.
        graph: u32,
        /// The captured stream.
        stream: u32,
    },
    /// `graph- N`
    GraphEnd {
        /// The graph.
        graph: u32,
    },
    /// `graphdel N`
    GraphDelete {
        /// The graph.
        graph: u32,
    },
    /// `ha SIZE`
    HostAlloc {
        /// Bytes.
        size: u64,
    },
    /// `hf k`, `back` counts the `ha` lines.
    HostFree {
        /// Which pinned allocation.
        back: u64,
    },
    /// `hempty`
    HostEmptyCache,
    /// `hp`
    HostResetPeak,
    /// `hP`
    HostResetAccumulated,
}

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

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Alloc { size, stream } => write!(f, "a {size} {stream}"),
            Request::Free { back } => write!(f, "f {back}"),
            Request::FreeIfLive { back } => write!(f, "x {back}"),
            Request::RecordStream { back, stream } => write!(f, "r {back} {stream}"),
            Request::Busy { stream } => write!(f, "b {stream}"),
            Request::Idle => f.write_str("s"),
            Request::EmptyCache => f.write_str("e"),
            Request::SetFraction(x) => write!(f, "F {x:?}"),
            Request::ResetPeak => f.write_str("p"),
            Request::ResetAccumulated => f.write_str("P"),
            Request::Settings(text) => write!(f, "c {text}"),
            Request::Iteration(n) => write!(f, "i {n}"),
            Request::DeferredFree { back } => write!(f, "D {back}"),
            Request::Complete { back } => write!(f, "C {back}"),
            Request::PoolBegin { pool, use_on_oom, no_split } => {
                let oom = if *use_on_oom { " use_on_oom" } else { "" };
                let whole = if *no_split { " no_split" } else { "" };
                write!(f, "pool+ {pool}{oom}{whole}")
            }
            Request::PoolEnd { pool } => write!(f, "pool- {pool}"),
            Request::PoolDelete { pool } => write!(f, "pooldel {pool}"),
            Request::GraphBegin { graph, stream } => write!(f, "graph+ {graph} {stream}"),
            Request::GraphEnd { graph } => write!(f, "graph- {graph}"),
            Request::GraphDelete { graph } => write!(f, "graphdel {graph}"),
            Request::HostAlloc { size } => write!(f, "ha {size}"),
            Request::HostFree { back } => write!(f, "hf {back}"),
            Request::HostEmptyCache => f.write_str("hempty"),
            Request::HostResetPeak => f.write_str("hp"),
            Request::HostResetAccumulated => f.write_str("hP"),
        }
    }
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

/// The fields of one line, taken one by one; every mistake becomes a reason.
struct Fields<'a> {
    rest: Peekable<Split<'a, char>>,
}

impl<'a> Fields<'a> {
    fn new(line: &'a str) -> Self {
        Fields { rest: line.split(' ').peekable() }
    }

    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.rest.next().filter(|w| !w.is_empty()).ok_or_else(|| format!("{what} is missing"))
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, String>
    where
        T::Err: fmt::Display,
    {
        let word = self.word(what)?;
        word.parse().map_err(|e| format!("{what} '{}': {e}", excerpt(word)))
    }

    fn hex(&mut self, what: &str) -> Result<u64, String> {
        let word = self.word(what)?;
        u64::from_str_radix(word, 16).map_err(|e| format!("{what} '{}': {e}", excerpt(word)))
    }

    fn end(mut self) -> Result<(), String> {
        match self.rest.next() {
            None => Ok(()),
            Some(word) => Err(format!("unexpected '{}' at the end", excerpt(word))),
        }
    }
}

/// The head of a text, for messages.
fn excerpt(text: &str) -> String {
    const KEEP: usize = 40;
    match text.char_indices().nth(KEEP) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

impl Request {
    /// Reads one line of a `.req` file.
    pub fn parse(line: &str) -> Result<Self, String> {
        if let Some(text) = line.strip_prefix("c ") {
            return Ok(Request::Settings(text.to_owned()));
        }
        let mut f = Fields::new(line);
        let request = match f.word("the request")? {
            "a" => Request::Alloc { size: f.number("size")?, stream: f.number("stream")? },
            "f" => Request::Free { back: f.number("allocation")? },
            "x" => Request::FreeIfLive { back: f.number("allocation")? },
            "r" => Request::RecordStream { back: f.number("allocation")?, stream: f.number("stream")? },
            "b" => Request::Busy { stream: f.number("stream")? },
            "s" => Request::Idle,
            "e" => Request::EmptyCache,
            "F" => Request::SetFraction(f.number("fraction")?),
            "p" => Request::ResetPeak,
            "P" => Request::ResetAccumulated,
            "i" => Request::Iteration(f.number("iteration")?),
            "D" => Request::DeferredFree { back: f.number("allocation")? },
            "C" => Request::Complete { back: f.number("allocation")? },
            "pool+" => return Self::parse_pool_begin(f),
            "pool-" => Request::PoolEnd { pool: f.number("pool")? },
            "pooldel" => Request::PoolDelete { pool: f.number("pool")? },
            "graph+" => Request::GraphBegin { graph: f.number("graph")?, stream: f.number("stream")? },
            "graph-" => Request::GraphEnd { graph: f.number("graph")? },
            "graphdel" => Request::GraphDelete { graph: f.number("graph")? },
            "ha" => Request::HostAlloc { size: f.number("size")? },
            "hf" => Request::HostFree { back: f.number("allocation")? },
            "hempty" => Request::HostEmptyCache,
            "hp" => Request::HostResetPeak,
            "hP" => Request::HostResetAccumulated,
            other => return Err(format!("unknown request '{}'", excerpt(other))),
        };
        f.end()?;
        Ok(request)
    }

    fn parse_pool_begin(mut f: Fields<'_>) -> Result<Self, String> {
        let pool = f.number("pool")?;
        let (mut use_on_oom, mut no_split) = (false, false);
        for word in f.rest {
            match word {
                "use_on_oom" => use_on_oom = true,
                "no_split" => no_split = true,
                other => return Err(format!("unknown pool flag '{}'", excerpt(other))),
            }
        }
        Ok(Request::PoolBegin { pool, use_on_oom, no_split })
    }
}

impl TraceEvent {
    /// Reads a `+` line.
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
    fn every_request_reads_back_as_written() {
        let lines = [
            "a 3145728 0",
            "f 1",
            "x 12",
            "r 2 1",
            "b 1",
            "s",
            "e",
            "F 0.25",
            "p",
            "P",
            "i -1",
            "D 3",
            "C 4",
            "c max_split_size_mb:20,garbage_collection_threshold:0.6",
            "pool+ 0",
            "pool+ 1 use_on_oom",
            "pool+ 2 no_split",
            "pool+ 2 use_on_oom no_split",
            "pool- 0",
            "pooldel 0",
            "graph+ 0 1",
            "graph- 0",
            "graphdel 0",
            "ha 4096",
            "hf 2",
            "hempty",
            "hp",
            "hP",
        ];
        for line in lines {
            assert_eq!(Request::parse(line).unwrap().to_string(), line);
        }
    }

    #[test]
    fn wrong_requests_say_what_is_wrong() {
        for (line, reason) in [
            ("", "the request is missing"),
            ("a", "size is missing"),
            ("a 5", "stream is missing"),
            ("a five 0", "size 'five'"),
            ("a 18446744073709551616 0", "size '18446744073709551616'"),
            ("a -1 0", "size '-1'"),
            ("f 1 2", "unexpected '2'"),
            ("quack", "unknown request 'quack'"),
            ("pool+ 0 quack", "unknown pool flag 'quack'"),
        ] {
            let error = Request::parse(line).unwrap_err();
            assert!(error.contains(reason), "'{line}': {error}");
        }
    }

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
