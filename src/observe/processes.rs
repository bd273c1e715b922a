//! Processes that hold memory on a device, with their names.

use crate::device::{DeviceProperties, ProcessMemory};

/// A process on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessLine {
    /// Process id.
    pub pid: u32,
    /// Its short name (`/proc/PID/comm`), where that can be read.
    pub name: Option<String>,
    /// Bytes in use, its CUDA context included; `None` where the driver does not say.
    pub used: Option<u64>,
    /// Whether it is the calling process.
    pub is_self: bool,
}

impl ProcessLine {
    /// A process without a name.
    pub fn new(process: &ProcessMemory) -> Self {
        ProcessLine { pid: process.pid, name: None, used: process.used, is_self: process.is_self }
    }

    /// `process 1234 (python)`, or the pid alone where the name is not known.
    pub fn label(&self) -> String {
        match &self.name {
            Some(name) => format!("process {} ({name})", self.pid),
            None => format!("process {}", self.pid),
        }
    }
}

/// The processes of a device with their names. Those of a simulated one are no processes of this machine.
pub fn named(properties: &DeviceProperties, processes: &[ProcessMemory]) -> Vec<ProcessLine> {
    let name = |process: &ProcessMemory| {
        if properties.simulated { None } else { process_name(process.pid) }
    };
    processes.iter().map(|p| ProcessLine { name: name(p), ..ProcessLine::new(p) }).collect()
}

/// The short name of a process of this machine; `None` where there is no such process or it cannot be seen.
pub fn process_name(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}
