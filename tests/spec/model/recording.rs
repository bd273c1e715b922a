//! Reads the recordings beside the repository (`../shared/golden`), where they are present.
//! The format is described in their README.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One request and what PyTorch answered.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) request: String,
    /// Words of each `+` line: code, address, size, stream.
    pub(crate) events: Vec<[String; 4]>,
    pub(crate) result: String,
    /// Changes of [`Recording::row`].
    pub(crate) deltas: Vec<i64>,
    /// Values of [`Recording::full`].
    pub(crate) full: Option<Vec<i64>>,
}

#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) case: String,
    pub(crate) conf: String,
    /// Made by the oracle: its device has the model's capacity and addresses.
    pub(crate) stand_in: bool,
    pub(crate) total_memory: u64,
    pub(crate) fraction: Option<f64>,
    pub(crate) streams: Vec<u64>,
    pub(crate) row: Vec<String>,
    pub(crate) full: Vec<String>,
    pub(crate) steps: Vec<Step>,
}

/// The folder, or `None` with the reason printed.
pub(crate) fn golden() -> Option<PathBuf> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR"));
    let candidates = ["../shared/golden", "../../shared/golden"].map(|path| base.join(path));
    let found = candidates.into_iter().find(|path| path.is_dir());
    if found.is_none() {
        println!("skipped: no recordings in ../shared/golden");
        return None;
    }
    if Command::new("zstd").arg("--version").output().is_err() {
        println!("skipped: the recordings need the `zstd` program");
        return None;
    }
    found
}

/// Path stems (without `.obs.zst`) of a folder's cases, sorted.
pub(crate) fn cases(folder: &Path) -> Vec<String> {
    let mut cases: Vec<String> = std::fs::read_dir(folder)
        .expect("a folder of recordings")
        .filter_map(|entry| {
            entry.expect("a folder entry").path().to_str()?.strip_suffix(".obs.zst").map(str::to_owned)
        })
        .collect();
    cases.sort();
    cases
}

pub(crate) fn read(stem: &str) -> Recording {
    let (requests, observed) = (unpack(&format!("{stem}.req.zst")), unpack(&format!("{stem}.obs.zst")));
    let mut lines = observed.lines();
    let header = lines.next().expect("a header");
    let mut steps: Vec<Step> =
        requests.lines().skip(1).map(|line| Step { request: line.to_owned(), ..Step::default() }).collect();
    let mut at = 0;
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers = |words: &[&str]| words.iter().map(|word| word.parse().expect("a number")).collect();
        match words[0] {
            "+" => steps[at].events.push([1, 2, 3, 4].map(|i| words[i].to_owned())),
            "@" => {
                words[1].clone_into(&mut steps[at].result);
                steps[at].deltas = numbers(&words[2..]);
                at += 1;
            }
            "*" => steps[at - 1].full = Some(numbers(&words[1..])),
            _ => {}
        }
    }
    let hex = |text: &String| u64::from_str_radix(text, 16).expect("a stream handle");
    Recording {
        case: text(header, "case"),
        conf: text(header, "alloc_conf"),
        stand_in: header.contains("\"standin\":true"),
        total_memory: raw(header, "total_memory").parse().expect("bytes"),
        fraction: raw(header, "fraction").parse().ok(),
        streams: list(header, "stream_ptrs").iter().map(hex).collect(),
        row: list(header, "row"),
        full: list(header, "full"),
        steps,
    }
}

fn unpack(path: &str) -> String {
    let output = Command::new("zstd").args(["-dcq", path]).output().expect("zstd runs");
    assert!(output.status.success(), "zstd cannot read {path}");
    String::from_utf8(output.stdout).expect("recordings are UTF-8")
}

/// What follows `"key":`. Headers are flat, with no escapes and no blanks.
fn after<'a>(header: &'a str, key: &str) -> &'a str {
    let mark = format!("\"{key}\":");
    let at = header.find(&mark).unwrap_or_else(|| panic!("the header has {key}"));
    &header[at + mark.len()..]
}

fn raw<'a>(header: &'a str, key: &str) -> &'a str {
    after(header, key).split([',', '}']).next().expect("a value")
}

fn text(header: &str, key: &str) -> String {
    after(header, key).split('"').nth(1).expect("a text").to_owned()
}

fn list(header: &str, key: &str) -> Vec<String> {
    let inside = after(header, key).split(['[', ']']).nth(1).expect("a list");
    inside.split(',').map(|entry| entry.trim_matches('"').to_owned()).collect()
}
