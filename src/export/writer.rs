//! Makes an export file and keeps it up to date.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

use memmap2::MmapRaw;

use super::layout::{BYTES, Exported, HEAD, MAGIC, SEQUENCE, VERSION, WORDS};
use super::{folder, process, reader};
use crate::engine::Core;
use crate::periodic::Periodic;

const INTERVAL: Duration = Duration::from_millis(100);

/// A file that is up to date until this is dropped; then it is removed.
#[derive(Debug)]
pub(crate) struct ExportFile {
    path: PathBuf,
    process: u32,
    _thread: Periodic,
}

impl ExportFile {
    /// Starts to export an allocator into the first folder that takes a file.
    pub(crate) fn start(core: &Arc<Core>) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for folder in folder::for_writing() {
            match Self::start_in(core, &folder) {
                Ok(file) => return Ok(file),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub(crate) fn start_in(core: &Arc<Core>, folder: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        reader::clean(folder);
        let process = std::process::id();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(folder::file_name(process, core.properties.ordinal, number));
        let started = Self::run(core, &path);
        if started.is_err() {
            // Of a file that was not made there is nothing to remove.
            let _ = fs::remove_file(&path);
        }
        let thread = started.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        Ok(ExportFile { path, process, _thread: thread })
    }

    fn run(core: &Arc<Core>, path: &Path) -> io::Result<Periodic> {
        let page = Page::create(path)?;
        let identity = identity(core);
        page.write(&current(core, &identity));
        let core: Weak<Core> = Arc::downgrade(core);
        Periodic::start("gpucache-export", INTERVAL, move || {
            let Some(core) = core.upgrade() else { return false };
            page.write(&current(&core, &identity));
            true
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ExportFile {
    fn drop(&mut self) {
        // A forked child has a copy of this value, but the file is its parent's.
        if self.process == std::process::id() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What does not change.
fn identity(core: &Core) -> Exported {
    let properties = &core.properties;
    let pid = u64::from(std::process::id());
    let uuid = u128::from_be_bytes(properties.uuid);
    Exported {
        pid,
        start_time: process::start_time(pid).unwrap_or(0),
        pid_namespace: process::pid_namespace(),
        process: process::name(),
        device: u64::from(properties.ordinal),
        uuid: [(uuid >> 64) as u64, uuid as u64],
        simulated: u64::from(properties.simulated),
        device_name: properties.name.clone(),
        total: properties.total_memory,
        ..Exported::default()
    }
}

fn current(core: &Core, identity: &Exported) -> Exported {
    let stats = core.stats();
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    Exported {
        updated_ms: reader::now_ms(),
        allowed: (core.fraction() * identity.total as f64).round() as u64,
        allocated: stats.memory_allocated(),
        max_allocated: stats.max_memory_allocated(),
        reserved: stats.memory_reserved(),
        max_reserved: stats.max_memory_reserved(),
        active: count(stats.active_bytes.all.current),
        inactive_split: count(stats.inactive_split_bytes.all.current),
        allocations: count(stats.allocation.all.current),
        allocations_made: count(stats.allocation.all.allocated),
        retries: count(stats.num_alloc_retries),
        ooms: count(stats.num_ooms),
        driver_calls: count(stats.num_device_alloc + stats.num_device_free),
        ..identity.clone()
    }
}

/// The mapped file.
struct Page {
    map: MmapRaw,
}

impl Page {
    fn create(path: &Path) -> io::Result<Self> {
        let mut file = create_private(path)?;
        // Written, not only set to its length: a full file system shall say so here, and not kill the process with
        // SIGBUS at the first store.
        file.write_all(&[0; BYTES])?;
        let page = Page { map: MmapRaw::map_raw(&file)? };
        page.words()[0].store(MAGIC, Ordering::Relaxed);
        page.words()[1].store(VERSION, Ordering::Relaxed);
        Ok(page)
    }

    #[allow(clippy::cast_ptr_alignment)] // argued below
    fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: the mapping begins at a page boundary, so it is aligned; it is `BYTES` long, the length of the
        // array, and lives as long as `self`. Every bit pattern is a valid word, and this process reaches the memory
        // through atomics only. Other processes read the file with system calls.
        unsafe { &*self.map.as_mut_ptr().cast::<[AtomicU64; WORDS]>() }
    }

    /// A sequence lock: readers start again if the number was odd or has changed. There is one writer.
    fn write(&self, exported: &Exported) {
        let words = self.words();
        let sequence = words[SEQUENCE].load(Ordering::Relaxed);
        words[SEQUENCE].store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in words[HEAD..].iter().zip(exported.to_body()) {
            word.store(value, Ordering::Relaxed);
        }
        words[SEQUENCE].store(sequence.wrapping_add(2), Ordering::Release);
    }
}

/// A new file that only its owner can open. It must not exist: in a shared folder somebody might have put a link
/// there.
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
