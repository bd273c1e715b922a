//! Reads recordings, one request or observation at a time.

use std::path::Path;

use super::error::TraceResult;
use super::header::Header;
use super::lines::Lines;
use super::observation::{Note, Observation, TraceEvent, parse_full, parse_result};
use super::request::Request;

/// Longest line of requests; a header is the longest in practice.
const LONGEST_REQUEST: usize = 1 << 20;
/// Longest line of observations; the final `segments` note of a long workload is the longest in practice.
const LONGEST_OBSERVATION: usize = 64 << 20;
/// More requests than this are refused, so that a file cannot make its reader run out of memory.
const MOST_REQUESTS: u64 = 1 << 27;
/// More events or notes than this within one request are refused.
const MOST_EVENTS: usize = 1 << 20;

/// Reads a `.req` file. An iterator of requests whose references (allocations, streams) are in range.
#[derive(Debug)]
pub struct RequestReader {
    lines: Lines,
    header: Header,
    read: u64,
    allocations: u64,
    host_allocations: u64,
    failed: bool,
}

impl RequestReader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// The file cannot be opened or has no valid header.
    pub fn open(path: &Path) -> TraceResult<Self> {
        let (lines, header) = open(path, LONGEST_REQUEST, "req")?;
        Ok(RequestReader { lines, header, read: 0, allocations: 0, host_allocations: 0, failed: false })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self) -> TraceResult<Option<Request>> {
        let parsed = match self.lines.next()? {
            None => return self.end(),
            Some(line) => Request::parse(line),
        };
        let request = parsed.map_err(|reason| self.lines.error(reason))?;
        self.read += 1;
        if self.read > self.header.requests {
            return Err(self
                .lines
                .error(format!("more requests than the header's {}", self.header.requests)));
        }
        self.check(&request).map_err(|reason| self.lines.error(reason))?;
        Ok(Some(request))
    }

    fn end(&self) -> TraceResult<Option<Request>> {
        if self.read == self.header.requests {
            return Ok(None);
        }
        let (read, announced) = (self.read, self.header.requests);
        Err(self
            .lines
            .error(format!("the file ends after {read} requests, its header announces {announced}")))
    }

    /// Counts allocations and checks that what the request refers to exists.
    fn check(&mut self, request: &Request) -> Result<(), String> {
        match *request {
            Request::Alloc { stream, .. } => {
                self.check_stream(stream)?;
                self.allocations += 1;
            }
            Request::HostAlloc { .. } => self.host_allocations += 1,
            Request::Busy { stream } | Request::GraphBegin { stream, .. } => self.check_stream(stream)?,
            Request::RecordStream { back, stream } => {
                self.check_stream(stream)?;
                check_back(back, self.allocations)?;
            }
            Request::Free { back }
            | Request::FreeIfLive { back }
            | Request::DeferredFree { back }
            | Request::Complete { back } => check_back(back, self.allocations)?,
            Request::HostFree { back } => check_back(back, self.host_allocations)?,
            _ => {}
        }
        Ok(())
    }

    fn check_stream(&self, stream: u32) -> Result<(), String> {
        if stream < self.header.streams {
            return Ok(());
        }
        Err(format!("stream {stream} does not exist, the header has {}", self.header.streams))
    }
}

fn check_back(back: u64, count: u64) -> Result<(), String> {
    if (1..=count).contains(&back) {
        return Ok(());
    }
    Err(format!("allocation {back} back does not exist, there were {count} so far"))
}

impl Iterator for RequestReader {
    type Item = TraceResult<Request>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let item = self.read().transpose();
        self.failed = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Reads an `.obs` file. An iterator of observations, one per request.
#[derive(Debug)]
pub struct ObservationReader {
    lines: Lines,
    header: Header,
    /// The `@` line already read, which begins the next observation together with the events before it.
    pending: Option<Observation>,
    read: u64,
    done: bool,
}

impl ObservationReader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// The file cannot be opened or has no valid header.
    pub fn open(path: &Path) -> TraceResult<Self> {
        let (lines, header) = open(path, LONGEST_OBSERVATION, "obs")?;
        Ok(ObservationReader { lines, header, pending: None, read: 0, done: false })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads on until the next observation begins, and returns the one before it.
    fn read(&mut self) -> TraceResult<Option<Observation>> {
        let mut events = Vec::new();
        loop {
            let Some(line) = self.lines.next()? else { return self.end(&events) };
            let parsed = match line.as_bytes().first() {
                Some(b'+') if events.len() < MOST_EVENTS => TraceEvent::parse(line).map(|e| events.push(e)),
                Some(b'+') => Err(format!("more than {MOST_EVENTS} events in one request")),
                Some(b'@') => match parse_result(line) {
                    Err(reason) => Err(reason),
                    Ok((outcome, deltas)) => {
                        let next = Observation { events, outcome, deltas, full: None, notes: Vec::new() };
                        if let Some(last) = self.begin(next)? {
                            return Ok(Some(last));
                        }
                        events = Vec::new();
                        Ok(())
                    }
                },
                _ => add_detail(self.pending.as_mut(), &self.header, line, events.is_empty()),
            };
            parsed.map_err(|reason| self.lines.error(reason))?;
        }
    }

    fn begin(&mut self, next: Observation) -> TraceResult<Option<Observation>> {
        self.read += 1;
        if self.read > self.header.requests {
            return Err(self
                .lines
                .error(format!("more results than the header's {} requests", self.header.requests)));
        }
        Ok(self.pending.replace(next))
    }

    fn end(&mut self, events: &[TraceEvent]) -> TraceResult<Option<Observation>> {
        self.done = true;
        if !events.is_empty() || self.read != self.header.requests {
            let (read, announced) = (self.read, self.header.requests);
            return Err(self
                .lines
                .error(format!("the file ends after {read} results, its header announces {announced}")));
        }
        Ok(self.pending.take())
    }
}

/// Adds a `*` or `!` line to the observation under way.
fn add_detail(
    to: Option<&mut Observation>,
    header: &Header,
    line: &str,
    in_place: bool,
) -> Result<(), String> {
    let kind = line.as_bytes().first();
    if !matches!(kind, Some(b'*' | b'!')) {
        return Err("a line of observations begins with '+', '@', '*' or '!'".to_owned());
    }
    let (Some(to), true) = (to, in_place) else {
        return Err("a line that belongs behind an '@' line stands before it".to_owned());
    };
    match kind {
        Some(b'*') => to.full = Some(parse_full(line, header.full.len())?),
        _ if to.notes.len() < MOST_EVENTS => to.notes.push(Note::parse(line)?),
        _ => return Err(format!("more than {MOST_EVENTS} notes in one request")),
    }
    Ok(())
}

impl Iterator for ObservationReader {
    type Item = TraceResult<Observation>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.read().transpose();
        self.done |= !matches!(item, Some(Ok(_)));
        item
    }
}

fn open(path: &Path, longest: usize, part: &str) -> TraceResult<(Lines, Header)> {
    let mut lines = Lines::open(path, longest)?;
    let header = match lines.next()? {
        None => return Err(lines.error("the file is empty")),
        Some(line) => Header::parse(line),
    };
    let header = header.map_err(|reason| lines.error(reason))?;
    if header.part.as_deref().is_some_and(|p| p != part) {
        return Err(lines.error(format!("this is not the '{part}' part of a recording")));
    }
    if header.requests > MOST_REQUESTS {
        return Err(lines.error(format!("more than {MOST_REQUESTS} requests are not supported")));
    }
    Ok((lines, header))
}
