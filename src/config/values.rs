//! Values that need more than one line to read or to show.

use std::time::Duration;

use super::error::ConfigError;
use super::tokens::Cursor;
use super::{Config, MIB, ReserveSize};
use crate::units::parse_size;

pub(super) fn boolean(on: bool) -> String {
    if on { "True" } else { "False" }.to_owned()
}

pub(super) fn mib(bytes: u64) -> String {
    (bytes / MIB).to_string()
}

pub(super) fn read_backend(_: &mut Config, value: &mut Cursor<'_>) -> Result<(), ConfigError> {
    match value.word()? {
        "native" => Ok(()),
        "cudaMallocAsync" => Err(ConfigError::Unsupported {
            key: value.key().to_owned(),
            value: "cudaMallocAsync".to_owned(),
            advice: "leave the option out; against fragmentation try expandable_segments:True",
        }),
        _ => Err(ConfigError::value(
            value.key(),
            "Unknown allocator backend, options are native and cudaMallocAsync (gpucache has native only)",
        )),
    }
}

pub(super) fn read_idle(config: &mut Config, value: &mut Cursor<'_>) -> Result<(), ConfigError> {
    config.release_idle_after = if value.peek() == Some("none") {
        value.word()?;
        None
    } else {
        Some(Duration::from_millis(value.whole()?))
    };
    Ok(())
}

pub(super) fn show_idle(config: &Config) -> String {
    config.release_idle_after.map_or_else(|| "none".to_owned(), |idle| idle.as_millis().to_string())
}

/// A bare number is a fraction, a number with a unit a size.
pub(super) fn reserve_size(value: &mut Cursor<'_>) -> Result<ReserveSize, ConfigError> {
    if value.peek().is_some_and(|text| text.ends_with(|c: char| c.is_ascii_alphabetic())) {
        let text = value.word()?;
        let bytes = parse_size(text)
            .map_err(|error| ConfigError::value(value.key(), format!("{}: {error}", value.key())))?;
        return Ok(ReserveSize::Bytes(bytes));
    }
    value.real().map(ReserveSize::Fraction)
}

pub(super) fn show_reserve_size(size: Option<ReserveSize>) -> String {
    match size {
        None => "9/8".to_owned(),
        Some(ReserveSize::Fraction(fraction)) => fraction.to_string(),
        Some(ReserveSize::Bytes(bytes)) if bytes.is_multiple_of(1 << 30) => format!("{}G", bytes >> 30),
        Some(ReserveSize::Bytes(bytes)) => format!("{bytes}B"),
    }
}
