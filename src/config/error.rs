//! What can be wrong with a text of options.

/// A text of options, or a combination of options, that cannot be accepted.
///
/// Where PyTorch has a sentence for the mistake, the message begins with it [spec 15.2, 15.3].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No option has this name.
    #[error("Unrecognized key '{key}' in allocator config.{}", nearest.as_ref().map(|n| format!(" Did you mean '{n}'?")).unwrap_or_default())]
    UnknownKey {
        /// The name given.
        key: String,
        /// The nearest known name, if one is near.
        nearest: Option<String>,
    },
    /// The value does not fit the option.
    #[error("{message}")]
    InvalidValue {
        /// The option.
        key: String,
        /// What is wrong, in PyTorch's words where it has some [spec 15.3].
        message: String,
    },
    /// PyTorch has this value or option; gpucache does not.
    #[error("allocator option {key}:{value} is not supported by gpucache: {advice}")]
    Unsupported {
        /// The option.
        key: String,
        /// The value given.
        value: String,
        /// What to do instead.
        advice: &'static str,
    },
    /// The text does not follow the grammar [spec 15.2].
    #[error("{message}")]
    Syntax {
        /// What is wrong and where.
        message: String,
    },
    /// Two options that cannot hold together.
    #[error("options '{first}' and '{second}' cannot be combined: {reason}")]
    Conflict {
        /// One option.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// The text of an environment variable is at fault.
    #[error("{variable}: {error}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong with its text.
        #[source]
        error: Box<ConfigError>,
    },
}

impl ConfigError {
    pub(super) fn value(key: &str, message: impl Into<String>) -> Self {
        ConfigError::InvalidValue { key: key.to_owned(), message: message.into() }
    }

    pub(super) fn syntax(message: impl Into<String>) -> Self {
        ConfigError::Syntax { message: message.into() }
    }
}
