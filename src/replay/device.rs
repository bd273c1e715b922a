//! Replays a recording on any device, and compares with the recording by the order of the segments [spec 24].

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::compare::Comparison;
use super::gpu::{RecordedGpu, StreamControl};
use super::header::{EventSet, Header};
use super::observation::{Observation, Outcome, TraceEvent};
use super::ordinals::Ordinals;
use super::overlay::OverlaidDevice;
use super::reader::{ObservationReader, RequestReader};
use super::request::Request;
use super::run::Player;
use super::verify::{Context, Divergence, allocator, at, message, same_case};
use crate::device::{Device, Stream};
use crate::observe::history::TraceAction;

/// How far a replay on a device agrees with the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agreement {
    /// In everything that [`verify_case`](super::verify_case) compares, addresses by segment and offset.
    Exact,
    /// Up to a difference; the whole run is what the simulated GPU gives with this driver's addresses. Blocks of equal
    /// size are told apart by their addresses, and drivers place segments differently.
    ByAddress(Divergence),
}

/// Calls to the driver for memory, and what they held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriverUse {
    /// Segments allocated.
    pub allocated: u64,
    /// Segments freed.
    pub freed: u64,
    /// Ranges of pages mapped.
    pub mapped: u64,
    /// Ranges of pages unmapped.
    pub unmapped: u64,
    /// Bytes held at the end.
    pub reserved: u64,
    /// The most bytes held.
    pub peak_reserved: u64,
}

impl DriverUse {
    fn follow(&mut self, events: &[TraceEvent]) {
        for event in events {
            let (count, more) = match event.action {
                TraceAction::SegmentAlloc => (&mut self.allocated, true),
                TraceAction::SegmentMap => (&mut self.mapped, true),
                TraceAction::SegmentFree => (&mut self.freed, false),
                TraceAction::SegmentUnmap => (&mut self.unmapped, false),
                _ => continue,
            };
            *count += 1;
            let change = if more { event.size as i64 } else { -(event.size as i64) };
            self.reserved = self.reserved.saturating_add_signed(change);
            self.peak_reserved = self.peak_reserved.max(self.reserved);
        }
    }

    /// Driver calls: segments and ranges, either way.
    pub fn calls(&self) -> u64 {
        self.allocated + self.freed + self.mapped + self.unmapped
    }
}

/// What a replay on a device gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReplay {
    /// Name of the recording.
    pub case: String,
    /// Number of requests.
    pub requests: u64,
    /// Whether it is the recording's behaviour.
    pub agreement: Agreement,
    /// What the recording asked of the driver.
    pub recorded: DriverUse,
    /// What this run asked of it.
    pub replayed: DriverUse,
}

/// Replays the recording `req`/`obs` on `device` and compares it with the recording, addresses by the order of the
/// segments and the offset in them. Where that fails, because this driver places segments in another order, the run is
/// compared with the simulated GPU that places them the same way.
///
/// The recording's memory size stands in for the device's, so that caps are equal; the device must have as much free
/// as the recording used. Its busy streams are simulated on top of the real ones: events of such a stream are taken to
/// be pending. `streams` are streams of the device beside the default one, as many as the recording names.
///
/// # Errors
/// The first difference that the driver's addresses do not explain, a device with too little memory or too few streams,
/// files that cannot be read.
pub fn verify_on_device(
    req: &Path,
    obs: &Path,
    device: &Arc<dyn Device>,
    streams: &[Stream],
    progress: &AtomicU64,
) -> Result<DeviceReplay, Divergence> {
    progress.store(0, Ordering::Relaxed);
    let run = catch_unwind(AssertUnwindSafe(|| {
        let case = Case::read(req, obs, streams)?;
        let run = case.run(device, progress)?;
        case.judge(run, progress)
    }));
    run.unwrap_or_else(|payload| Err(at(progress, format!("the allocator panicked: {}", message(&*payload)))))
}

/// A recording, with its streams replaced by the device's.
struct Case {
    header: Header,
    observed_header: Header,
    requests: Vec<Request>,
    observations: Vec<Observation>,
}

/// What the device gave.
#[derive(Default)]
struct Run {
    difference: Option<Divergence>,
    answers: Vec<Observation>,
    recorded: DriverUse,
    replayed: DriverUse,
}

fn start(reason: &dyn fmt::Display) -> Divergence {
    Divergence { request: 0, reason: reason.to_string(), context: Vec::new() }
}

impl Case {
    fn read(req: &Path, obs: &Path, streams: &[Stream]) -> Result<Self, Divergence> {
        let reader = RequestReader::open(req).map_err(|e| start(&e))?;
        let mut header = reader.header().clone();
        let observations = ObservationReader::open(obs).map_err(|e| start(&e))?;
        let mut observed_header = observations.header().clone();
        same_case(&header, &observed_header).map_err(|e| start(&e))?;
        header.stream_ptrs = stand_ins(&header, streams).map_err(|e| start(&e))?;
        observed_header.stream_ptrs.clone_from(&header.stream_ptrs);
        let requests = reader.collect::<Result<Vec<_>, _>>().map_err(|e| start(&e))?;
        let observations = observations.collect::<Result<Vec<_>, _>>().map_err(|e| start(&e))?;
        if requests.len() != observations.len() {
            return Err(start(&"there is not one observation for each request"));
        }
        Ok(Case { header, observed_header, requests, observations })
    }

    /// Plays everything on the device, also after a difference, and gives all memory back in any case.
    fn run(&self, device: &Arc<dyn Device>, progress: &AtomicU64) -> Result<Run, Divergence> {
        let device = Arc::new(OverlaidDevice::new(Arc::clone(device), self.header.total_memory));
        let own: Arc<dyn Device> = Arc::<OverlaidDevice>::clone(&device);
        let allocator = allocator(&self.header, own).map_err(|e| at(progress, e))?;
        let mut player = Player::new(allocator, &self.header, StreamControl::Overlaid(Arc::clone(&device)));
        player.plan(&self.requests);
        let run = self.play(&mut player, &device, progress);
        let cleaned = player.clean_up().map_err(|e| at(progress, format!("giving everything back: {e}")));
        run.and_then(|run| cleaned.map(|()| run))
    }

    fn play(
        &self,
        player: &mut Player,
        device: &OverlaidDevice,
        progress: &AtomicU64,
    ) -> Result<Run, Divergence> {
        let mut comparison = Comparison::new(&self.observed_header).map_err(|e| at(progress, e))?;
        let mut ordinals = Ordinals::new(self.header.total_memory);
        let (mut run, mut context) = (Run::default(), Context::default());
        for (number, (request, observed)) in (0..).zip(self.requests.iter().zip(&self.observations)) {
            device.expect(&observed.events, player.allocator().get_per_process_memory_fraction() < 1.0);
            let played = player.play(request, Some(observed));
            device.forget();
            let recorded_too = observed.events.iter().any(|e| e.action == TraceAction::Oom);
            if device.take_ran_out() && !recorded_too {
                return Err(at(progress, "the device has too little free memory for this recording"));
            }
            let got = comparison.events(player);
            context.add(number, request, &played);
            run.recorded.follow(&observed.events);
            run.replayed.follow(&got);
            if run.difference.is_none() {
                let here = ordinals.translate(observed, &got);
                if let Err(reason) = comparison.check_with(&got, player, request, &played, &here) {
                    let difference = context.divergence(number, reason);
                    if !comparison.parted_by_address(&got, &played, &here) {
                        return Err(difference);
                    }
                    run.difference = Some(difference);
                }
            }
            if played.outcome == Outcome::Error && observed.outcome != Outcome::Error {
                // Other addresses are no reason to fail.
                let reason = played.error.map_or("an error".to_owned(), |error| error.to_string());
                return Err(context.divergence(number, reason));
            }
            run.answers.push(Observation {
                events: got,
                outcome: played.outcome,
                deltas: None,
                full: None,
                notes: Vec::new(),
            });
            progress.store(number + 1, Ordering::Relaxed);
        }
        player
            .allocator()
            .verify()
            .map_err(|e| at(progress, format!("the end state is not consistent: {e}")))?;
        Ok(run)
    }

    fn judge(&self, run: Run, progress: &AtomicU64) -> Result<DeviceReplay, Divergence> {
        let agreement = match run.difference {
            None => Agreement::Exact,
            Some(difference) => {
                self.same_on_simulation(&run.answers, &difference, progress)?;
                Agreement::ByAddress(difference)
            }
        };
        Ok(DeviceReplay {
            case: self.header.case.clone(),
            requests: self.requests.len() as u64,
            agreement,
            recorded: run.recorded,
            replayed: run.replayed,
        })
    }

    /// Whether the simulated GPU, which is compared with the recordings request by request elsewhere, gives the same
    /// when its segments have this driver's addresses.
    fn same_on_simulation(
        &self,
        answers: &[Observation],
        difference: &Divergence,
        progress: &AtomicU64,
    ) -> Result<(), Divergence> {
        let gpu = RecordedGpu::new(self.header.total_memory);
        let allocator =
            allocator(&self.header, Arc::new(gpu.device().clone())).map_err(|e| at(progress, e))?;
        let answers_header = Header {
            events: Some(EventSet::All),
            row: Vec::new(),
            full: Vec::new(),
            ..self.observed_header.clone()
        };
        let mut comparison = Comparison::new(&answers_header).map_err(|e| at(progress, e))?;
        let mut player = Player::new(allocator, &self.header, StreamControl::Simulated(gpu.device().clone()));
        player.plan(&self.requests);
        for (number, (request, answer)) in self.requests.iter().zip(answers).enumerate() {
            gpu.expect(&answer.events, player.allocator().get_per_process_memory_fraction() < 1.0);
            let played = player.play(request, self.observations.get(number));
            gpu.forget();
            comparison.check(&player, request, &played, answer).map_err(|reason| Divergence {
                request: difference.request,
                reason: format!(
                    "{}; and at request {number} the addresses do not explain it: {reason}",
                    difference.reason
                ),
                context: difference.context.clone(),
            })?;
        }
        Ok(())
    }
}

/// The device's streams in the order of the recording's handles, as free blocks are ordered by them [spec 3.1].
fn stand_ins(header: &Header, streams: &[Stream]) -> Result<Vec<String>, String> {
    let recorded = header.stream_handles();
    let mut handles: Vec<Stream> = recorded.iter().copied().filter(|s| *s != Stream::DEFAULT).collect();
    let mut here = streams.to_vec();
    handles.sort_unstable();
    handles.dedup();
    here.sort_unstable();
    if here.len() < handles.len() {
        return Err(format!("the recording needs {} streams, and {} are there", handles.len(), here.len()));
    }
    let stand_in = |stream: &Stream| {
        let place = handles.binary_search(stream).ok().and_then(|place| here.get(place));
        format!("{:x}", place.map_or(0, |s| s.raw()))
    };
    Ok(recorded.iter().map(stand_in).collect())
}
