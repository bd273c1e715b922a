//! Which process a file belongs to, and whether it still runs. Linux tells in `/proc`; elsewhere the answers are 0 or
//! `None`, and files are judged by their age.

use std::fs;

/// Clock ticks from boot to the start of a process; `None` if there is no such process.
pub(super) fn start_time(pid: u64) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in the second field may hold blanks and brackets; field 22 is the 20th behind it.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// The namespace of the calling process's id; 0 where unknown.
pub(super) fn pid_namespace() -> u64 {
    let link = fs::read_link("/proc/self/ns/pid").ok();
    let number = link
        .as_deref()
        .and_then(|link| link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok());
    number.unwrap_or(0)
}

/// Name of the calling program.
pub(super) fn name() -> String {
    let short = fs::read_to_string("/proc/self/comm").map(|name| name.trim_end().to_owned());
    short.unwrap_or_else(|_| {
        let path = std::env::current_exe().ok();
        path.and_then(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).unwrap_or_default()
    })
}

/// Whether a file of `file`'s owner may speak for process `pid`: the owner is the caller or the process's owner.
#[cfg(unix)]
pub(super) fn may_speak_for(file: &fs::Metadata, pid: u64) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner_of = |process: &str| fs::metadata(format!("/proc/{process}")).ok().map(|process| process.uid());
    let owner = Some(file.uid());
    owner == owner_of("self") || owner == owner_of(&pid.to_string())
}

#[cfg(not(unix))]
pub(super) fn may_speak_for(_file: &fs::Metadata, _pid: u64) -> bool {
    true
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_is_known() {
        assert!(start_time(u64::from(std::process::id())).is_some_and(|time| time > 0));
        assert_eq!(start_time(u64::MAX), None);
        assert!(pid_namespace() > 0);
        assert!(!name().is_empty());
    }
}
