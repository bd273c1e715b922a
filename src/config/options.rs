//! What an option is, and how options are found by name.

use super::Config;
use super::error::ConfigError;
pub use super::table::OPTIONS;
use super::tokens::Cursor;

/// One option: its text form and what to know about it. [`OPTIONS`] has all of them.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConfigOption {
    /// Its key in a text of options.
    pub name: &'static str,
    /// Other keys for it.
    pub aliases: &'static [&'static str],
    /// Where it comes from: the PyTorch release that first has it, or gpucache.
    pub origin: &'static str,
    /// Which values it takes.
    pub range: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// How it depends on other options and calls.
    pub interaction: &'static str,
    /// What a user gains by it.
    pub gain: &'static str,
    pub(super) parser: Parser,
    pub(super) set: fn(&mut Config, &mut Cursor<'_>) -> Result<(), ConfigError>,
    pub(super) show: fn(&Config) -> String,
}

/// Which of the readings of a text takes the option [spec 15.2]. Their order decides which of several mistakes
/// is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parser {
    /// Before everything else: other options' bounds depend on it.
    Ahead,
    /// PyTorch's common parser.
    Common,
    /// PyTorch's CUDA parser; gpucache's own options too.
    Cuda,
}

impl ConfigOption {
    /// Its value in `config`, as text.
    pub fn value(&self, config: &Config) -> String {
        (self.show)(config)
    }

    /// Its default, as text.
    pub fn default_value(&self) -> String {
        self.value(&Config::default())
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

/// The option with this key.
pub fn find(key: &str) -> Option<&'static ConfigOption> {
    OPTIONS.iter().find(|option| option.names().any(|name| name == key))
}

/// The known key nearest to `key`, if a slip of the pen could explain the difference.
pub(super) fn nearest(key: &str) -> Option<String> {
    // A foreign text can be long, and the distance is quadratic.
    let key: String = key.chars().take(80).collect();
    let (distance, name) =
        OPTIONS.iter().flat_map(ConfigOption::names).map(|name| (edit_distance(&key, name), name)).min()?;
    (distance <= (name.len() / 3).max(2)).then(|| name.to_owned())
}

/// Levenshtein's distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("same", "same"), 0);
    }

    #[test]
    fn nearest_keys() {
        assert_eq!(nearest("max_split_size").as_deref(), Some("max_split_size_mb"));
        assert_eq!(nearest("expandable_segment").as_deref(), Some("expandable_segments"));
        assert_eq!(nearest("max_split_size_mb=100").as_deref(), Some("max_split_size_mb"));
        assert_eq!(nearest("xyz"), None);
        assert_eq!(nearest(&"a".repeat(1 << 20)), None);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = OPTIONS.iter().flat_map(ConfigOption::names).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
