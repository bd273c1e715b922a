//! Two processes share the GPU, each below a cap of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::gpu::{Gpu, MIB, is_fake};
use crate::report::Finding;

const CHUNK: usize = 32 * MIB;
const FRACTIONS: [f64; 2] = [0.25, 0.125];

/// The other process: fills up to its cap, says how far it came, and waits to be told to end.
pub(crate) fn child(ordinal: u32, fraction: f64) -> Result<(), Box<dyn std::error::Error>> {
    let gpu = Gpu::open(ordinal)?;
    let allocator = gpu.allocator("")?;
    allocator.set_per_process_memory_fraction(fraction)?;
    let mut blocks = Vec::new();
    let refusal = loop {
        match allocator.alloc(CHUNK) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
    };
    if !refusal.is_out_of_memory() {
        return Err(refusal.into());
    }
    println!("RESERVED {}", allocator.memory_reserved());
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    allocator.verify()?;
    Ok(())
}

/// Starts both and compares what they and the driver say.
pub(crate) fn run(gpu: &Gpu) -> Finding {
    let before = gpu.free_bytes()?;
    let mut children = Vec::new();
    for fraction in FRACTIONS {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "--device",
            &gpu.device.context().ordinal().to_string(),
            "--child-cap",
            &fraction.to_string(),
        ]);
        children.push(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    }
    let reserved = children.iter_mut().map(reserved).collect::<Result<Vec<u64>, _>>();
    let during = gpu.free_bytes()?;
    for mut child in children {
        drop(child.stdin.take());
        if !child.wait()?.success() {
            return Err("a process failed".into());
        }
    }
    let reserved = reserved?;
    for (reserved, fraction) in reserved.iter().zip(FRACTIONS) {
        let cap = (gpu.total() as f64 * fraction) as u64;
        if *reserved > cap || reserved + (CHUNK as u64) <= cap {
            return Err(format!("{reserved} bytes reserved under a cap of {cap}").into());
        }
    }
    let (sum, taken) = (reserved.iter().sum::<u64>(), before.saturating_sub(during));
    // A fake GPU belongs to one process.
    if !is_fake() && taken < sum {
        return Err(format!("the driver gave out {taken} bytes, the processes have {sum}").into());
    }
    let text =
        reserved.iter().map(|bytes| format!("{} MiB", bytes / MIB as u64)).collect::<Vec<_>>().join(" and ");
    Ok(format!(
        "caps {FRACTIONS:?} of {} MiB: {text} reserved, {} MiB less free",
        gpu.total() / MIB as u64,
        taken / MIB as u64
    ))
}

fn reserved(child: &mut Child) -> Result<u64, Box<dyn std::error::Error>> {
    let output = child.stdout.take().ok_or("the process has no output")?;
    for line in BufReader::new(output).lines() {
        if let Some(bytes) = line?.strip_prefix("RESERVED ") {
            return Ok(bytes.parse()?);
        }
    }
    Err("a process ended before it had reached its cap".into())
}
