//! A `libcuda.so` without a GPU: it keeps the books of one, so that the real CUDA code path runs, and can be made to
//! fail, on any Linux machine.
//!
//! Device memory is host memory (addresses are real, so copies and memsets work), physical memory is a memory file
//! (so aliased mappings and sharing between processes work), and a stream's work is done at once unless a test holds
//! the stream. What this driver does not know it does not export.
//!
//! | environment variable | meaning | default |
//! | --- | --- | --- |
//! | `FAKE_CUDA_DEVICES` | number of GPUs; 0 makes `cuInit` answer "no device" | 1 |
//! | `FAKE_CUDA_MEMORY` | bytes of each GPU | 80 GiB |
//! | `FAKE_CUDA_INIT` | error number that `cuInit` answers | 0 |
//! | `FAKE_CUDA_FAIL` | `NAME:NTH:CODE`: that call fails, see `fake_cuda_fail` in `control` | none |
//! | `FAKE_CUDA_LOG` | file to which every call is appended | none |
//! | `FAKE_CUDA_STRICT` | exit with status 86 if anything leaked or was misused | off |
#![allow(non_snake_case)] // the driver's names

mod backing;
mod books;
mod capture;
mod context;
mod control;
mod errors;
mod events;
mod kernels;
mod memory;
mod share;
mod streams;
mod vmm;

use std::sync::{Mutex, PoisonError};

use books::Books;

/// What an entry point answers: `Err` is a `CUresult` other than success.
type Answer<T = ()> = Result<T, u32>;

static BOOKS: Mutex<Option<Books>> = Mutex::new(None);

fn with_books<R>(body: impl FnOnce(&mut Books) -> R) -> R {
    let mut books = BOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    body(books.get_or_insert_with(Books::from_environment))
}

/// The frame of every entry point: faults and the log, and the lock around both and the call itself.
fn enter(name: &'static str, body: impl FnOnce(&mut Books) -> Answer) -> u32 {
    with_books(|books| {
        let code = match books.counted(name) {
            Some(injected) => injected,
            None => body(books).err().unwrap_or(errors::SUCCESS),
        };
        books.log(name, code);
        code
    })
}

/// Declares entry points: the body works on the books and answers `Err` with an error number.
macro_rules! driver {
    ($( $(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$books:ident| $body:block )*) => {$(
        $(#[$doc])*
        /// # Safety
        ///
        /// As the CUDA manual asks: pointers are null or valid for what is read and written.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::enter(stringify!($name), |$books| $body)
        }
    )*};
}
use driver;

/// Writes an answer to a place that the program gave.
fn put<T>(place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return Err(errors::INVALID_VALUE);
    }
    // SAFETY: every entry point's contract is that places for answers are null or valid.
    unsafe { place.write(value) };
    Ok(())
}

/// Like [`put`], for answers that the program may leave out.
fn put_if<T>(place: *mut T, value: T) {
    let _ = put(place, value);
}
