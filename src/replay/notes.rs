//! Compares the notes of a recording: texts, the final snapshot, pinned memory.

use std::collections::HashMap;

use serde_json::Value;

use super::freedom::OrderFreedom;
use super::observation::{Note, Outcome};
use super::run::{Played, Player};
use crate::Allocator;
use crate::error::Error;
use crate::observe::snapshot::{BlockState, PoolId, PoolKind, SegmentInfo};
use crate::stats::summary::memory_summary_as;

/// Compares one note. Notes of unknown keys are passed over.
pub(crate) fn compare(
    note: &Note,
    player: &Player,
    played: &Played,
    streams: &HashMap<u64, u64>,
    freedom: &OrderFreedom,
) -> Result<(), String> {
    let allocator = player.allocator();
    match note.key.as_str() {
        "exc" => compare_exception(played, text(note)?),
        "mem_get_info" => {
            let info = allocator.mem_get_info().map_err(|e| format!("mem_get_info: {e}"))?;
            // What is free depends on other processes.
            equal("mem_get_info's total", &note.value[1], &Value::from(info.total))
        }
        "segments" => {
            let keep_stale = !freedom.allows_stale_sizes();
            let segments = allocator.memory_snapshot().segments;
            let got = segments.iter().flat_map(|s| segment_lines(s, streams, keep_stale)).collect();
            let expected = recorded_segment_lines(&note.value, keep_stale)?;
            compare_lines("segments", &expected, &got)
        }
        "summary" | "summary_abbreviated" if freedom.allows_summary() => Ok(()),
        "summary" => compare_text("memory_summary()", text(note)?, &summary(allocator, false)),
        "summary_abbreviated" => {
            compare_text("memory_summary(abbreviated)", text(note)?, &summary(allocator, true))
        }
        "host" => compare_host(&note.value, &player.host().stats()),
        _ => Ok(()),
    }
}

/// The summary under PyTorch's name.
fn summary(allocator: &Allocator, abbreviated: bool) -> String {
    let device = allocator.device().properties().ordinal;
    memory_summary_as("PyTorch", &allocator.memory_stats(), device, abbreviated)
}

fn text(note: &Note) -> Result<&str, String> {
    note.value.as_str().ok_or_else(|| format!("the note '{}' should be a text", note.key))
}

fn equal(what: &str, expected: &Value, got: &Value) -> Result<(), String> {
    if expected == got { Ok(()) } else { Err(format!("{what} is {got}, expected {expected}")) }
}

fn compare_exception(played: &Played, expected: &str) -> Result<(), String> {
    if played.outcome != Outcome::OutOfMemory {
        return Ok(()); // Other errors have no text in common.
    }
    let got = match &played.error {
        Some(Error::OutOfMemory(report)) => report.pytorch_message(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let (expected, got) = (fixed_parts(expected), fixed_parts(&got));
    if expected == got { Ok(()) } else { Err(format!("the error's text is {got:?}, expected {expected:?}")) }
}

/// An out-of-memory text without what depends on other processes: from "of which" to the last "in use." (or, where
/// no process is named, to "is free.").
fn fixed_parts(text: &str) -> (&str, &str) {
    let Some((head, rest)) = text.split_once(" of which ") else { return (text, "") };
    let tail = rest.rsplit_once(" in use. ").or_else(|| rest.split_once(" is free. "));
    (head, tail.map_or(rest, |(_, tail)| tail))
}

fn compare_text(what: &str, expected: &str, got: &str) -> Result<(), String> {
    let lines = |text: &str| text.split('\n').map(str::to_owned).collect::<Vec<_>>();
    compare_lines(what, &lines(expected), &lines(got))
}

fn compare_lines(what: &str, expected: &Vec<String>, got: &Vec<String>) -> Result<(), String> {
    if expected == got {
        return Ok(());
    }
    let same = expected.iter().zip(got).take_while(|(e, g)| e == g).count();
    let show = |lines: &[String]| lines.get(same).map_or("nothing more".to_owned(), |l| format!("'{l}'"));
    Err(format!("{what}, line {}: is {}, expected {}", same + 1, show(got), show(expected)))
}

/// A segment and its blocks, one line each.
fn segment_lines(segment: &SegmentInfo, streams: &HashMap<u64, u64>, keep_stale: bool) -> Vec<String> {
    let kind = match segment.segment_type {
        PoolKind::Small => "small",
        PoolKind::Large => "large",
    };
    let stream = streams.get(&segment.stream).copied().unwrap_or(segment.stream);
    let mut lines = vec![format!(
        "segment {:x} size {} allocated {} active {} requested {} stream {stream} {kind} expandable {} pool {}",
        segment.address,
        segment.total_size,
        segment.allocated_size,
        segment.active_size,
        segment.requested_size,
        segment.is_expandable,
        pool_word(segment.segment_pool_id),
    )];
    lines.extend(segment.blocks.iter().map(|block| {
        let requested = (keep_stale || block.state != BlockState::Inactive).then_some(block.requested_size);
        block_line(block.address, block.size, requested, block.state.name())
    }));
    lines
}

fn block_line(address: u64, size: u64, requested: Option<u64>, state: &str) -> String {
    let requested = requested.map_or("any".to_owned(), |r| r.to_string());
    format!("block {address:x} size {size} requested {requested} {state}")
}

/// The kind of pool: the numbers in an id depend on what the process made before.
fn pool_word(id: PoolId) -> &'static str {
    match id {
        PoolId(0, 0) => "default",
        PoolId(0, _) => "of a user",
        _ => "of a capture",
    }
}

/// The same lines from a recording.
fn recorded_segment_lines(segments: &Value, keep_stale: bool) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for segment in segments.as_array().ok_or("the note 'segments' should be a list")? {
        recorded_segment(segment, keep_stale, &mut lines)
            .ok_or_else(|| format!("the note 'segments' has a segment that cannot be read: {segment}"))?;
    }
    Ok(lines)
}

fn recorded_segment(segment: &Value, keep_stale: bool, lines: &mut Vec<String>) -> Option<()> {
    let number = |key: &str| segment[key].as_u64();
    let pool = PoolId(segment["pool_id"][0].as_u64()?, segment["pool_id"][1].as_u64()?);
    lines.push(format!(
        "segment {} size {} allocated {} active {} requested {} stream {} {} expandable {} pool {}",
        segment["address"].as_str()?,
        number("total_size")?,
        number("allocated_size")?,
        number("active_size")?,
        number("requested_size")?,
        number("stream")?,
        segment["segment_type"].as_str()?,
        segment["is_expandable"].as_bool()?,
        pool_word(pool),
    ));
    for block in segment["blocks"].as_array()? {
        let state = block[3].as_str()?;
        let address = u64::from_str_radix(block[0].as_str()?, 16).ok()?;
        let requested = block[2].as_u64()?;
        let requested = (keep_stale || state != BlockState::Inactive.name()).then_some(requested);
        lines.push(block_line(address, block[1].as_u64()?, requested, state));
    }
    Some(())
}

fn compare_host(expected: &Value, got: &[(String, i64)]) -> Result<(), String> {
    let expected = expected.as_object().ok_or("the note 'host' should be an object")?;
    for (name, value) in expected {
        let found = got.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
        let found = found.ok_or_else(|| format!("host_memory_stats has no '{name}'"))?;
        equal(&format!("host_memory_stats' {name}"), value, &Value::from(found))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_part_of_an_error_is_left_out() {
        let bare =
            "Tried. GPU 0 has a total capacity of 10.00 GiB of which 9.00 GiB is free. 1.00 GiB allowed; Of";
        let full = "Tried. GPU 0 has a total capacity of 10.00 GiB of which 8.00 GiB is free. Process 1 has 1.00 GiB \
                    memory in use. Including non-PyTorch memory, this process has 2 bytes memory in use. 1.00 GiB \
                    allowed; Of";
        let parts = ("Tried. GPU 0 has a total capacity of 10.00 GiB", "1.00 GiB allowed; Of");
        assert_eq!(fixed_parts(bare), parts);
        assert_eq!(fixed_parts(full), parts);
        assert_eq!(fixed_parts("more than 1EB memory."), ("more than 1EB memory.", ""));
    }

    #[test]
    fn recorded_segments_become_lines() {
        let json = r#"[{"address":"7f00","total_size":20,"allocated_size":0,"active_size":8,"requested_size":7,
            "stream":1,"segment_type":"large","is_expandable":false,"pool_id":[0,3],
            "blocks":[["7f00",8,7,"active_pending_free"],["7f08",12,5,"inactive"]]}]"#;
        let value: Value = serde_json::from_str(json).unwrap();
        let lines = recorded_segment_lines(&value, false).unwrap();
        assert_eq!(
            lines,
            [
                "segment 7f00 size 20 allocated 0 active 8 requested 7 stream 1 large expandable false pool of a user",
                "block 7f00 size 8 requested 7 active_pending_free",
                "block 7f08 size 12 requested any inactive",
            ]
        );
        assert!(recorded_segment_lines(&serde_json::json!([{"address": 5}]), true).is_err());
    }
}
