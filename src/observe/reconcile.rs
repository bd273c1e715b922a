//! Why `nvidia-smi` shows what it shows: every byte of the device by its holder.

use std::fmt;

use super::processes::ProcessLine;
use crate::device::{DeviceProperties, MemInfo, NvmlMemory};
use crate::units::format_size as size;

/// A device's memory by holder. Bytes.
///
/// With NVML: `reserved + context + other_own + others + residual = nvml.used`, and
/// `nvml.used + nvml.reserved + nvml.free = nvml.total`. The parts are read one after the other, so that a busy
/// machine shows a residual.
///
/// `Display` is the table.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Reconciliation {
    /// What is fixed about the device.
    pub device: DeviceProperties,
    /// Held by the allocator.
    pub reserved: u64,
    /// Of that, in blocks of clients.
    pub allocated: u64,
    /// The CUDA context with its modules: the least that this process was seen to hold beside the allocator. Exact
    /// if [`reconcile`](crate::Allocator::reconcile) was called before other libraries allocated. `None` where
    /// processes cannot be seen.
    pub context: Option<u64>,
    /// Held by other libraries of this process: what came since.
    pub other_own: Option<u64>,
    /// Other processes; `None` where they cannot be seen.
    pub others: Option<Vec<ProcessLine>>,
    /// The device as CUDA sees it.
    pub cuda: MemInfo,
    /// The device as NVML sees it; `None` without NVML.
    pub nvml: Option<NvmlMemory>,
}

impl Reconciliation {
    /// Held by the other processes together, as far as the driver says; `None` where they cannot be seen.
    pub fn others_bytes(&self) -> Option<u64> {
        Some(self.others.as_ref()?.iter().filter_map(|p| p.used).fold(0, u64::saturating_add))
    }

    /// What nvidia-smi shows as used: NVML's figure, else CUDA's.
    pub fn used(&self) -> u64 {
        self.nvml.map_or(self.cuda.total.saturating_sub(self.cuda.free), |m| m.used)
    }

    /// Bytes of [`used`](Reconciliation::used) that no row names; `None` where processes cannot be seen.
    ///
    /// The driver charges some memory of each context to no process: 8.8 MiB with one on an H200 (driver 580), 5.6 MiB
    /// for each more, whatever they allocate. More than that is graphics, or changes between two readings.
    pub fn residual(&self) -> Option<i64> {
        let named = self.reserved + self.context? + self.other_own? + self.others_bytes()?;
        Some(self.used() as i64 - named as i64)
    }

    /// Without a list of processes: everything that is in use and not the allocator's.
    pub fn unattributed(&self) -> u64 {
        self.used().saturating_sub(self.reserved)
    }
}

const WIDTH: usize = 46;

/// What the driver keeps for a context and charges to no process, at most.
const UNCHARGED_PER_CONTEXT: i64 = 16 << 20;

fn residual_label(residual: i64, contexts: usize) -> &'static str {
    match residual {
        0 => "residual",
        1.. if residual <= UNCHARGED_PER_CONTEXT * contexts as i64 => {
            "residual (the driver's, for the contexts)"
        }
        _ => "residual (graphics, or changes while reading)",
    }
}

fn row(f: &mut fmt::Formatter<'_>, what: &str, bytes: u64) -> fmt::Result {
    writeln!(f, "  {what:<WIDTH$} {:>14}", size(bytes))
}

impl fmt::Display for Reconciliation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", identity(&self.device))?;
        row(f, "reserved by gpucache", self.reserved)?;
        row(f, "  in use", self.allocated)?;
        row(f, "  cached, or waiting for a stream", self.reserved.saturating_sub(self.allocated))?;
        match (self.context, self.other_own, &self.others) {
            (Some(context), Some(own), Some(others)) => {
                row(f, "CUDA context and modules", context)?;
                row(f, "other memory of this process", own)?;
                for process in others {
                    match process.used {
                        Some(used) => row(f, &process.label(), used)?,
                        None => writeln!(f, "  {:<WIDTH$} {:>14}", process.label(), "not told")?,
                    }
                }
                if let Some(residual) = self.residual() {
                    let sign = if residual < 0 { "-" } else { "" };
                    let text = format!("{sign}{}", size(residual.unsigned_abs()));
                    writeln!(f, "  {:<WIDTH$} {text:>14}", residual_label(residual, others.len() + 1))?;
                }
            }
            _ => row(f, "context, other libraries, other processes", self.unattributed())?,
        }
        let Some(nvml) = self.nvml else {
            row(f, "= in use (cuMemGetInfo)", self.used())?;
            row(f, "free (cuMemGetInfo)", self.cuda.free)?;
            row(f, "total (cuMemGetInfo)", self.cuda.total)?;
            return f.write_str(
                "  NVML tells nothing here (feature `nvml` off, no libnvidia-ml.so.1, or a container that hides \
                 processes), so that what is not gpucache's cannot be told apart.",
            );
        };
        row(f, "= used, as nvidia-smi shows it", nvml.used)?;
        row(f, "reserved by the driver", nvml.reserved)?;
        row(f, "free", nvml.free)?;
        write!(f, "  {:<WIDTH$} {:>14}", "= total, as nvidia-smi shows it", size(nvml.total))?;
        if self.others.is_none() {
            f.write_str(
                "\n  The processes are hidden (a container without the host's pids: --pid=host shows them).",
            )?;
        }
        Ok(())
    }
}

/// One line that names a device and the driver: `GPU 0: NVIDIA H200, compute capability 9.0, ...`.
pub fn identity(device: &DeviceProperties) -> String {
    let (major, minor) = device.compute_capability;
    let mut text = format!("GPU {}: {}, compute capability {major}.{minor}", device.ordinal, device.name);
    match device.driver_version {
        0 if device.simulated => text.push_str(", no driver (simulated)"),
        0 => {}
        version => {
            use fmt::Write as _;
            // Writing to a string cannot fail.
            let _ = write!(text, ", driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
        }
    }
    text
}

/// PyTorch's text of the processes on a device [spec 19]; in MiB though it says MB, as PyTorch does.
pub fn process_list(ordinal: u32, processes: Option<&[crate::device::ProcessMemory]>) -> String {
    const MIB: f64 = (1_u64 << 20) as f64;
    let mut lines = vec![format!("GPU:{ordinal}")];
    match processes {
        None => {
            lines.push("the processes cannot be seen: no NVML, or a container that hides them".to_owned());
        }
        Some([]) => lines.push("no processes are running".to_owned()),
        Some(all) => lines.extend(all.iter().map(|p| match p.used {
            Some(used) => format!("process {:>10} uses {:>12.3} MB GPU memory", p.pid, used as f64 / MIB),
            None => format!("process {:>10} uses an unknown amount of GPU memory", p.pid),
        })),
    }
    lines.join("\n")
}
