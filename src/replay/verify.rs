//! Replays a recording on a simulated GPU and compares every answer.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::compare::Comparison;
use super::gpu::{RecordedGpu, StreamControl};
use super::header::Header;
use super::reader::{ObservationReader, RequestReader};
use super::request::Request;
use super::run::{Played, Player};
use crate::allocator::HistoryOptions;
use crate::device::Device;
use crate::{Allocator, Config};

/// Requests shown before the one that differs.
const CONTEXT: usize = 5;
/// More events than one request can cause.
const HISTORY: usize = 1 << 20;

/// The first difference between a recording and its replay, or why it could not be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// Number of the request, from 0; the number of requests where the end state differs.
    pub request: u64,
    /// What differs: what the replay gave and what was recorded.
    pub reason: String,
    /// The requests before, and the one that differs, each with its answer.
    pub context: Vec<String>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}: {}", self.request, self.reason)
    }
}

impl std::error::Error for Divergence {}

/// Replays the recording `req`/`obs` under the configuration of its header, with PyTorch's defects
/// ([`Config::mirror_defects`]), on a simulated GPU that hands out the recorded addresses, and compares after every
/// request: the result, the ten columns, the events, and where they are recorded all statistics, the segments,
/// the summaries, the texts of errors. Returns the number of requests, which are all equal.
///
/// `progress` counts the requests done.
///
/// # Errors
/// The first difference. A file that cannot be read and a configuration that is refused count as one.
pub fn verify_case(req: &Path, obs: &Path, progress: &AtomicU64) -> Result<u64, Divergence> {
    progress.store(0, Ordering::Relaxed);
    let run = catch_unwind(AssertUnwindSafe(|| verify(req, obs, progress)));
    run.unwrap_or_else(|payload| Err(at(progress, format!("the allocator panicked: {}", message(&*payload)))))
}

pub(super) fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("(no message)")
}

pub(super) fn at(progress: &AtomicU64, reason: impl fmt::Display) -> Divergence {
    Divergence { request: progress.load(Ordering::Relaxed), reason: reason.to_string(), context: Vec::new() }
}

fn verify(req: &Path, obs: &Path, progress: &AtomicU64) -> Result<u64, Divergence> {
    let here = |reason: &dyn fmt::Display| at(progress, reason);
    let reader = RequestReader::open(req).map_err(|e| here(&e))?;
    let header = reader.header().clone();
    let mut observations = ObservationReader::open(obs).map_err(|e| here(&e))?;
    same_case(&header, observations.header()).map_err(|e| here(&e))?;
    let requests = reader.collect::<Result<Vec<Request>, _>>().map_err(|e| here(&e))?;

    let gpu = RecordedGpu::new(header.total_memory);
    let allocator = allocator(&header, Arc::new(gpu.device().clone())).map_err(|e| here(&e))?;
    let mut comparison = Comparison::new(observations.header()).map_err(|e| here(&e))?;
    let mut player = Player::new(allocator, &header, StreamControl::Simulated(gpu.device().clone()));
    player.plan(&requests);
    let mut context = Context::default();
    for request in &requests {
        let observed = observations.next().ok_or_else(|| here(&"the observations end early"))?;
        let observed = observed.map_err(|e| here(&e))?;
        let capped = player.allocator().get_per_process_memory_fraction() < 1.0;
        gpu.expect(&observed.events, capped);
        let played = player.play(request, Some(&observed));
        gpu.forget();
        let number = progress.load(Ordering::Relaxed);
        context.add(number, request, &played);
        if let Err(reason) = comparison.check(&player, request, &played, &observed) {
            return Err(context.divergence(number, reason));
        }
        progress.store(number + 1, Ordering::Relaxed);
    }
    if let Some(more) = observations.next() {
        let reason =
            more.err().map_or("there are more observations than requests".to_owned(), |e| e.to_string());
        return Err(here(&reason));
    }
    player.allocator().verify().map_err(|e| here(&format!("the end state is not consistent: {e}")))?;
    Ok(requests.len() as u64)
}

pub(super) fn same_case(req: &Header, obs: &Header) -> Result<(), String> {
    if (&req.case, req.requests, &req.stream_ptrs) == (&obs.case, obs.requests, &obs.stream_ptrs) {
        return Ok(());
    }
    Err(format!("the two files belong to different recordings: '{}' and '{}'", req.case, obs.case))
}

/// The recording's allocator, with a history.
pub(super) fn allocator(header: &Header, device: Arc<dyn Device>) -> crate::Result<Allocator> {
    let mut config = Config::parse(&header.alloc_conf)?;
    config.mirror_defects = true;
    let allocator = Allocator::builder().device(device).config(config).build()?;
    if let Some(fraction) = header.fraction {
        allocator.set_per_process_memory_fraction(fraction)?;
    }
    allocator.record_memory_history(Some(HistoryOptions { max_entries: HISTORY }));
    Ok(allocator)
}

/// The last requests and their answers.
#[derive(Debug, Default)]
pub(super) struct Context {
    lines: VecDeque<String>,
}

impl Context {
    pub(super) fn add(&mut self, number: u64, request: &Request, played: &Played) {
        if self.lines.len() > CONTEXT {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{number}: {request} -> {}", played.outcome));
    }
    pub(super) fn divergence(&self, request: u64, reason: String) -> Divergence {
        Divergence { request, reason, context: self.lines.iter().cloned().collect() }
    }
}
