//! Options: grammar, bounds, texts, round trips [spec 2.2, 15].

#![allow(clippy::unwrap_used)] // helpers of tests

mod environment;
mod manual;
mod own;
mod pytorch;
mod round_trips;
mod settings;
mod tables;

use gpucache::Config;

const MIB: u64 = 1 << 20;

fn parse(text: &str) -> Config {
    Config::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> String {
    Config::parse(text).expect_err(text).to_string()
}

/// Slots of `roundup_power2_divisions:VALUE`.
fn slots(value: &str) -> [u32; 16] {
    parse(&format!("roundup_power2_divisions:{value}")).roundup_power2_divisions.0
}
