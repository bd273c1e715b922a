//! Figures that a process shows to `gpucache smi` and `gpucache top`.
//!
//! [`Allocator::export`](crate::Allocator::export) (or `GPUCACHE_EXPORT=1` in the environment) makes a file of 512
//! bytes that only its owner may read. A thread brings it up to date every 100 ms; allocations and frees do nothing
//! for it. [`exports`] reads the files of all processes, and removes those whose process is gone.
//!
//! The folder is `$GPUCACHE_EXPORT_DIR`, else `$XDG_RUNTIME_DIR`, else `/dev/shm`, else the folder for temporary
//! files. The file: `GPUCACHE`, version and length, a sequence number that is odd while the rest is being written,
//! and 61 words; all words are 64 bits in the machine's byte order.

mod folder;
mod layout;
mod process;
mod reader;
mod writer;

pub use folder::folders;
pub use layout::Exported;
pub use reader::{exports, exports_in};

pub(crate) use writer::ExportFile;
