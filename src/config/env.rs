//! Options from the environment [spec 15.1].

use std::ffi::OsString;

use super::Config;
use super::error::ConfigError;

/// Variables with a text of options. The first one that is set counts, even when it is empty.
const TEXTS: [&str; 4] =
    ["GPUCACHE_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// Variables that turn caching off when they are exactly `1`.
const NO_CACHING: [&str; 2] = ["GPUCACHE_NO_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING"];

impl Config {
    /// The configuration that the environment asks for.
    ///
    /// `GPUCACHE_ALLOC_CONF` wins over `PYTORCH_CUDA_ALLOC_CONF`, that over `PYTORCH_HIP_ALLOC_CONF`, that over
    /// `PYTORCH_ALLOC_CONF`; the texts of the others are not read. `GPUCACHE_NO_CACHING=1` or
    /// `PYTORCH_NO_CUDA_MEMORY_CACHING=1` turns caching off.
    ///
    /// # Errors
    /// [`ConfigError::Environment`] with the variable's name and what is wrong with its text.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The same for any set of variables.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        let mut config = match TEXTS.iter().find_map(|name| Some((*name, get(name)?))) {
            None => Config::default(),
            Some((variable, text)) => parse_os(text)
                .map_err(|error| ConfigError::Environment { variable, error: Box::new(error) })?,
        };
        if NO_CACHING.iter().any(|name| get(name).is_some_and(|value| value == "1")) {
            config.caching = false;
        }
        Ok(config)
    }
}

fn parse_os(text: OsString) -> Result<Config, ConfigError> {
    let text = text.into_string().map_err(|text| {
        ConfigError::syntax(format!("the options are not valid UTF-8: {}", text.display()))
    })?;
    Config::parse(&text)
}
