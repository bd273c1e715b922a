//! The lexical side of the grammar [spec 15.2].
//!
//! PyTorch does not check separators: whatever one token follows a key passes for `:`, whatever one token
//! follows a value passes for `,`. People's texts rely on it, so the same texts are accepted here.

use super::error::ConfigError;
use super::numbers::{NumberError, stod, stoull};

/// The largest number of MiB whose byte count fits 64 bits; PyTorch clamps sizes to it.
pub(super) const MAX_MIB: u64 = u64::MAX >> 20;

/// `,` `:` `[` `]` and the words between them, white space dropped.
pub(super) fn tokenize(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        match c {
            ',' | ':' | '[' | ']' => {
                if !word.is_empty() {
                    tokens.push(std::mem::take(&mut word));
                }
                tokens.push(c.to_string());
            }
            // C's isspace; a no-break space, say, belongs to the word.
            ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c' => {}
            _ => word.push(c),
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

/// Reads tokens one by one; knows the key at hand for its messages.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    tokens: &'a [String],
    at: usize,
    key: &'a str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(tokens: &'a [String]) -> Self {
        Cursor { tokens, at: 0, key: "" }
    }

    /// A cursor on the value of the key at index `at`.
    pub(super) fn on_value_of(tokens: &'a [String], at: usize) -> Self {
        let mut cursor = Cursor { tokens, at, key: "" };
        cursor.next_key();
        cursor
    }

    /// Takes the next key and the token after it. `None` at the end of the text.
    pub(super) fn next_key(&mut self) -> Option<&'a str> {
        self.key = self.tokens.get(self.at)?;
        self.at += 2;
        Some(self.key)
    }

    pub(super) fn key(&self) -> &'a str {
        self.key
    }

    /// The token at hand, which stays.
    pub(super) fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    /// Skips one token, whatever it is: usually the one that should be a `,`.
    pub(super) fn skip(&mut self) {
        self.at += 1;
    }

    /// Takes one token.
    pub(super) fn word(&mut self) -> Result<&'a str, ConfigError> {
        let word = self.peek().ok_or_else(|| {
            ConfigError::syntax(format!(
                "Index out of bounds in ConfigTokenizer: the text ends where option '{}' needs a value",
                self.key
            ))
        })?;
        self.at += 1;
        Ok(word)
    }

    /// Skips a value that is another parser's: one token or a list.
    pub(super) fn skip_value(&mut self) -> Result<(), ConfigError> {
        if self.word()? == "[" {
            while self.peek_in_list()? != "]" {
                self.at += 1;
            }
            self.at += 1;
        }
        Ok(())
    }

    /// The token at hand inside a list, where the text must not end.
    pub(super) fn peek_in_list(&self) -> Result<&'a str, ConfigError> {
        self.peek().ok_or_else(|| {
            ConfigError::syntax(format!(
                "Expected closing bracket ']' in ConfigTokenizer but reached end of config (list of option '{}')",
                self.key
            ))
        })
    }

    /// Takes a whole number.
    pub(super) fn whole(&mut self) -> Result<u64, ConfigError> {
        let word = self.word()?;
        stoull(word).map_err(|error| self.not_a_number("stoull", "a whole number", word, error))
    }

    /// Takes a size in MiB and returns bytes, clamped like PyTorch's.
    pub(super) fn mib(&mut self) -> Result<u64, ConfigError> {
        Ok(self.whole()?.min(MAX_MIB) << 20)
    }

    /// Takes a real number.
    pub(super) fn real(&mut self) -> Result<f64, ConfigError> {
        let word = self.word()?;
        stod(word).map_err(|error| self.not_a_number("stod", "a number", word, error))
    }

    /// Takes `True` or `False`.
    pub(super) fn boolean(&mut self) -> Result<bool, ConfigError> {
        let index = self.at;
        match self.word()? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => Err(ConfigError::value(
                self.key,
                format!(
                    "Expected 'True' or 'False' at index {index} in ConfigTokenizer but got '{other}' (option '{}')",
                    self.key
                ),
            )),
        }
    }

    fn not_a_number(&self, function: &str, wanted: &str, word: &str, error: NumberError) -> ConfigError {
        let key = self.key;
        ConfigError::value(
            key,
            match error {
                NumberError::Missing => format!("{function}: option '{key}' needs {wanted}, got '{word}'"),
                NumberError::OutOfRange => format!("{function}: '{word}' is out of range for option '{key}'"),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_dropped_even_inside_words() {
        assert_eq!(tokenize(" ab cd : [1:\t2 ],\n>"), ["abcd", ":", "[", "1", ":", "2", "]", ",", ">"]);
        assert_eq!(tokenize("a\u{a0}b"), ["a\u{a0}b"]);
        assert!(tokenize(" \x0b\x0c\r").is_empty());
    }
}
