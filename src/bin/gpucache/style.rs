//! Colours. Printed through `anstream`, which drops them where the output is no terminal or `NO_COLOR` is set.

use anstyle::{AnsiColor, Style};

pub(crate) const HEAD: Style = Style::new().bold();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const FAINT: Style = Style::new().dimmed();

/// The text in a style.
pub(crate) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}
