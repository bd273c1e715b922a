//! The first experiment again, with every way to count beside the others: what the program uses, what gpucache
//! holds, what CUDA and `nvidia-smi` say is in use.
//!
//! `cargo run --release --features nvml --example nvidia_smi`; without a GPU it shows a simulated one.

mod common;

use std::process::Command;
use std::time::Duration;

use clap::Parser;
use common::{GIB, gib, open};
use gpucache::{Allocator, Result};

/// Compare gpucache's figures with CUDA's and nvidia-smi's
#[derive(Debug, Parser)]
struct Args {
    /// Hold 1 GiB for so many seconds at the end, so that a second run sees another process
    #[arg(long, value_name = "SECONDS")]
    hold: Option<u64>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let gpu = open();
    // The first look counts what the process holds already as its CUDA context.
    gpu.reconcile()?;
    println!(
        "\n{:<32} {:>11} {:>11} {:>14} {:>14} {:>12}",
        "", "allocated", "reserved", "cuMemGetInfo", "nvidia-smi", "residual"
    );
    line("at the start", &gpu)?;
    let matrix = gpu.alloc(10_000 * 10_000 * size_of::<f32>())?;
    line("a matrix of 10,000 x 10,000 f32", &gpu)?;
    drop(matrix);
    line("matrix dropped", &gpu)?;
    println!("\n{}\n\n{}", gpu.reconcile()?, gpu.diagnose()?);
    nvidia_smi(&gpu);
    gpu.empty_cache()?;
    line("cache emptied", &gpu)?;
    println!("\n{}", gpu.list_gpu_processes());

    if let Some(seconds) = args.hold {
        let held = gpu.alloc(GIB)?;
        println!("process {} holds 1 GiB for {seconds} s", std::process::id());
        std::thread::sleep(Duration::from_secs(seconds));
        drop(held);
    }
    Ok(())
}

fn line(moment: &str, gpu: &Allocator) -> Result<()> {
    let r = gpu.reconcile()?;
    let nvml = r.nvml.map_or_else(|| "no NVML".to_owned(), |m| gib(m.used));
    let residual = r.residual().map_or_else(|| "-".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    println!(
        "{moment:<32} {:>11} {:>11} {:>14} {nvml:>14} {residual:>12}",
        gib(r.allocated),
        gib(r.reserved),
        gib(r.cuda.total - r.cuda.free)
    );
    Ok(())
}

/// The tool itself, where there is one.
fn nvidia_smi(gpu: &Allocator) {
    if gpu.device().properties().simulated {
        return;
    }
    let queries = [
        "--query-gpu=memory.used,memory.reserved,memory.free,memory.total",
        "--query-compute-apps=pid,process_name,used_memory",
    ];
    for query in queries {
        match Command::new("nvidia-smi").args([query, "--format=csv"]).output() {
            Ok(answer) => {
                println!("$ nvidia-smi {query} --format=csv\n{}", String::from_utf8_lossy(&answer.stdout));
            }
            Err(error) => println!("nvidia-smi cannot be run: {error}"),
        }
    }
}
