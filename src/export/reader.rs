//! Reads export files. They are read, not mapped: another process may cut them at any moment.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::layout::{BYTES, Body, Exported, HEAD, MAGIC, SEQUENCE, VERSION, WORDS};
use super::{folder, process};

/// A write takes less than a microsecond; a process that was stopped in the middle of one is left out.
const ATTEMPTS: usize = 100;
/// A file that cannot be judged by its process is shown for so long after its last update.
const FRESH_MS: u64 = 10_000;
/// And removed after so long.
const ABANDONED_MS: u64 = 86_400_000;

/// What all processes export that the caller may see, by device, process id and file name. Files whose process is
/// gone are removed.
pub fn exports() -> Vec<Exported> {
    exports_in(&folder::folders())
}

/// The same of the files in these folders.
pub fn exports_in(folders: &[PathBuf]) -> Vec<Exported> {
    let mut files: Vec<PathBuf> = folders.iter().flat_map(|folder| folder::files_in(folder)).collect();
    files.sort();
    let mut all: Vec<Exported> = files.iter().filter_map(|file| read_or_remove(file)).collect();
    all.sort_by_key(|exported| (exported.uuid, exported.device, exported.pid));
    all
}

/// Removes the files of processes that are gone.
pub(super) fn clean(folder: &Path) {
    for file in folder::files_in(folder) {
        read_or_remove(&file);
    }
}

fn read_or_remove(path: &Path) -> Option<Exported> {
    // Anybody may make a file in a shared folder, also a pipe that blocks who opens it.
    if !fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let exported = read(&mut file).ok()??;
    if !process::may_speak_for(&file.metadata().ok()?, exported.pid) {
        return None;
    }
    match state(&exported, process::pid_namespace(), now_ms()) {
        State::Live => return Some(exported),
        State::Unknown => {}
        // Whose file it is decides the system: somebody else's stays.
        State::Gone => drop(fs::remove_file(path)),
    }
    None
}

pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Live,
    Unknown,
    Gone,
}

/// A process id means nothing in another namespace (a container that shares the folder): then the age decides.
fn state(exported: &Exported, namespace: u64, now_ms: u64) -> State {
    if namespace != 0 && exported.pid_namespace == namespace {
        let same = process::start_time(exported.pid) == Some(exported.start_time);
        return if same { State::Live } else { State::Gone };
    }
    match now_ms.saturating_sub(exported.updated_ms) {
        age if age <= FRESH_MS => State::Live,
        age if age <= ABANDONED_MS => State::Unknown,
        _ => State::Gone,
    }
}

/// `None`: not an export file of this version, or one that is never at rest.
fn read(file: &mut File) -> io::Result<Option<Exported>> {
    let head: [u64; HEAD] = read_words(file, 0)?;
    if head[..SEQUENCE] != [MAGIC, VERSION] || file.metadata()?.len() != BYTES as u64 {
        return Ok(None);
    }
    for _ in 0..ATTEMPTS {
        // Three calls, so that the order of the reads is certain.
        let [before] = read_words(file, SEQUENCE)?;
        let body: Body = read_words(file, HEAD)?;
        let [after] = read_words(file, SEQUENCE)?;
        if before == after && before % 2 == 0 && before > 0 {
            return Ok(Some(Exported::from_body(&body)));
        }
        std::thread::yield_now();
    }
    Ok(None)
}

fn read_words<const N: usize>(file: &mut File, index: usize) -> io::Result<[u64; N]> {
    let mut bytes = [0; BYTES];
    let part = &mut bytes[..N.min(WORDS) * 8];
    file.seek(SeekFrom::Start(index as u64 * 8))?;
    file.read_exact(part)?;
    let mut words = part.chunks_exact(8).map(|chunk| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    Ok(std::array::from_fn(|_| words.next().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_is_known_by_its_start() {
        let pid = u64::from(std::process::id());
        let start_time = process::start_time(pid).unwrap();
        let own = Exported { pid, start_time, pid_namespace: 7, ..Exported::default() };
        assert_eq!(state(&own, 7, 0), State::Live);
        // The id was given out again.
        let reused = Exported { start_time: start_time + 1, ..own.clone() };
        assert_eq!(state(&reused, 7, 0), State::Gone);
        let gone = Exported { pid: u64::MAX, ..own };
        assert_eq!(state(&gone, 7, 0), State::Gone);
    }

    #[test]
    fn without_a_common_namespace_the_age_decides() {
        let exported = Exported { pid: u64::MAX, pid_namespace: 7, updated_ms: 1000, ..Exported::default() };
        for (now, expected) in [(1000, State::Live), (11_000, State::Live), (11_001, State::Unknown)] {
            assert_eq!(state(&exported, 8, now), expected, "{now}");
            assert_eq!(state(&exported, 0, now), expected, "{now}");
        }
        assert_eq!(state(&exported, 8, 1001 + ABANDONED_MS), State::Gone);
    }
}
