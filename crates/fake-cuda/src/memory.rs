//! Ordinary device memory, page-locked host memory, copies and fills.

use std::ffi::{c_int, c_uint, c_void};

use crate::backing::{self, Backing};
use crate::books::{Books, Kind, Region};
use crate::capture::Op;
use crate::errors::*;
use crate::{Answer, driver, put};

fn allocate(books: &mut Books, call: &str, kind: Kind, bytes: usize) -> Answer<u64> {
    let device = books.device(call)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if kind == Kind::Device {
        books.charge(device, bytes)?;
    }
    let made = Backing::new(bytes).and_then(|backing| Ok((backing.map()?, backing)));
    let (address, backing) = match made {
        Ok(made) => made,
        Err(code) => {
            if kind == Kind::Device {
                books.refund(device, bytes);
            }
            return Err(code);
        }
    };
    books.regions.insert(address, Region { kind, bytes, device, backing: Some(backing) });
    Ok(address)
}

fn free(books: &mut Books, call: &str, kinds: &[Kind], address: u64) -> Answer {
    books.context(call)?;
    match books.regions.get(&address) {
        Some(region) if kinds.contains(&region.kind) => {}
        _ => {
            let text = format!("{call} of {address:#x}: not allocated, freed before, or of another kind");
            return books.violation(INVALID_VALUE, text);
        }
    }
    if let Some(region) = books.regions.remove(&address) {
        backing::release(address, region.bytes);
        if region.kind == Kind::Device {
            books.refund(region.device, region.bytes);
        }
    }
    Ok(())
}

/// A copy or fill, on a stream or (with `None`) at once.
fn work(books: &mut Books, call: &str, stream: Option<*mut c_void>, op: Op) -> Answer {
    let device = books.device(call)?;
    books.check_op(device, &op)?;
    match stream {
        Some(stream) => books.submit(call, stream as u64, op),
        None => {
            books.prohibit_during_capture(call)?;
            op.run();
            Ok(())
        }
    }
}

fn copy(to_device: Option<u64>, from_device: Option<u64>, host: u64, bytes: usize) -> Op {
    Op::Copy {
        to: to_device.unwrap_or(host),
        from: from_device.unwrap_or(host),
        bytes,
        device_writes: to_device.is_some(),
        device_reads: from_device.is_some(),
    }
}

driver! {
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |books| {
        books.prohibit_during_capture("cuMemAlloc")?;
        let at = allocate(books, "cuMemAlloc", Kind::Device, bytes)?;
        put(address, at)
    }

    fn cuMemFree_v2(address: u64) |books| {
        books.prohibit_during_capture("cuMemFree")?;
        let context = books.context("cuMemFree")?;
        books.finish_all(context);
        free(books, "cuMemFree", &[Kind::Device, Kind::Managed], address)
    }

    fn cuMemAllocAsync(address: *mut u64, bytes: usize, _stream: *mut c_void) |books| {
        let at = allocate(books, "cuMemAllocAsync", Kind::Device, bytes)?;
        put(address, at)
    }

    fn cuMemFreeAsync(address: u64, _stream: *mut c_void) |books| {
        free(books, "cuMemFreeAsync", &[Kind::Device], address)
    }

    fn cuMemAllocManaged(address: *mut u64, bytes: usize, _flags: c_uint) |books| {
        books.prohibit_during_capture("cuMemAllocManaged")?;
        let at = allocate(books, "cuMemAllocManaged", Kind::Managed, bytes)?;
        put(address, at)
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |books| {
        let device = books.device("cuMemGetInfo")?;
        let book = &books.devices[device];
        put(free, book.memory - book.used)?;
        put(total, book.memory)
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) |books| {
        books.context("cuMemGetAddressRange")?;
        let found = books.region_of(address).map(|(base, region)| (base, region.bytes));
        let mapped = || books.mapping_of(address).map(|(base, mapping)| (base, mapping.bytes));
        let (at, length) = found.or_else(mapped).ok_or(NOT_FOUND)?;
        crate::put_if(base, at);
        crate::put_if(bytes, length);
        Ok(())
    }

    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) |books| {
        books.prohibit_during_capture("cuMemHostAlloc")?;
        let at = allocate(books, "cuMemHostAlloc", Kind::Host, bytes)?;
        put(address, at as *mut c_void)
    }

    fn cuMemFreeHost(address: *mut c_void) |books| {
        books.prohibit_during_capture("cuMemFreeHost")?;
        free(books, "cuMemFreeHost", &[Kind::Host], address as u64)
    }

    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, _flags: c_uint) |books| {
        let device = books.device("cuMemHostRegister")?;
        books.prohibit_during_capture("cuMemHostRegister")?;
        if address.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if books.region_of(address as u64).is_some() {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        books.regions.insert(address as u64, Region { kind: Kind::Registered, bytes, device, backing: None });
        Ok(())
    }

    fn cuMemHostUnregister(address: *mut c_void) |books| {
        books.context("cuMemHostUnregister")?;
        books.prohibit_during_capture("cuMemHostUnregister")?;
        match books.regions.get(&(address as u64)) {
            Some(region) if region.kind == Kind::Registered => {
                books.regions.remove(&(address as u64));
                Ok(())
            }
            _ => books.violation(HOST_MEMORY_NOT_REGISTERED, format!("{address:p} is not registered")),
        }
    }

    fn cuMemHostGetDevicePointer_v2(device: *mut u64, host: *mut c_void, _flags: c_uint) |books| {
        books.context("cuMemHostGetDevicePointer")?;
        books.region_of(host as u64).ok_or(INVALID_VALUE)?;
        put(device, host as u64)
    }

    /// Only what cudarc asks for: the device ordinal (9), the memory type (2).
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: u64) |books| {
        books.context("cuPointerGetAttribute")?;
        let (_, region) = books.region_of(address).ok_or(INVALID_VALUE)?;
        match attribute {
            2 => put(data.cast::<c_uint>(), if region.kind == Kind::Host { 1 } else { 2 }),
            9 => put(data.cast::<c_int>(), region.device as c_int),
            _ => Err(NOT_SUPPORTED),
        }
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) |books| {
        work(books, "cuMemcpyHtoD", None, copy(Some(to), None, from as u64, bytes))
    }
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) |books| {
        work(books, "cuMemcpyDtoH", None, copy(None, Some(from), to as u64, bytes))
    }
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) |books| {
        work(books, "cuMemcpyDtoD", None, copy(Some(to), Some(from), 0, bytes))
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: *mut c_void) |books| {
        work(books, "cuMemcpyHtoDAsync", Some(stream), copy(Some(to), None, from as u64, bytes))
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void) |books| {
        work(books, "cuMemcpyDtoHAsync", Some(stream), copy(None, Some(from), to as u64, bytes))
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: *mut c_void) |books| {
        work(books, "cuMemcpyDtoDAsync", Some(stream), copy(Some(to), Some(from), 0, bytes))
    }
    /// Unified addressing: the addresses say whose memory they are.
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: *mut c_void) |books| {
        let op = Op::Copy {
            to,
            from,
            bytes,
            device_writes: books.is_devices(to),
            device_reads: books.is_devices(from),
        };
        work(books, "cuMemcpyAsync", Some(stream), op)
    }
    fn cuMemcpyPeerAsync(
        to: u64, _to_context: *mut c_void, from: u64, _from_context: *mut c_void, bytes: usize, stream: *mut c_void,
    ) |books| {
        // The device that holds the source reads it, so only the target is checked for the current one.
        let op = Op::Copy { to, from, bytes, device_writes: true, device_reads: false };
        let device = books.device("cuMemcpyPeerAsync")?;
        books.check_op(device, &op)?;
        books.submit_copy("cuMemcpyPeerAsync", stream as u64, op)
    }
    fn cuMemsetD8_v2(address: u64, value: u8, bytes: usize) |books| {
        work(books, "cuMemsetD8", None, Op::Fill { address, value, bytes })
    }
    fn cuMemsetD8Async(address: u64, value: u8, bytes: usize, stream: *mut c_void) |books| {
        work(books, "cuMemsetD8Async", Some(stream), Op::Fill { address, value, bytes })
    }
}
