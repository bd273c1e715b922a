//! The order and the names of everything in PyTorch's snapshot dictionary, in one place for all formats.

use std::io;

use super::file::{Annotation, Settings, SnapshotFile};
use super::history::{Frames, TraceAction, TraceEntry};
use super::snapshot::{BlockInfo, PoolKind, SegmentInfo};

/// The function's name in a frame that is only a place in a file: `#[track_caller]` knows no names.
pub(crate) const CALLER: &str = "(caller)";

/// A format that can write nested values one after the other, without building them in memory.
pub(crate) trait Encoder {
    fn begin_dict(&mut self) -> io::Result<()>;
    fn end_dict(&mut self) -> io::Result<()>;
    fn begin_list(&mut self) -> io::Result<()>;
    fn end_list(&mut self) -> io::Result<()>;
    /// The key of the value that comes next.
    fn key(&mut self, key: &str) -> io::Result<()>;
    fn str(&mut self, value: &str) -> io::Result<()>;
    fn int(&mut self, value: i128) -> io::Result<()>;
    fn float(&mut self, value: f64) -> io::Result<()>;
    fn bool(&mut self, value: bool) -> io::Result<()>;
    /// A tuple of two numbers.
    fn pair(&mut self, a: u64, b: u64) -> io::Result<()>;

    fn key_str(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.key(key)?;
        self.str(value)
    }

    fn key_int(&mut self, key: &str, value: impl Into<i128>) -> io::Result<()>
    where
        Self: Sized,
    {
        self.key(key)?;
        self.int(value.into())
    }

    fn key_bool(&mut self, key: &str, value: bool) -> io::Result<()> {
        self.key(key)?;
        self.bool(value)
    }
}

/// The full dictionary [spec 12.4].
pub(crate) fn snapshot(file: &SnapshotFile, e: &mut impl Encoder) -> io::Result<()> {
    e.begin_dict()?;
    e.key("segments")?;
    list(e, &file.segments, segment)?;
    e.key("device_traces")?;
    // The viewers index this list by device number, so that every device with segments needs an entry.
    let devices = file.segments.iter().map(|s| s.device as usize + 1).max().unwrap_or(0);
    e.begin_list()?;
    for device in 0..devices.max(file.device_traces.len()) {
        list(e, file.trace(device as u32), entry)?;
    }
    e.end_list()?;
    e.key("allocator_settings")?;
    settings(e, &file.settings)?;
    e.key("external_annotations")?;
    list(e, &file.annotations, annotation)?;
    e.end_dict()
}

fn list<E: Encoder, T>(e: &mut E, items: &[T], each: fn(&mut E, &T) -> io::Result<()>) -> io::Result<()> {
    e.begin_list()?;
    for item in items {
        each(e, item)?;
    }
    e.end_list()
}

fn segment<E: Encoder>(e: &mut E, s: &SegmentInfo) -> io::Result<()> {
    e.begin_dict()?;
    e.key_int("device", s.device)?;
    e.key_int("address", s.address)?;
    e.key_int("total_size", s.total_size)?;
    e.key_int("allocated_size", s.allocated_size)?;
    e.key_int("active_size", s.active_size)?;
    e.key_int("requested_size", s.requested_size)?;
    e.key_int("stream", s.stream)?;
    e.key_str("segment_type", s.segment_type.name())?;
    e.key("segment_pool_id")?;
    e.pair(s.segment_pool_id.0, s.segment_pool_id.1)?;
    e.key_bool("is_expandable", s.is_expandable)?;
    frames(e, &s.frames)?;
    e.key("blocks")?;
    list(e, &s.blocks, block)?;
    e.end_dict()
}

fn block<E: Encoder>(e: &mut E, b: &BlockInfo) -> io::Result<()> {
    e.begin_dict()?;
    e.key_int("address", b.address)?;
    e.key_int("size", b.size)?;
    e.key_int("requested_size", b.requested_size)?;
    e.key_str("state", b.state.name())?;
    frames(e, &b.frames)?;
    e.end_dict()
}

fn entry<E: Encoder>(e: &mut E, t: &TraceEntry) -> io::Result<()> {
    e.begin_dict()?;
    e.key_str("action", t.action.name())?;
    e.key_int(if t.action == TraceAction::Oom { "device_free" } else { "addr" }, t.addr)?;
    e.key_int("size", t.size)?;
    e.key_int("stream", t.stream)?;
    e.key_int("time_us", t.time_us)?;
    e.key_str("compile_context", "N/A")?;
    e.key_str("user_metadata", &t.user_metadata)?;
    if t.frames != Frames::None {
        frames(e, &t.frames)?;
    }
    e.end_dict()
}

fn frames<E: Encoder>(e: &mut E, frames: &Frames) -> io::Result<()> {
    e.key("frames")?;
    e.begin_list()?;
    match frames {
        Frames::None => {}
        Frames::Site(site) => frame(e, CALLER, site.file(), site.line())?,
        Frames::Stack(stack) => {
            for f in stack.iter() {
                frame(e, &f.name, &f.filename, f.line)?;
            }
        }
    }
    e.end_list()
}

fn frame<E: Encoder>(e: &mut E, name: &str, filename: &str, line: u32) -> io::Result<()> {
    e.begin_dict()?;
    e.key_str("name", name)?;
    e.key_str("filename", filename)?;
    e.key_int("line", line)?;
    e.end_dict()
}

fn settings<E: Encoder>(e: &mut E, s: &Settings) -> io::Result<()> {
    e.begin_dict()?;
    e.key_str("PYTORCH_CUDA_ALLOC_CONF", &s.source)?;
    e.key_int("max_split_size", s.max_split_size)?;
    e.key("garbage_collection_threshold")?;
    e.float(s.garbage_collection_threshold)?;
    e.key_bool("expandable_segments", s.expandable_segments)?;
    e.key_int("pinned_num_register_threads", s.pinned_num_register_threads)?;
    e.key_bool("release_lock_on_cudamalloc", s.release_lock_on_cudamalloc)?;
    e.key_bool("pinned_use_cuda_host_register", s.pinned_use_cuda_host_register)?;
    e.key_bool("graph_capture_record_stream_reuse", s.graph_capture_record_stream_reuse)?;
    e.key("roundup_power2_divisions")?;
    e.begin_dict()?;
    for (power, divisions) in s.roundup_power2_divisions.iter().enumerate() {
        e.key_int(&(1_u32 << power).to_string(), *divisions)?;
    }
    e.end_dict()?;
    e.end_dict()
}

fn annotation<E: Encoder>(e: &mut E, a: &Annotation) -> io::Result<()> {
    e.begin_dict()?;
    e.key_str("stage", if a.start { "START" } else { "END" })?;
    e.key_str("name", &a.name)?;
    e.key_int("device", a.device)?;
    e.key_int("time_us", a.time_us)?;
    e.end_dict()
}

impl PoolKind {
    /// PyTorch's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            PoolKind::Small => "small",
            PoolKind::Large => "large",
        }
    }
}
