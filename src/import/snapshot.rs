//! A file's values into a [`SnapshotFile`], checked so that everything that reads one can add sizes without care.

use std::collections::HashMap;
use std::sync::Arc;

use super::arena::{Arena, Id, Node};
use super::error::ImportError;
use super::walk::{Dict, Place, list};
use crate::observe::file::{Annotation, Settings, SnapshotFile};
use crate::observe::history::{Frame, Frames, TraceAction, TraceEntry};
use crate::observe::snapshot::{BlockInfo, BlockState, PoolId, PoolKind, SegmentInfo};

/// More devices than any host has.
const MOST_DEVICES: usize = 1024;
/// All segments of a file together must stay below this, so that sums can't overflow.
const MOST_BYTES: u64 = 1 << 62;

type Converted<T> = Result<T, ImportError>;

/// Converts the outermost value: PyTorch's dictionary, or a bare list of segments. Entries of the history with an
/// action that [spec 12.3] does not know are left out; sizes of segments are worked out from their blocks.
pub(crate) fn convert(arena: &Arena) -> Converted<SnapshotFile> {
    let place = Place::ROOT;
    let mut reader = Reader { arena, frames: HashMap::new(), stacks: HashMap::new(), items: 0, bytes: 0 };
    if matches!(arena.get(arena.root()), Node::List(_)) {
        let segments = reader.segments(arena.root(), &place)?;
        return Ok(with_every_device(SnapshotFile { segments, ..SnapshotFile::default() }));
    }
    let root = Dict::new(arena, arena.root(), &place)?;
    let Some(segments) = root.get("segments") else {
        return Err(place.fail("a dictionary without the key 'segments' is not a snapshot"));
    };
    Ok(with_every_device(SnapshotFile {
        segments: reader.segments(segments, &place.key("segments"))?,
        device_traces: match root.get("device_traces") {
            Some(id) => reader.traces(id, &place.key("device_traces"))?,
            None => Vec::new(),
        },
        settings: match root.get("allocator_settings") {
            Some(id) => settings(arena, id, &place.key("allocator_settings"))?,
            None => Settings::default(),
        },
        annotations: match root.get("external_annotations") {
            Some(id) => reader.annotations(id, &place.key("external_annotations"))?,
            None => Vec::new(),
        },
    }))
}

/// Every device with segments has a history, if an empty one, as PyTorch writes it.
fn with_every_device(mut file: SnapshotFile) -> SnapshotFile {
    let devices = file.segments.iter().map(|s| s.device as usize + 1).max().unwrap_or(0);
    let devices = devices.max(file.device_traces.len());
    file.device_traces.resize_with(devices, Vec::new);
    file
}

struct Reader<'a> {
    arena: &'a Arena,
    /// Frames and stacks that were converted already: files share them, and so does the result.
    frames: HashMap<Id, Frame>,
    stacks: HashMap<Id, Arc<[Frame]>>,
    /// Segments, blocks and entries so far.
    items: usize,
    /// Bytes of all segments so far.
    bytes: u64,
}

impl Reader<'_> {
    /// A file that names one value as many items could be made to need memory without bound; in an honest one each
    /// item is a value of its own.
    fn count(&mut self, more: usize, place: &Place<'_>) -> Converted<()> {
        self.items = self.items.saturating_add(more);
        if self.items <= self.arena.len() {
            return Ok(());
        }
        Err(place.fail("more items than the file has values: the same ones are listed again and again"))
    }

    fn segments(&mut self, id: Id, place: &Place<'_>) -> Converted<Vec<SegmentInfo>> {
        let items = list(self.arena, id, place)?;
        self.count(items.len(), place)?;
        items.iter().enumerate().map(|(i, &item)| self.segment(item, &place.index(i))).collect()
    }

    fn segment(&mut self, id: Id, place: &Place<'_>) -> Converted<SegmentInfo> {
        let dict = Dict::new(self.arena, id, place)?;
        let address = dict.u64("address")?;
        let total_size = dict.u64("total_size")?;
        self.bytes = self.bytes.saturating_add(total_size);
        if self.bytes > MOST_BYTES || address.checked_add(total_size).is_none() {
            return Err(place.fail(format!("{total_size} bytes at {address:#x} can't be")));
        }
        let Some(blocks) = dict.get("blocks") else { return Err(place.fail("the key 'blocks' is missing")) };
        let blocks = self.blocks(blocks, (address, total_size), &place.key("blocks"))?;
        let sum = |which: fn(&BlockInfo) -> u64| blocks.iter().map(which).sum();
        Ok(SegmentInfo {
            device: device(&dict, place)?,
            address,
            total_size,
            allocated_size: sum(|b| if b.state == BlockState::ActiveAllocated { b.size } else { 0 }),
            active_size: sum(|b| if b.state == BlockState::Inactive { 0 } else { b.size }),
            requested_size: sum(|b| if b.state == BlockState::Inactive { 0 } else { b.requested_size }),
            stream: dict.u64_or("stream", 0)?,
            segment_type: match dict.str_if("segment_type").map(|t| &**t) {
                Some("small") => PoolKind::Small,
                Some("large") => PoolKind::Large,
                Some(_) => return Err(place.key("segment_type").fail("must be 'small' or 'large'")),
                None if total_size <= 2 << 20 => PoolKind::Small,
                None => PoolKind::Large,
            },
            segment_pool_id: self.pool(&dict, place)?,
            is_expandable: dict.bool_if("is_expandable").unwrap_or(false),
            frames: self.stack(&dict, place)?,
            blocks,
        })
    }

    fn pool(&self, dict: &Dict<'_>, place: &Place<'_>) -> Converted<PoolId> {
        let Some(id) = dict.get("segment_pool_id") else { return Ok(PoolId::DEFAULT) };
        let number = |id: Id| match self.arena.get(id) {
            Node::Int(v) => u64::try_from(*v).ok(),
            _ => None,
        };
        let pair = match list(self.arena, id, &place.key("segment_pool_id"))? {
            &[a, b] => number(a).zip(number(b)),
            _ => None,
        };
        pair.map(|(a, b)| PoolId(a, b))
            .ok_or_else(|| place.key("segment_pool_id").fail("expected a pair of unsigned integers"))
    }

    fn blocks(
        &mut self,
        id: Id,
        (address, total): (u64, u64),
        place: &Place<'_>,
    ) -> Converted<Vec<BlockInfo>> {
        let items = list(self.arena, id, place)?;
        self.count(items.len(), place)?;
        let mut left = total;
        let mut blocks = Vec::with_capacity(items.len());
        for (i, &item) in items.iter().enumerate() {
            let block = self.block(item, address + (total - left), &place.index(i))?;
            match left.checked_sub(block.size) {
                Some(rest) => left = rest,
                None => {
                    return Err(place.index(i).fail(format!("reaches beyond its segment of {total} bytes")));
                }
            }
            blocks.push(block);
        }
        if left != 0 {
            return Err(
                place.fail(format!("the blocks leave {left} of the segment's {total} bytes uncovered"))
            );
        }
        Ok(blocks)
    }

    fn block(&mut self, id: Id, expected: u64, place: &Place<'_>) -> Converted<BlockInfo> {
        let dict = Dict::new(self.arena, id, place)?;
        // Old files have no block addresses; blocks tile their segment.
        let address = dict.u64_or("address", expected)?;
        if address != expected {
            return Err(
                place.fail(format!("is at {address:#x}, but the block before it ends at {expected:#x}"))
            );
        }
        let size = dict.u64("size")?;
        let state = match &**dict.str("state")? {
            "active_allocated" => BlockState::ActiveAllocated,
            "active_pending_free" | "active_awaiting_free" => BlockState::ActivePendingFree,
            "inactive" => BlockState::Inactive,
            other => return Err(place.key("state").fail(format!("'{}' is not known", excerpt(other)))),
        };
        let requested_size = dict.u64_or("requested_size", size)?;
        if state != BlockState::Inactive && requested_size > size {
            return Err(place.fail(format!("requested_size {requested_size} is more than size {size}")));
        }
        Ok(BlockInfo { address, size, requested_size, state, frames: self.stack(&dict, place)? })
    }

    fn traces(&mut self, id: Id, place: &Place<'_>) -> Converted<Vec<Vec<TraceEntry>>> {
        let items = list(self.arena, id, place)?;
        if items.len() > MOST_DEVICES {
            return Err(place.fail(format!("{} devices, at most {MOST_DEVICES} are supported", items.len())));
        }
        items.iter().enumerate().map(|(i, &item)| self.trace(item, &place.index(i))).collect()
    }

    fn trace(&mut self, id: Id, place: &Place<'_>) -> Converted<Vec<TraceEntry>> {
        let items = list(self.arena, id, place)?;
        self.count(items.len(), place)?;
        let entries = items.iter().enumerate().map(|(i, &item)| self.entry(item, &place.index(i)));
        entries.filter_map(Result::transpose).collect()
    }

    fn entry(&mut self, id: Id, place: &Place<'_>) -> Converted<Option<TraceEntry>> {
        let dict = Dict::new(self.arena, id, place)?;
        let Some(action) = TraceAction::from_name(dict.str("action")?) else { return Ok(None) };
        Ok(Some(TraceEntry {
            action,
            addr: dict.u64(if action == TraceAction::Oom { "device_free" } else { "addr" })?,
            size: dict.u64("size")?,
            stream: dict.u64_or("stream", 0)?,
            time_us: dict.u64_or("time_us", 0)?,
            user_metadata: dict.str_if("user_metadata").cloned().unwrap_or_default(),
            frames: self.stack(&dict, place)?,
        }))
    }

    fn annotations(&mut self, id: Id, place: &Place<'_>) -> Converted<Vec<Annotation>> {
        let items = list(self.arena, id, place)?;
        self.count(items.len(), place)?;
        let convert = |(i, &item): (usize, &Id)| {
            let place = place.index(i);
            let dict = Dict::new(self.arena, item, &place)?;
            Ok(Annotation {
                start: &**dict.str("stage")? == "START",
                name: dict.str("name")?.clone(),
                device: device(&dict, &place)?,
                time_us: dict.u64("time_us")?,
            })
        };
        items.iter().enumerate().map(convert).collect()
    }

    /// The stack under the key `frames`; absent and empty ones are the same.
    fn stack(&mut self, dict: &Dict<'_>, place: &Place<'_>) -> Converted<Frames> {
        let Some(id) = dict.get("frames") else { return Ok(Frames::None) };
        if let Some(known) = self.stacks.get(&id) {
            return Ok(Frames::Stack(known.clone()));
        }
        let place = place.key("frames");
        let items = list(self.arena, id, &place)?;
        if items.is_empty() {
            return Ok(Frames::None);
        }
        let frames = items.iter().enumerate().map(|(i, &item)| self.frame(item, &place.index(i)));
        let stack = frames.collect::<Converted<Arc<[Frame]>>>()?;
        self.stacks.insert(id, stack.clone());
        Ok(Frames::Stack(stack))
    }

    fn frame(&mut self, id: Id, place: &Place<'_>) -> Converted<Frame> {
        if let Some(known) = self.frames.get(&id) {
            return Ok(known.clone());
        }
        let dict = Dict::new(self.arena, id, place)?;
        let frame = Frame {
            name: dict.str("name")?.clone(),
            filename: dict.str("filename")?.clone(),
            // Native frames without debug information may have odd lines.
            line: dict.i64_if("line").and_then(|l| u32::try_from(l).ok()).unwrap_or(0),
        };
        self.frames.insert(id, frame.clone());
        Ok(frame)
    }
}

fn device(dict: &Dict<'_>, place: &Place<'_>) -> Converted<u32> {
    let device = dict.u32("device")?;
    if (device as usize) < MOST_DEVICES {
        return Ok(device);
    }
    Err(place.key("device").fail(format!("{device} is more than {MOST_DEVICES} devices")))
}

/// Settings are for display, and differ between PyTorch's versions: what is missing or odd is the default.
fn settings(arena: &Arena, id: Id, place: &Place<'_>) -> Converted<Settings> {
    let dict = Dict::new(arena, id, place)?;
    let default = Settings::default();
    let source = dict.str_if("PYTORCH_CUDA_ALLOC_CONF").or(dict.str_if("PYTORCH_ALLOC_CONF"));
    let flag = |key: &str| dict.bool_if(key).unwrap_or(false);
    let mut divisions = default.roundup_power2_divisions;
    if let Some(id) = dict.get("roundup_power2_divisions") {
        let place = place.key("roundup_power2_divisions");
        let table = Dict::new(arena, id, &place)?;
        for (power, slot) in divisions.iter_mut().enumerate() {
            let count = table.i64_if(&(1_u32 << power).to_string());
            *slot = count.and_then(|c| u32::try_from(c).ok()).unwrap_or(*slot);
        }
    }
    Ok(Settings {
        source: source.map(ToString::to_string).unwrap_or_default(),
        max_split_size: dict.i64_if("max_split_size").unwrap_or(default.max_split_size),
        garbage_collection_threshold: dict
            .f64_if("garbage_collection_threshold")
            .filter(|v| v.is_finite())
            .unwrap_or(default.garbage_collection_threshold),
        expandable_segments: flag("expandable_segments"),
        pinned_num_register_threads: dict
            .i64_if("pinned_num_register_threads")
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(default.pinned_num_register_threads),
        release_lock_on_cudamalloc: flag("release_lock_on_cudamalloc"),
        pinned_use_cuda_host_register: flag("pinned_use_cuda_host_register"),
        graph_capture_record_stream_reuse: flag("graph_capture_record_stream_reuse"),
        roundup_power2_divisions: divisions,
    })
}

fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}
