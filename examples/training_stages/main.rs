//! Where the memory of a training step goes, stage by stage, and what three well-known remedies save.
//!
//! The allocations are those of a GPT-2 sized transformer with AdamW; no arithmetic is done, so it runs in a moment,
//! with or without a GPU. Each variant trains two iterations: the first one creates gradients and optimizer states,
//! the second one shows the steady state.
//!
//! `cargo run --release --example training_stages`
//!
//! With a path as argument it also writes a snapshot of the plain variant, with its history, between the second
//! forward and backward pass: as JSON if the name ends in `.json`, else as a pickle for PyTorch's viewers
//! (<https://docs.pytorch.org/memory_viz>).

#[path = "../common/mod.rs"]
mod common;
mod transformer;

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use common::{gib, open};
use gpucache::observe::file::SnapshotFile;
use gpucache::{Allocator, HistoryOptions, Result};
use transformer::{Shape, Transformer, Variant};

const PLAIN: Variant = Variant { checkpointing: false, micro_batches: 1, mixed_precision: false };

const VARIANTS: [(&str, Variant); 5] = [
    ("plain (float32)", PLAIN),
    ("activation checkpointing", Variant { checkpointing: true, ..PLAIN }),
    ("gradient accumulation (4 x batch 2)", Variant { micro_batches: 4, ..PLAIN }),
    ("mixed precision", Variant { mixed_precision: true, ..PLAIN }),
    ("all three", Variant { checkpointing: true, micro_batches: 4, mixed_precision: true }),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut snapshot = std::env::args_os().nth(1).map(PathBuf::from);
    let gpu = open();
    let shape = Shape { layers: 12, hidden: 768, heads: 12, vocabulary: 50_257, sequence: 1024, batch: 8 };
    println!(
        "GPT-2: {} layers, hidden size {}, {} tokens x batch {}, AdamW",
        shape.layers, shape.hidden, shape.sequence, shape.batch
    );

    let mut peaks = Vec::new();
    for (name, variant) in VARIANTS {
        println!("\n{name}");
        let probe = train(&gpu, shape, variant, snapshot.take().as_deref())?;
        probe.print();
        peaks.push((name, probe.peak()));
    }
    compare(&peaks);
    Ok(())
}

/// Two iterations. All memory is given back at the end. The snapshot is taken when the most is alive.
fn train(
    gpu: &Allocator,
    shape: Shape,
    variant: Variant,
    snapshot: Option<&Path>,
) -> Result<Probe, Box<dyn Error>> {
    if snapshot.is_some() {
        gpu.record_memory_history(Some(HistoryOptions::default()));
    }
    let mut probe = Probe::default();
    probe.stage("start", gpu, || Ok(()))?;
    let mut model = probe.stage("model", gpu, || Transformer::load(gpu, shape, variant))?;
    for iteration in 1..=2 {
        let name = |stage: &str| format!("{iteration} {stage}");
        let batch = probe.stage(&name("data"), gpu, || model.load_batch())?;
        for _ in 0..variant.micro_batches {
            let activations = probe.stage(&name("forward"), gpu, || model.forward())?;
            if let Some(path) = snapshot.filter(|_| iteration == 2) {
                write_snapshot(gpu, path)?;
            }
            probe.stage(&name("backward"), gpu, || model.backward(activations))?;
        }
        drop(batch);
        probe.stage(&name("optimizer"), gpu, || model.optimizer_step())?;
        probe.stage(&name("zero gradients"), gpu, || {
            model.zero_gradients();
            Ok(())
        })?;
    }
    drop(model);
    gpu.empty_cache()?;
    gpu.record_memory_history(None);
    Ok(probe)
}

fn write_snapshot(gpu: &Allocator, path: &Path) -> Result<(), Box<dyn Error>> {
    let snapshot = SnapshotFile::merge([gpu.memory_snapshot()]);
    let mut file = BufWriter::new(File::create(path)?);
    if path.extension().is_some_and(|extension| extension == "json") {
        snapshot.write_json(&mut file)?;
    } else {
        snapshot.write_pickle(&mut file)?;
    }
    file.flush()?;
    println!("  snapshot written to {}", path.display());
    Ok(())
}

/// The readings after each stage.
#[derive(Default)]
struct Probe {
    rows: Vec<Row>,
}

struct Row {
    stage: String,
    allocated: u64,
    peak_allocated: u64,
    peak_reserved: u64,
}

impl Probe {
    /// Runs one stage with fresh peaks. A stage that comes again (micro-batches) keeps one row with its highest peaks.
    fn stage<T>(&mut self, stage: &str, gpu: &Allocator, work: impl FnOnce() -> Result<T>) -> Result<T> {
        gpu.reset_peak_memory_stats();
        let outcome = work()?;
        let row = Row {
            stage: stage.to_owned(),
            allocated: gpu.memory_allocated(),
            peak_allocated: gpu.max_memory_allocated(),
            peak_reserved: gpu.max_memory_reserved(),
        };
        match self.rows.iter_mut().find(|earlier| earlier.stage == stage) {
            Some(earlier) => earlier.merge(&row),
            None => self.rows.push(row),
        }
        Ok(outcome)
    }

    /// The highest allocated and reserved bytes of all stages.
    fn peak(&self) -> (u64, u64) {
        self.rows.iter().fold((0, 0), |(allocated, reserved), row| {
            (allocated.max(row.peak_allocated), reserved.max(row.peak_reserved))
        })
    }

    fn print(&self) {
        println!("  {:<18} {:>12} {:>14} {:>14}", "stage", "allocated", "peak in stage", "reserved");
        for row in &self.rows {
            println!(
                "  {:<18} {:>12} {:>14} {:>14}",
                row.stage,
                gib(row.allocated),
                gib(row.peak_allocated),
                gib(row.peak_reserved)
            );
        }
    }
}

impl Row {
    fn merge(&mut self, later: &Row) {
        self.allocated = later.allocated;
        self.peak_allocated = self.peak_allocated.max(later.peak_allocated);
        self.peak_reserved = self.peak_reserved.max(later.peak_reserved);
    }
}

fn compare(peaks: &[(&str, (u64, u64))]) {
    let Some(&(_, (plain, _))) = peaks.first() else { return };
    println!("\n{:<38} {:>14} {:>14} {:>8}", "variant", "peak allocated", "peak reserved", "saves");
    for &(name, (allocated, reserved)) in peaks {
        let saved = 100.0 * (1.0 - allocated as f64 / plain as f64);
        println!("{name:<38} {:>14} {:>14} {saved:>7.0}%", gib(allocated), gib(reserved));
    }
    println!(
        "\nMixed precision halves most activations, but adds weight copies, and the loss keeps float32 logits."
    );
}
