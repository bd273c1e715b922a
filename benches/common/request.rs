//! Recorded request streams (`NAME.CONFIG.req[.zst]`): only what a plain allocator can be asked for.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use gpucache::device::Stream;

use super::subject::Subject;
use super::{must, put};

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Allocate; `slot` counts allocations.
    Alloc { slot: u32, stream: u32, bytes: u64 },
    /// Free the allocation of that number.
    Free { slot: u32 },
}

/// A request stream, completed so that nothing is live at its end.
#[derive(Debug)]
pub(crate) struct Recording {
    /// The header's `case`.
    pub(crate) case: String,
    /// The header's `alloc_conf`.
    pub(crate) options: String,
    /// The header's `fraction`.
    pub(crate) fraction: Option<f64>,
    /// The header's `total_memory` in bytes.
    pub(crate) total_memory: u64,
    pub(crate) slots: usize,
    pub(crate) requests: Vec<Request>,
}

impl Recording {
    /// Reads plain or zstd-compressed text.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        if path.extension().is_some_and(|e| e == "zst") {
            ruzstd::decoding::StreamingDecoder::new(File::open(path)?)
                .map_err(io::Error::other)?
                .read_to_string(&mut text)?;
        } else {
            File::open(path)?.read_to_string(&mut text)?;
        }
        let (header, lines) = text.split_once('\n').unwrap_or((&text, ""));
        let (slots, requests) = parse(lines);
        Ok(Recording {
            case: field(header, "case").unwrap_or_else(|| path.display().to_string()),
            options: field(header, "alloc_conf").unwrap_or_default(),
            fraction: field(header, "fraction").and_then(|f| f.parse().ok()),
            total_memory: field(header, "total_memory").and_then(|f| f.parse().ok()).unwrap_or(0),
            slots,
            requests,
        })
    }

    /// The case with the configuration, which the file's name has.
    pub(crate) fn all(folders: &[&str]) -> Vec<(String, Self)> {
        let mut paths: Vec<PathBuf> = folders
            .iter()
            .filter_map(|folder| fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).ok())
            .flat_map(|entries| entries.filter_map(|e| Some(e.ok()?.path())))
            .filter(|p| name(p).is_some())
            .collect();
        // A recording may lie in both folders.
        paths.sort_by_key(|p| name(p).map(str::to_owned));
        paths.dedup_by_key(|p| name(p).map(str::to_owned));
        paths.iter().map(|p| (name(p).unwrap_or_default().to_owned(), must(Self::read(p)))).collect()
    }
}

/// Where recordings of real models may lie, the second only in a checkout with its neighbour folder.
pub(crate) const REAL_FOLDERS: [&str; 2] = ["tests/data/golden/real", "../shared/golden/real"];

fn name(path: &Path) -> Option<&str> {
    let file = path.file_name()?.to_str()?;
    file.strip_suffix(".req.zst").or_else(|| file.strip_suffix(".req"))
}

/// The value of a key in the header, which is one flat JSON object without escapes in what is asked for here.
fn field(header: &str, key: &str) -> Option<String> {
    let rest = header.split_once(&format!("\"{key}\":"))?.1.trim_start();
    let value = match rest.strip_prefix('"') {
        Some(text) => text.split('"').next()?,
        None => rest.split([',', '}']).next()?.trim(),
    };
    Some(value.to_owned())
}

fn parse(lines: &str) -> (usize, Vec<Request>) {
    let mut live = Vec::new();
    let mut requests = Vec::new();
    for line in lines.lines() {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
        match kind {
            "a" => {
                let (Some(bytes), Some(stream)) = (number(), number()) else { continue };
                requests.push(Request::Alloc { slot: live.len() as u32, stream: stream as u32, bytes });
                live.push(true);
            }
            // `x` frees what failed in the recording and may have succeeded here.
            "f" | "D" | "x" => {
                let Some(slot) = number().and_then(|back| live.len().checked_sub(back as usize)) else {
                    continue;
                };
                if live.get(slot) == Some(&true) {
                    live[slot] = false;
                    requests.push(Request::Free { slot: slot as u32 });
                }
            }
            _ => {}
        }
    }
    let rest = (0..live.len()).filter(|&slot| live[slot]);
    requests.extend(rest.map(|slot| Request::Free { slot: slot as u32 }));
    (live.len(), requests)
}

/// Takes the error away, as `?` does. To drop it in place, the whole result would have to lie in memory.
#[cold]
#[inline(never)]
fn failure(_: gpucache::Error) -> usize {
    1
}

/// Plays a recording again and again.
pub(crate) struct Player<'a, S: Subject> {
    subject: S,
    streams: &'a [Stream],
    recording: &'a Recording,
    live: Vec<Option<S::Block>>,
}

impl<'a, S: Subject> Player<'a, S> {
    pub(crate) fn new(subject: S, streams: &'a [Stream], recording: &'a Recording) -> Self {
        let live = (0..recording.slots).map(|_| None).collect();
        Player { subject, streams, recording, live }
    }

    /// One pass; the number of allocations that failed.
    pub(crate) fn pass(&mut self) -> usize {
        let mut failed = 0;
        for &request in &self.recording.requests {
            match request {
                // Like the contract's other implementations, no call for nothing.
                Request::Alloc { bytes: 0, .. } => {}
                Request::Alloc { slot, stream, bytes } => {
                    let stream = self.streams[stream as usize % self.streams.len()];
                    let place = &mut self.live[slot as usize];
                    match self.subject.alloc(bytes as usize, stream) {
                        Ok(block) => put(place, block),
                        Err(error) => failed += failure(error),
                    }
                }
                Request::Free { slot } => {
                    if let Some(block) = self.live[slot as usize].take() {
                        self.subject.free(block);
                    }
                }
            }
        }
        failed
    }
}
