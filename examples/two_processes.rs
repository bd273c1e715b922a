//! Two processes on one GPU, each with a cap, and a block of one that the other reads and writes.
//!
//! `cargo run --release --example two_processes` (needs a GPU; `memory_cap` shows caps on a simulated one)

mod common;

use std::error::Error;
use std::fmt::Write as _;
use std::process::Command;
use std::sync::Arc;

use common::{GIB, MIB, limit_to, show};
use gpucache::cudarc::driver::result;
use gpucache::device::cuda::CudaDevice;
use gpucache::{Allocator, Config};

const BYTES: usize = 4 * MIB;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [handle, offset, bytes] = arguments.as_slice() {
        return second(&from_hex(handle)?, offset.parse()?, bytes.parse()?);
    }
    if let Err(error) = gpucache::device_properties(0) {
        println!("Skipped: {error}.\nMemory of a simulated GPU cannot be shared between processes.");
        return Ok(());
    }
    for options in ["", "expandable_segments:True"] {
        println!("first process, options '{options}':");
        first(options)?;
    }
    Ok(())
}

fn open(options: &str, cap: usize) -> Result<Allocator, Box<dyn Error>> {
    let device = CudaDevice::new(0)?;
    let allocator = Allocator::builder().device(Arc::new(device)).config(Config::parse(options)?).build()?;
    limit_to(&allocator, cap)?;
    Ok(allocator)
}

fn first(options: &str) -> Result<(), Box<dyn Error>> {
    let allocator = open(options, GIB)?;
    // Not at the start of its segment, to make it interesting.
    let _before = allocator.alloc(3 * MIB)?;
    let block = allocator.alloc(BYTES)?;
    // SAFETY: the block is that large.
    unsafe { result::memset_d8_sync(block.address(), 1, BYTES) }?;
    show("  before", &allocator);

    let shared = allocator.share(&block)?;
    let handle = shared.handle().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    println!("  handle of {} bytes, the block at offset {}", shared.handle().len(), shared.offset());
    let arguments = [handle, shared.offset().to_string(), shared.len().to_string()];
    let status = Command::new(std::env::current_exe()?).args(arguments).status()?;
    if !status.success() {
        return Err("the second process failed".into());
    }
    println!("  the second process has left {} in the block", all_bytes(block.address())?);
    Ok(())
}

/// In the second process.
fn second(handle: &[u8], offset: u64, bytes: usize) -> Result<(), Box<dyn Error>> {
    let allocator = open("", GIB / 2)?;
    let block = allocator.open_shared(handle, offset, bytes)?;
    println!("    second process: found {}, writes 2", all_bytes(block.address())?);
    // SAFETY: the other process's block is that large and stays until this process is done.
    unsafe { result::memset_d8_sync(block.address(), 2, block.len()) }?;
    // Opened memory is the other's: it counts against the other's cap.
    let _own = allocator.alloc(400 * MIB)?;
    show("    second process", &allocator);
    match allocator.alloc(200 * MIB) {
        Err(error) => println!("    second process, 200 MiB more: {error}"),
        Ok(_) => return Err("the cap did not hold".into()),
    }
    Ok(())
}

/// The value of every byte of the block.
fn all_bytes(address: u64) -> Result<u8, Box<dyn Error>> {
    let mut bytes = vec![0_u8; BYTES];
    // SAFETY: the block is that large.
    unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }?;
    if bytes.iter().any(|byte| *byte != bytes[0]) {
        return Err("the bytes differ".into());
    }
    Ok(bytes[0])
}

fn from_hex(text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let digits = |at: usize| text.get(at..at + 2).ok_or("an odd number of digits");
    (0..text.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digits(at)?, 16)?)).collect()
}
