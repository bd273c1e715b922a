//! Showing the figures to `gpucache smi` and `gpucache top`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Allocator;
use crate::engine::Core;
use crate::export::ExportFile;

/// The export of one allocator, once it was asked for.
pub(super) type Slot = Mutex<Option<ExportFile>>;

impl Allocator {
    /// Shows this allocator's figures to other processes of the same user (see [`export`](crate::export)), until its
    /// last handle goes. A second call changes nothing. Returns the file.
    ///
    /// # Errors
    /// No file can be made in any of the folders, or no thread started.
    pub fn export(&self) -> io::Result<PathBuf> {
        self.export_with(ExportFile::start)
    }

    /// The same with a file in this folder.
    ///
    /// # Errors
    /// The file cannot be made, or no thread started.
    pub fn export_in(&self, folder: &Path) -> io::Result<PathBuf> {
        self.export_with(|core| ExportFile::start_in(core, folder))
    }

    fn export_with(&self, start: impl FnOnce(&Arc<Core>) -> io::Result<ExportFile>) -> io::Result<PathBuf> {
        let mut slot = self.owner.export.lock();
        let file = match slot.take() {
            Some(file) => file,
            None => start(self.core())?,
        };
        Ok(slot.insert(file).path().to_owned())
    }

    /// As the environment says. An allocator that cannot be shown works all the same.
    pub(super) fn export_if_asked(&self) {
        if std::env::var_os("GPUCACHE_EXPORT").is_some_and(|value| value == "1")
            && let Err(error) = self.export()
        {
            eprintln!("gpucache: GPUCACHE_EXPORT has no effect: {error}");
        }
    }
}
