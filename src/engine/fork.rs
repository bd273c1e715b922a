//! A forked child has the parent's books, but neither its GPU nor its threads: locks may be held for ever.
//!
//! The child's handler moves a number that every entry compares with the one it was born under, so that no hit has to
//! ask for the process id. Nothing is locked, and the driver is never called, once they differ.

#[cfg(unix)]
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Core;
use crate::error::{Error, Result};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that an allocator was made in.
#[derive(Debug, Clone)]
pub(crate) struct Birth {
    generation: u32,
    process: u32,
}

impl Default for Birth {
    /// This process.
    fn default() -> Self {
        watch();
        Birth { generation: GENERATION.load(Ordering::Relaxed), process: std::process::id() }
    }
}

impl Birth {
    /// Whether this is a child of that process.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        GENERATION.load(Ordering::Relaxed) != self.generation
    }

    /// The error of every call in a forked child.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_forked() { Err(self.forked()) } else { Ok(()) }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::Forked { owner: self.process, child: std::process::id() }
    }
}

#[cfg(unix)]
fn watch() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed between fork and exec. It fails for lack of
        // memory alone; forked children go unnoticed then.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// There is no fork.
#[cfg(not(unix))]
fn watch() {}

impl Core {
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.shared.birth.is_forked()
    }

    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        self.shared.birth.check()
    }
}
