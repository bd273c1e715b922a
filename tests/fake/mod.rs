//! The fake driver's own functions, for tests that run on it.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test binary uses its part

pub mod driver;

use std::ffi::{CString, c_char};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::Library;

/// Mirrors the fake driver's `Report`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub allocations: u64,
    pub allocated_bytes: u64,
    pub host_ranges: u64,
    pub opened: u64,
    pub reservations: u64,
    pub mappings: u64,
    pub physical: u64,
    pub events: u64,
    pub streams: u64,
    pub contexts: u64,
    pub violations: u64,
    pub calls: u64,
}

/// The fake driver, for one test at a time: its books are the process's.
pub struct Fake {
    library: Library,
    _alone: MutexGuard<'static, ()>,
}

/// Held by each test for as long as it runs.
static ALONE: Mutex<()> = Mutex::new(());

/// The fake driver if the test runs on it; otherwise says why the test is skipped.
pub fn fake() -> Option<Fake> {
    let Some(dir) = std::env::var_os("GPUCACHE_FAKE_CUDA_DIR") else {
        println!("skipped: needs the fake driver; run .ci/fake-cuda.sh");
        return None;
    };
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the fake driver's initialisers have no preconditions.
    let library = unsafe { Library::new(Path::new(&dir).join("libcuda.so")) }.unwrap();
    let fake = Fake { library, _alone: alone };
    fake.clear();
    Some(fake)
}

impl Fake {
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        // SAFETY: the function has this signature, and `report` is its own structure.
        unsafe {
            self.library.get::<unsafe extern "C" fn(*mut Report)>(b"fake_cuda_report").unwrap()(
                &raw mut report,
            );
        };
        report
    }

    /// Everything that is alive, without the counters.
    pub fn alive(&self) -> Report {
        Report { violations: 0, calls: 0, contexts: 0, ..self.report() }
    }

    pub fn violations(&self) -> String {
        let mut buffer = vec![0_u8; 1 << 16];
        // SAFETY: the function has this signature and writes at most the given length.
        let length = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*mut u8, usize) -> usize>(b"fake_cuda_violations")
                .unwrap()(buffer.as_mut_ptr(), buffer.len())
        };
        buffer.truncate(length);
        String::from_utf8(buffer).unwrap()
    }

    /// See `fake_cuda_fail`: the nth call from now, or with 0 every call; a code of 0 takes it back.
    pub fn fail(&self, name: &str, nth: u64, code: u32) {
        let name = CString::new(name).unwrap();
        // SAFETY: the function has this signature; the name lives through the call.
        unsafe {
            self.library.get::<unsafe extern "C" fn(*const c_char, u64, u32)>(b"fake_cuda_fail").unwrap()(
                name.as_ptr(),
                nth,
                code,
            );
        }
    }

    pub fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        // SAFETY: as above.
        unsafe {
            self.library.get::<unsafe extern "C" fn(*const c_char) -> u64>(b"fake_cuda_calls").unwrap()(
                name.as_ptr(),
            )
        }
    }

    /// Holds a stream's work back, or lets it run. The stream's context must be current.
    pub fn hold(&self, stream: u64, hold: bool) {
        // SAFETY: the function has this signature and checks the stream.
        let known = unsafe {
            self.library.get::<unsafe extern "C" fn(u64, bool) -> bool>(b"fake_cuda_hold").unwrap()(
                stream, hold,
            )
        };
        assert!(known, "no such stream");
    }

    /// Forgets all memory and events, as when the driver has shut down.
    pub fn forget_memory(&self) {
        // SAFETY: the function has this signature; the tests no longer use the memory.
        unsafe { self.library.get::<unsafe extern "C" fn()>(b"fake_cuda_forget_memory").unwrap()() };
    }

    /// Forgets violations and faults.
    pub fn clear(&self) {
        // SAFETY: the function has this signature.
        unsafe { self.library.get::<unsafe extern "C" fn()>(b"fake_cuda_clear").unwrap()() };
    }

    /// Fails the test if the driver saw any misuse.
    pub fn assert_clean(&self) {
        assert_eq!(self.violations(), "");
    }
}
