//! Three kernels that every module has, so that launches can be tested.
//!
//! | name | arguments | effect |
//! | --- | --- | --- |
//! | `fill_u32` | `u32 *out, u32 value, u64 n` | `out[i] = value` |
//! | `add_u32` | `u32 *out, u32 value, u64 n` | `out[i] += value`, wrapping |
//! | `count_other_u32` | `u32 *data, u32 value, u64 n, u32 *count` | `*count += ` how many `data[i] != value` |

use std::ffi::{CStr, c_char, c_uint, c_void};

use crate::capture::Op;
use crate::errors::*;
use crate::{driver, put};

#[derive(Clone, Copy)]
enum Kernel {
    Fill,
    Add,
    CountOther { count: u64 },
}

/// A launch, with its arguments.
#[derive(Clone)]
pub struct Launch {
    kernel: Kernel,
    out: u64,
    value: u32,
    count: u64,
}

impl Launch {
    pub fn address(&self) -> u64 {
        self.out
    }

    pub fn bytes(&self) -> usize {
        self.count as usize * size_of::<u32>()
    }

    /// Where the answer goes, if there is one.
    pub fn answer(&self) -> Option<u64> {
        match self.kernel {
            Kernel::CountOther { count } => Some(count),
            Kernel::Fill | Kernel::Add => None,
        }
    }

    pub fn run(&self) {
        for index in 0..self.count {
            let place = (self.out as *mut u32).wrapping_add(index as usize);
            // SAFETY: `check_op` found the whole range allocated just now.
            unsafe {
                match self.kernel {
                    Kernel::Fill => place.write_unaligned(self.value),
                    Kernel::Add => place.write_unaligned(place.read_unaligned().wrapping_add(self.value)),
                    Kernel::CountOther { count } => {
                        let count = count as *mut u32;
                        let other = u32::from(place.read_unaligned() != self.value);
                        count.write_unaligned(count.read_unaligned().wrapping_add(other));
                    }
                }
            }
        }
    }
}

const MODULE: u64 = 0xFB_0000_0000;
const FILL: u64 = MODULE + 1;
const ADD: u64 = MODULE + 2;
const COUNT_OTHER: u64 = MODULE + 3;

/// Reads argument `index`; each element of the array points to an argument.
///
/// # Safety
///
/// The array holds a pointer to a `T` there.
unsafe fn argument<T: Copy>(arguments: *const *const c_void, index: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { (*arguments.add(index)).cast::<T>().read_unaligned() }
}

driver! {
    fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) |books| {
        books.context("cuModuleLoadData")?;
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        put(module, MODULE as *mut c_void)
    }

    fn cuModuleUnload(module: *mut c_void) |books| {
        books.context("cuModuleUnload")?;
        if module as u64 == MODULE { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    fn cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) |_books| {
        if module as u64 != MODULE || name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the manual makes the name a C string.
        let handle = match unsafe { CStr::from_ptr(name) }.to_bytes() {
            b"fill_u32" => FILL,
            b"add_u32" => ADD,
            b"count_other_u32" => COUNT_OTHER,
            _ => return Err(NOT_FOUND),
        };
        put(function, handle as *mut c_void)
    }

    fn cuLaunchKernel(
        function: *mut c_void,
        _grid_x: c_uint, _grid_y: c_uint, _grid_z: c_uint,
        _block_x: c_uint, _block_y: c_uint, _block_z: c_uint,
        _shared_bytes: c_uint, stream: *mut c_void, arguments: *const *const c_void, _extra: *const *const c_void,
    ) |books| {
        if arguments.is_null() {
            return Err(INVALID_VALUE);
        }
        let kernel = match function as u64 {
            FILL => Kernel::Fill,
            ADD => Kernel::Add,
            // SAFETY: this kernel has a fourth argument, and the manual makes the array hold a pointer to each.
            COUNT_OTHER => Kernel::CountOther { count: unsafe { argument(arguments, 3) } },
            _ => return Err(INVALID_HANDLE),
        };
        // SAFETY: all kernels begin with these three arguments; see above.
        let (out, value, count) = unsafe { (argument(arguments, 0), argument(arguments, 1), argument(arguments, 2)) };
        let op = Op::Kernel(Launch { kernel, out, value, count });
        let device = books.device("cuLaunchKernel")?;
        books.check_op(device, &op)?;
        books.submit("cuLaunchKernel", stream as u64, op)
    }
}
