//! Reading a text of options in PyTorch's order [spec 15.1, 15.2].

use super::error::ConfigError;
use super::options::{self, OPTIONS, Parser};
use super::tokens::{Cursor, tokenize};
use super::{Config, Divisions};

/// Puts the options of `text` into `config`, as PyTorch's settings call does: four options that the text does
/// not name fall back to their defaults. On an error `config` is left half changed.
pub(super) fn apply(config: &mut Config, text: &str) -> Result<(), ConfigError> {
    text.clone_into(&mut config.source);
    config.max_split_size = None;
    config.max_non_split_rounding = None;
    config.garbage_collection_threshold = 0.0;
    config.roundup_power2_divisions = Divisions::default();

    let tokens = tokenize(text);
    read_ahead(config, &tokens)?;
    read(config, &tokens, Parser::Common)?;
    read(config, &tokens, Parser::Cuda)
}

/// Options that are found wherever their name stands, even inside lists. The last one wins.
fn read_ahead(config: &mut Config, tokens: &[String]) -> Result<(), ConfigError> {
    for option in OPTIONS.iter().filter(|option| option.parser == Parser::Ahead) {
        for at in (0..tokens.len()).filter(|at| tokens[*at] == option.name) {
            (option.set)(config, &mut Cursor::on_value_of(tokens, at))?;
        }
    }
    Ok(())
}

/// One reading of the text, which takes the options of `parser` and skips the others.
fn read(config: &mut Config, tokens: &[String], parser: Parser) -> Result<(), ConfigError> {
    let mut cursor = Cursor::new(tokens);
    while let Some(key) = cursor.next_key() {
        match options::find(key) {
            Some(option) if option.parser == parser => (option.set)(config, &mut cursor)?,
            Some(_) => cursor.skip_value()?,
            None => {
                return Err(ConfigError::UnknownKey { key: key.to_owned(), nearest: options::nearest(key) });
            }
        }
        cursor.skip();
    }
    Ok(())
}
