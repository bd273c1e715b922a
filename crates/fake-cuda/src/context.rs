//! Start, devices and contexts.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::books::{Books, CURRENT, Context};
use crate::errors::*;
use crate::{Answer, control, driver, put};

/// CUDA 13.0.
const DRIVER_VERSION: c_int = 13000;

fn known(books: &Books, device: c_int) -> Answer<usize> {
    if !books.initialized {
        return Err(NOT_INITIALIZED);
    }
    usize::try_from(device).ok().filter(|index| *index < books.devices.len()).ok_or(INVALID_DEVICE)
}

fn attribute(attribute: c_uint, device: usize) -> c_int {
    match attribute {
        33 => 0x1b + device as c_int, // PCI bus
        75 => 9,                      // compute capability
        102 | 103 | 110 => 1,         // virtual memory, descriptors, RDMA with virtual memory
        115 => 1,                     // memory pools
        1 => 1024,                    // threads per block
        10 => 32,                     // warp size
        16 => 132,                    // multiprocessors
        83 | 89 => 1,                 // managed memory
        41 => 1,                      // unified addressing
        _ => 0,
    }
}

/// The primary context of a device has a handle of its own, whether retained or not.
fn primary(device: usize) -> u64 {
    0xC0_0000_0000 + device as u64 * 0x1000
}

fn set_current(context: u64) {
    let _ = CURRENT.try_with(|stack| {
        let mut stack = stack.borrow_mut();
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
}

driver! {
    fn cuInit(flags: c_uint) |books| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if let Some(code) = std::env::var("FAKE_CUDA_INIT").ok().and_then(|text| text.parse().ok()).filter(|code| *code != SUCCESS) {
            return Err(code);
        }
        if books.devices.is_empty() {
            return Err(NO_DEVICE);
        }
        if !books.initialized {
            books.initialized = true;
            control::watch_exit();
        }
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) |_books| {
        put(version, DRIVER_VERSION)
    }

    fn cuDeviceGetCount(count: *mut c_int) |books| {
        if !books.initialized {
            return Err(NOT_INITIALIZED);
        }
        put(count, books.devices.len() as c_int)
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |books| {
        known(books, ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) |books| {
        let text = format!("Fake GPU {}", known(books, device)?);
        for (index, byte) in text.bytes().chain([0]).enumerate().take(length.max(0) as usize) {
            put(name.wrapping_add(index), byte as c_char)?;
        }
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |books| {
        let device = known(books, device)?;
        put(bytes, books.devices[device].memory)
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |books| {
        let mut bytes = *b"fake-cuda-gpu--\0";
        bytes[15] = known(books, device)? as u8;
        put(uuid, bytes)
    }

    fn cuDeviceGetAttribute(value: *mut c_int, which: c_uint, device: c_int) |books| {
        let device = known(books, device)?;
        put(value, attribute(which, device))
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |books| {
        put(can, c_int::from(known(books, device)? != known(books, peer)?))
    }

    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) |books| {
        let device = known(books, device)?;
        let handle = primary(device);
        let book = books.contexts.entry(handle).or_insert_with(|| Context {
            device,
            references: 0,
            peers: BTreeSet::new(),
        });
        book.references += 1;
        put(context, handle as *mut c_void)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |books| {
        let handle = primary(known(books, device)?);
        let Some(book) = books.contexts.get_mut(&handle) else {
            return books.violation(INVALID_CONTEXT, "primary context released once too often".to_owned());
        };
        book.references -= 1;
        if book.references == 0 {
            books.contexts.remove(&handle);
        }
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut *mut c_void) |books| {
        if !books.initialized {
            return Err(NOT_INITIALIZED);
        }
        let current = CURRENT.try_with(|stack| stack.borrow().last().copied()).ok().flatten();
        put(context, current.unwrap_or(0) as *mut c_void)
    }

    fn cuCtxSetCurrent(context: *mut c_void) |books| {
        let context = context as u64;
        if context != 0 && !books.contexts.contains_key(&context) {
            return books.violation(INVALID_CONTEXT, format!("context {context:#x} made current after its end"));
        }
        set_current(context);
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: *mut c_void) |books| {
        if !books.contexts.contains_key(&(context as u64)) {
            return Err(INVALID_CONTEXT);
        }
        let _ = CURRENT.try_with(|stack| stack.borrow_mut().push(context as u64));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut *mut c_void) |_books| {
        let popped = CURRENT.try_with(|stack| stack.borrow_mut().pop()).ok().flatten();
        crate::put_if(context, popped.ok_or(INVALID_CONTEXT)? as *mut c_void);
        Ok(())
    }

    fn cuCtxGetDevice(device: *mut c_int) |books| {
        let current = books.device("cuCtxGetDevice")?;
        put(device, current as c_int)
    }

    fn cuCtxSynchronize() |books| {
        let context = books.context("cuCtxSynchronize")?;
        books.prohibit_during_capture("cuCtxSynchronize")?;
        books.finish_all(context);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: *mut c_void, flags: c_uint) |books| {
        let own = books.context("cuCtxEnablePeerAccess")?;
        let peer = peer as u64;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if peer == own || !books.contexts.contains_key(&peer) {
            return Err(INVALID_DEVICE);
        }
        let fresh = books.contexts.get_mut(&own).is_some_and(|context| context.peers.insert(peer));
        if fresh { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }
}
