//! Where export files are.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

const SHARED_MEMORY: &str = "/dev/shm";
/// Where systemd keeps every user's `XDG_RUNTIME_DIR`.
const RUNTIME_FOLDERS: &str = "/run/user";
const PREFIX: &str = "gpucache-";
const ENDING: &str = ".export";

/// The folders for a new file, best first.
pub(super) fn for_writing() -> Vec<PathBuf> {
    if let Some(folder) = variable("GPUCACHE_EXPORT_DIR") {
        return vec![folder];
    }
    let runtime = variable("XDG_RUNTIME_DIR");
    runtime.into_iter().chain([PathBuf::from(SHARED_MEMORY), env::temp_dir()]).collect()
}

/// The folders where [`exports`](super::exports) looks. All of them, because the exporting process may have had
/// another environment; those that cannot be read are skipped.
pub fn folders() -> Vec<PathBuf> {
    let mut folders = for_writing();
    if variable("GPUCACHE_EXPORT_DIR").is_none() {
        // Of other users only the administrator can read them.
        let users = fs::read_dir(RUNTIME_FOLDERS).into_iter().flatten().flatten();
        folders.extend(users.map(|user| user.path()));
    }
    folders.sort();
    folders.dedup();
    folders
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

pub(super) fn file_name(pid: u32, device: u32, number: u32) -> String {
    format!("{PREFIX}{pid}-{device}-{number}{ENDING}")
}

/// The files in a folder that are named like exports.
pub(super) fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(ENDING))
    };
    entries.filter(named).map(|entry| entry.path()).collect()
}
