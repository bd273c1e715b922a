//! Finds recordings in folders.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A recording: its name and its two files. Either may be missing on disk; opening it then says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) req: PathBuf,
    pub(crate) obs: PathBuf,
}

/// What a file name says: the case's name, the part and the ending behind it (`""` or `".zst"`).
fn parts(path: &Path) -> Option<(&str, &str, &str)> {
    let file = path.file_name()?.to_str()?;
    let (plain, ending) = file.strip_suffix(".zst").map_or((file, ""), |plain| (plain, ".zst"));
    let (name, part) = plain.rsplit_once('.')?;
    ["req", "obs"].contains(&part).then_some((name, part, ending))
}

/// The recordings at `paths`, in order of their paths: folders are searched with all their folders, of a file the
/// other part is taken from beside it.
pub(crate) fn find(paths: &[PathBuf]) -> io::Result<Vec<Case>> {
    let mut found = BTreeMap::new();
    for path in paths {
        if fs::metadata(path).map_err(|e| named(path, &e))?.is_dir() {
            search(path, &mut found)?;
        } else if !add(path, &mut found) {
            let what = format!("{}: a recording is named NAME.req[.zst] or NAME.obs[.zst]", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
    }
    Ok(found.into_values().collect())
}

fn search(folder: &Path, found: &mut BTreeMap<PathBuf, Case>) -> io::Result<()> {
    for entry in fs::read_dir(folder).map_err(|e| named(folder, &e))? {
        let entry = entry.map_err(|e| named(folder, &e))?;
        // Links to folders are not followed: they may lead in a circle.
        if entry.file_type().map_err(|e| named(&entry.path(), &e))?.is_dir() {
            search(&entry.path(), found)?;
        } else {
            add(&entry.path(), found);
        }
    }
    Ok(())
}

fn add(path: &Path, found: &mut BTreeMap<PathBuf, Case>) -> bool {
    let Some(case) = of_file(path) else { return false };
    found.insert(path.with_file_name(&case.name), case);
    true
}

/// The recording that a file is a part of, by its name.
pub(crate) fn of_file(path: &Path) -> Option<Case> {
    let (name, _, ending) = parts(path)?;
    let sibling = |part: &str| {
        let same = path.with_file_name(format!("{name}.{part}{ending}"));
        let other =
            path.with_file_name(format!("{name}.{part}{}", if ending.is_empty() { ".zst" } else { "" }));
        if !same.exists() && other.exists() { other } else { same }
    };
    Some(Case { name: name.to_owned(), req: sibling("req"), obs: sibling("obs") })
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
