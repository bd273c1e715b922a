//! PyTorch's own answers.

use gpucache::Config;
use gpucache::config::ConfigError;

/// Settings calls answered by PyTorch 2.11.0 itself: `text, "ok", values...` or `text, error` ("assert" for its
/// internal assertions). Made from hand-picked and random texts; each started from the default settings.
#[test]
fn every_text_is_read_as_pytorch_reads_it() {
    for line in include_str!("../data/config_pytorch.tsv").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let outcome = Config::parse(fields[0]);
        match (&outcome, fields[1]) {
            // Refused here with a reason of its own: pages that the driver cannot make.
            (Err(ConfigError::Conflict { first: "expandable_segments", .. }), "ok") => {}
            (Ok(config), "ok") => assert_eq!(values(config), fields[2..], "{line}"),
            (Err(error), expected) => assert!(same_mistake(error, expected), "{line}\n{error:?}"),
            (Ok(config), expected) => {
                assert!(fields[0].starts_with("throw_on"), "accepted: {line}\n{expected}\n{config}");
            }
        }
    }
}

fn values(config: &Config) -> Vec<String> {
    let flag = |on: bool| u8::from(on).to_string();
    let slots = config.roundup_power2_divisions.0.map(|slot| slot.to_string());
    vec![
        (config.max_split_bytes() as i64).to_string(),
        format!("{:?}", config.garbage_collection_threshold),
        flag(config.expandable_segments),
        config.pinned.num_register_threads.to_string(),
        flag(config.release_lock_on_cudamalloc),
        flag(config.pinned.use_host_register),
        flag(config.graph_capture_record_stream_reuse),
        slots.join(" "),
    ]
}

fn same_mistake(error: &ConfigError, pytorch: &str) -> bool {
    match error {
        ConfigError::UnknownKey { key, .. } => pytorch.starts_with(&format!("Unrecognized key '{key}' in ")),
        ConfigError::InvalidValue { message, .. } => message.starts_with(pytorch),
        ConfigError::Syntax { .. } | ConfigError::Unsupported { .. } => pytorch == "assert",
        _ => false,
    }
}
