//! `roundup_power2_divisions` [spec 2.2, 15.4].

use std::fmt;

use super::error::ConfigError;
use super::tokens::Cursor;

/// Division counts for rounding, one per power of two of MiB [spec 2.2, 15.4].
///
/// Slot `k` is for sizes in `[2^k MiB, 2^(k+1) MiB)`; slot 0 also serves everything below, slot 15 everything above.
/// A count is 0 (off) or a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Divisions(pub [u32; 16]);

/// Counts above it act like it: they divide no request below 1 TiB.
const MAX_COUNT: u64 = 1 << 31;

impl Divisions {
    /// The same count for every size.
    pub fn uniform(count: u32) -> Self {
        Divisions([count; 16])
    }

    /// The count for a request of `bytes`, not yet rounded [spec 2.2].
    #[inline]
    pub fn for_size(&self, bytes: u64) -> u32 {
        let slot = (bytes | 1).ilog2().saturating_sub(20).min(15);
        self.0[slot as usize]
    }

    /// Reads a value: one count, or a list [spec 15.4]. As in PyTorch a list leaves the slots that it does not
    /// name as they are.
    pub(super) fn read(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ConfigError> {
        if cursor.peek() == Some("[") {
            return self.read_list(cursor);
        }
        let count = cursor.whole()?;
        if !count.is_power_of_two() {
            return Err(not_a_power("the divisions has to be power of 2", cursor.key(), count));
        }
        *self = Divisions::uniform(count.min(MAX_COUNT) as u32);
        Ok(())
    }

    fn read_list(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ConfigError> {
        cursor.skip(); // the bracket
        let mut last_slot = None;
        while cursor.peek_in_list()? != "]" {
            // The count is checked before its interval, which decides what is reported.
            let mut interval = cursor.clone();
            cursor.skip();
            cursor.skip();
            let count = read_count(cursor)?;
            let slot = read_interval(&mut interval)?;
            match (slot, last_slot) {
                (None, last) => self.0[last.unwrap_or(0) + 1..].fill(count),
                (Some(slot), None) => self.0[..=slot].fill(count),
                (Some(slot), Some(_)) => self.0[slot] = count,
            }
            last_slot = slot.or(last_slot);
            if cursor.peek_in_list()? != "]" {
                cursor.skip();
            }
        }
        cursor.skip(); // the bracket
        Ok(())
    }

    /// Whether every count is 0 or a power of two, as the engine needs.
    pub(super) fn validate(&self, key: &str) -> Result<(), ConfigError> {
        match self.0.iter().find(|count| **count != 0 && !count.is_power_of_two()) {
            Some(count) => {
                Err(not_a_power("the divisions has to be power of 2 or 0 to disable roundup", key, *count))
            }
            None => Ok(()),
        }
    }
}

/// The slot of a list's key; `None` for `>`.
fn read_interval(cursor: &mut Cursor<'_>) -> Result<Option<usize>, ConfigError> {
    if cursor.peek() == Some(">") {
        return Ok(None);
    }
    let mib = cursor.whole()?;
    if !mib.is_power_of_two() {
        return Err(not_a_power("the intervals have to be power of 2", cursor.key(), mib));
    }
    Ok(Some(mib.ilog2().min(15) as usize))
}

fn read_count(cursor: &mut Cursor<'_>) -> Result<u32, ConfigError> {
    let count = cursor.whole()?;
    if count != 0 && !count.is_power_of_two() {
        let rule = "the divisions has to be power of 2 or 0 to disable roundup";
        return Err(not_a_power(rule, cursor.key(), count));
    }
    Ok(count.min(MAX_COUNT) as u32)
}

fn not_a_power(rule: &str, key: &str, got: impl fmt::Display) -> ConfigError {
    ConfigError::value(key, format!("For roundups, {rule} (got {got})"))
}

/// The shortest text that reads back as the same slots: a count, or a list.
impl fmt::Display for Divisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = &self.0;
        // The first key fills the slots below it; `>` fills the equal ones at the end.
        let first = slots.iter().take_while(|count| **count == slots[0]).count() - 1;
        let tail = 16 - slots.iter().rev().take_while(|count| **count == slots[15]).count();
        if tail == 0 {
            return write!(f, "{}", slots[0]);
        }
        f.write_str("[")?;
        for (slot, count) in slots.iter().enumerate().take(tail).skip(first) {
            let comma = if slot == first { "" } else { "," };
            write!(f, "{comma}{}:{count}", 1 << slot)?;
        }
        if slots[15] != 0 {
            write!(f, ",>:{}", slots[15])?;
        }
        f.write_str("]")
    }
}
