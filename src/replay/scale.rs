//! A workload at batch sizes that nobody recorded: two recordings tell how each allocation grows.

use std::path::Path;

use super::error::{TraceError, TraceResult};
use super::header::Header;
use super::reader::RequestReader;
use super::request::Request;
use super::timing::Workload;

/// A request stream whose sizes depend on the batch size: each allocation is a straight line through its two
/// recorded sizes.
///
/// The recordings must be of the same program, so that their requests differ in sizes only. One may have more
/// iterations than the other; what both have is used.
#[derive(Debug, Clone)]
pub struct BatchModel {
    header: Header,
    batches: [u64; 2],
    requests: Vec<Scaled>,
    growth: Growth,
}

/// How many allocations depend on the batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Growth {
    /// The same at both sizes: weights, optimizer states.
    pub fixed: u64,
    /// A whole number of bytes more per sample.
    pub even: u64,
    /// Not so: padding, workspaces. Between and beyond the recorded batch sizes they are a guess.
    pub uneven: u64,
    /// Requests of the longer recording that the shorter has no counterpart for.
    pub left_out: u64,
}

#[derive(Debug, Clone)]
enum Scaled {
    Alloc { sizes: [u64; 2], stream: u32 },
    Other(Request),
}

impl BatchModel {
    /// Fits two recordings (`.req` files) of the same program with different batch sizes.
    ///
    /// # Errors
    /// A file cannot be read, the batch sizes are equal or 0, or the programs did different things; the error names
    /// the first request that differs.
    pub fn fit(first: (&Path, u64), second: (&Path, u64)) -> TraceResult<Self> {
        let batches = [first.1, second.1];
        if batches[0] == batches[1] || batches.contains(&0) {
            let reason =
                format!("two different batch sizes from 1 on are needed, not {} and {}", first.1, second.1);
            return Err(TraceError::new(second.0, 0, reason));
        }
        let mut readers = [RequestReader::open(first.0)?, RequestReader::open(second.0)?];
        let header = readers[0].header().clone();
        let lists: [Vec<Request>; 2] = {
            let [a, b] = &mut readers;
            [a.collect::<TraceResult<_>>()?, b.collect::<TraceResult<_>>()?]
        };
        let common = common_length(&lists).map_err(|at| differ(&lists, at, first.0, second.0))?;
        let mut model =
            BatchModel { header, batches, requests: Vec::with_capacity(common), growth: Growth::default() };
        model.growth.left_out = lists.iter().map(|list| (list.len() - common) as u64).sum();
        let [a, b] = lists;
        for (a, b) in a.into_iter().zip(b).take(common) {
            model.add(a, &b);
        }
        Ok(model)
    }

    fn add(&mut self, first: Request, second: &Request) {
        let (Request::Alloc { size, stream }, Request::Alloc { size: other, .. }) = (&first, second) else {
            self.requests.push(Scaled::Other(first));
            return;
        };
        let sizes = [*size, *other];
        let samples = self.batches[1].abs_diff(self.batches[0]);
        match sizes[1].abs_diff(sizes[0]) {
            0 => self.growth.fixed += 1,
            more if more.is_multiple_of(samples) => self.growth.even += 1,
            _ => self.growth.uneven += 1,
        }
        self.requests.push(Scaled::Alloc { sizes, stream: *stream });
    }

    /// How the allocations grow.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// Header of the first recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The workload at a batch size. At the recorded sizes it is what was recorded.
    pub fn at(&self, batch: u64) -> Workload {
        let mut header = self.header.clone();
        header.case = format!("{} at batch size {batch}", header.case);
        Workload::from_requests(
            header,
            self.requests.iter().map(|request| match request {
                Scaled::Alloc { sizes, stream } => {
                    Request::Alloc { size: self.size(*sizes, batch), stream: *stream }
                }
                Scaled::Other(request) => request.clone(),
            }),
        )
    }

    /// On the line through the two sizes, rounded up. What shrinks keeps a byte: zero bytes would not be allocated.
    fn size(&self, [first, second]: [u64; 2], batch: u64) -> u64 {
        let [from, to] = self.batches.map(i128::from);
        let rise = (i128::from(second) - i128::from(first)) * (i128::from(batch) - from);
        let run = to - from;
        let up = i128::from(rise % run != 0 && (rise < 0) == (run < 0));
        let size = i128::from(first) + rise / run + up;
        u64::try_from(size.max(i128::from(first.min(second).min(1)))).unwrap_or(u64::MAX)
    }
}

fn same_kind(first: &Request, second: &Request) -> bool {
    match (first, second) {
        (Request::Alloc { stream, .. }, Request::Alloc { stream: other, .. }) => stream == other,
        _ => first == second,
    }
}

/// How many requests both lists have in common, but for sizes. Whole iterations: the first difference must be in the
/// last part of one of them, when it stops and the other goes on. Otherwise `Err` with the first difference.
fn common_length(lists: &[Vec<Request>; 2]) -> Result<usize, usize> {
    let [a, b] = lists;
    let differs = a.iter().zip(b).position(|(a, b)| !same_kind(a, b));
    let Some(at) = differs else {
        let shorter = a.len().min(b.len());
        return if a.len() == b.len() || last_mark(a, shorter).is_some() {
            Ok(shorter)
        } else {
            Err(shorter)
        };
    };
    let ends = |list: &[Request]| !list[at..].iter().any(|r| matches!(r, Request::Iteration(_)));
    match last_mark(a, at) {
        // Both have iterated at least once up to here.
        Some(mark) if mark > 0 && (ends(a) || ends(b)) => Ok(mark),
        _ => Err(at),
    }
}

/// The last iteration mark before `end`.
fn last_mark(list: &[Request], end: usize) -> Option<usize> {
    list[..end].iter().rposition(|request| matches!(request, Request::Iteration(_)))
}

fn differ(lists: &[Vec<Request>; 2], at: usize, first: &Path, second: &Path) -> TraceError {
    let text = |list: &[Request]| list.get(at).map_or("the end".to_owned(), |request| format!("'{request}'"));
    // Line 1 is the header, and lines count from 1.
    let line = at as u64 + 2;
    let (here, there) = (text(&lists[1]), text(&lists[0]));
    let reason = format!(
        "{here} where {}:{line} has {there}: the recordings must be of the same program, with the same steps at both \
         batch sizes",
        first.display()
    );
    TraceError::new(second, line, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(lines: &str) -> Vec<Request> {
        lines.split(';').map(|line| Request::parse(line).unwrap()).collect()
    }

    #[test]
    fn iterations_that_one_lacks_are_left_out() {
        let once = "a 1 0;i 0;a 2 0;f 1";
        for (a, b, common) in [
            (once, once, Ok(4)),
            ("a 1 0;i 0;a 2 0;f 1", "a 9 0;i 0;a 8 0;f 1", Ok(4)),
            ("i 0;a 2 0;f 1;i 1;a 2 0;f 1;i 2", "i 0;a 2 0;f 1;i 1", Ok(4)),
            ("i 0;a 2 0;f 1;i 1;a 2 0;f 1;i 2;f 1", "i 0;a 2 0;f 1;i 1;f 1", Ok(3)),
            // Another stream; another free; no marks at all; more to come on both sides.
            ("a 1 0", "a 1 1", Err(0)),
            ("a 1 0;a 1 0;f 1", "a 1 0;a 1 0;f 2", Err(2)),
            ("a 1 0;f 1;a 1 0", "a 1 0;f 1", Err(2)),
            ("i 0;a 2 0;i 1;a 1 0;i 2", "i 0;a 2 0;i 1;s;i 2", Err(3)),
        ] {
            assert_eq!(common_length(&[list(a), list(b)]), common, "{a} | {b}");
        }
    }

    #[test]
    fn sizes_are_on_the_line_rounded_up() {
        let header = Header::parse(
            r#"{"format":"gpucache-golden","version":1,"case":"c","kind":"k","config":"","alloc_conf":"",
            "total_memory":1,"fraction":null,"allowed_bytes":null,"streams":1,"stream_ptrs":["0"],"requests":0}"#,
        )
        .unwrap();
        let model = |batches| BatchModel {
            header: header.clone(),
            batches,
            requests: vec![],
            growth: Growth::default(),
        };
        let up = model([2, 5]);
        for (batch, size) in [(2, 100), (3, 104), (4, 107), (5, 110), (8, 120), (1, 97)] {
            assert_eq!(up.size([100, 110], batch), size, "{batch}");
        }
        assert_eq!(model([5, 2]).size([110, 100], 3), 104, "the order does not matter");
        assert_eq!(up.size([100, 40], 3), 80);
        assert_eq!(up.size([100, 40], 100), 1);
        assert_eq!(up.size([0, 0], 100), 0);
        assert_eq!(up.size([1 << 59, 1 << 63], u64::MAX), u64::MAX);
    }
}
