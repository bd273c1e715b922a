//! The space-separated fields of a line.

use std::fmt;
use std::iter::Peekable;
use std::str::Split;

/// The fields of one line, taken one by one; every mistake becomes a reason.
pub(super) struct Fields<'a> {
    pub(super) rest: Peekable<Split<'a, char>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Fields { rest: line.split(' ').peekable() }
    }

    pub(super) fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.rest.next().filter(|w| !w.is_empty()).ok_or_else(|| format!("{what} is missing"))
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, String>
    where
        T::Err: fmt::Display,
    {
        let word = self.word(what)?;
        word.parse().map_err(|e| format!("{what} '{}': {e}", excerpt(word)))
    }

    pub(super) fn hex(&mut self, what: &str) -> Result<u64, String> {
        let word = self.word(what)?;
        u64::from_str_radix(word, 16).map_err(|e| format!("{what} '{}': {e}", excerpt(word)))
    }

    pub(super) fn end(mut self) -> Result<(), String> {
        match self.rest.next() {
            None => Ok(()),
            Some(word) => Err(format!("unexpected '{}' at the end", excerpt(word))),
        }
    }
}

/// The head of a text, for messages.
pub(super) fn excerpt(text: &str) -> String {
    const KEEP: usize = 40;
    match text.char_indices().nth(KEEP) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}
