//! The out-of-memory report [spec 11]: numbers for programs, PyTorch's sentence for people.

use std::fmt;

use super::diagnose::Finding;
use crate::config::Config;
use crate::device::ProcessMemory;
use crate::units::format_size;

/// Why a request failed, in numbers (bytes).
///
/// `{}` is PyTorch's sentence with the product's name [spec 11.2]; `{:#}` adds the options in force and, where
/// there is one, the explanation. [`OomReport::pytorch_message`] is PyTorch's text to the byte. A report is built
/// from `OomReport::default()` by setting its fields.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct OomReport {
    /// Device ordinal.
    pub device: u32,
    /// What the client asked for.
    pub requested: u64,
    /// The request rounded to a block size.
    pub rounded: u64,
    /// The segment that the driver was asked for.
    pub segment_size: u64,
    /// Raw handle of the stream of the request.
    pub stream: u64,
    /// Total memory as the driver reports it.
    pub device_total: u64,
    /// Free memory as the driver reports it.
    pub device_free: u64,
    /// The cap, if one is set.
    pub allowed: Option<u64>,
    /// `allocated_bytes.all.current`.
    pub allocated: u64,
    /// `reserved_bytes.all.current`.
    pub reserved: u64,
    /// `active_bytes.all.current`.
    pub active: u64,
    /// Free blocks of private pools.
    pub private_free: u64,
    /// Largest free block that the request could have used (its pool and stream).
    pub largest_free: u64,
    /// Processes on the device, where they can be known.
    pub processes: Option<Vec<ProcessMemory>>,
    /// The options in force.
    pub config: Config,
    /// Refused before anything was released, because of `throw_on_cudamalloc_oom` [spec 22].
    pub rejected: bool,
    /// The causes, in order.
    pub findings: Vec<Finding>,
    /// The same as lines of text, for `{:#}`.
    pub explanation: Option<String>,
}

impl OomReport {
    /// PyTorch 2.11's message, to the byte, for comparisons with recordings.
    ///
    /// Like PyTorch's it counts idle bytes of private pools as allocated [spec 23.11]; `Display` does not.
    pub fn pytorch_message(&self) -> String {
        PytorchMessage(self).to_string()
    }

    /// Parts 1 to 12: request, device, processes, cap. `unknown` stands for what NVML does not tell; PyTorch
    /// prints NVML's "all ones" as a number [spec 11.3].
    fn fmt_beginning(&self, f: &mut fmt::Formatter<'_>, product: &str, unknown: &str) -> fmt::Result {
        if self.rejected {
            write!(
                f,
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed \
                 per_process_memory_fraction limit. Requested size: {}. ",
                format_size(self.requested)
            )?;
        } else {
            write!(f, "CUDA out of memory. Tried to allocate {}. ", format_size(self.segment_size))?;
        }
        write!(
            f,
            "GPU {} has a total capacity of {} of which {} is free. ",
            self.device,
            format_size(self.device_total),
            format_size(self.device_free)
        )?;
        for process in self.processes.iter().flatten() {
            if process.is_self {
                write!(f, "Including non-{product} memory, this process")?;
            } else {
                write!(f, "Process {}", process.pid)?;
            }
            let used = process.used.map_or_else(|| unknown.to_owned(), format_size);
            write!(f, " has {used} memory in use. ")?;
        }
        if let Some(allowed) = self.allowed {
            write!(f, "{} allowed; ", format_size(allowed))?;
        }
        f.write_str("Of the allocated memory ")
    }

    /// What follows the sentence in `{:#}`.
    fn fmt_details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\nOptions in force: ")?;
        match self.config.to_string() {
            options if options.is_empty() => f.write_str("all at their defaults")?,
            options => f.write_str(&options)?,
        }
        match &self.explanation {
            Some(explanation) => write!(f, "\n{}", explanation.trim_end()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for OomReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_beginning(f, "gpucache", "an unknown amount of")?;
        write!(
            f,
            "{} is allocated by gpucache, and {} is reserved by gpucache but unallocated",
            format_size(self.allocated),
            format_size(self.reserved.saturating_sub(self.allocated))
        )?;
        if self.private_free > 0 {
            let private = format_size(self.private_free);
            write!(f, ", of which {private} is idle in private pools (e.g., CUDA Graphs)")?;
        }
        f.write_str(
            ". If reserved but unallocated memory is large try setting \
             GPUCACHE_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory \
             Management  (docs/diagnosis.md)",
        )?;
        if f.alternate() { self.fmt_details(f) } else { Ok(()) }
    }
}

impl std::error::Error for OomReport {}

struct PytorchMessage<'a>(&'a OomReport);

impl fmt::Display for PytorchMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OomReport { allocated, reserved, private_free, .. } = *self.0;
        self.0.fmt_beginning(f, "PyTorch", "17179869184.00 GiB")?;
        // PyTorch computes in 64 bits without a check.
        write!(f, "{} is allocated by PyTorch, ", format_size(allocated.wrapping_add(private_free)))?;
        if private_free > 0 {
            let private = format_size(private_free);
            write!(f, "with {private} allocated in private pools (e.g., CUDA Graphs), ")?;
        }
        let idle = reserved.wrapping_sub(allocated).wrapping_sub(private_free);
        write!(f, "and {} is reserved by PyTorch but unallocated.", format_size(idle))?;
        f.write_str(
            " If reserved but unallocated memory is large try setting \
             PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for \
             Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-\
             pytorch-cuda-alloc-conf)",
        )
    }
}
