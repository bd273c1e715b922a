//! Requests: the lines of a `.req` file as a type, with their texts (`docs/trace-format.md`).

use std::fmt;

use super::fields::{Fields, excerpt};

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

impl Request {
    /// Reads one line of a `.req` file.
    ///
    /// # Errors
    /// What is wrong, in words.
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
}
