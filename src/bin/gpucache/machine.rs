//! The GPUs of this machine with their processes: what NVML tells, joined with what processes export.

use gpucache::device::{ProcessMemory, nvml};
use gpucache::export::{self, Exported};
use gpucache::observe::processes::process_name;
use serde::Serialize;

/// Everything at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Machine {
    /// The driver's version; `None` without NVML.
    pub(crate) driver_version: Option<String>,
    /// The newest CUDA version that the driver knows.
    pub(crate) cuda_version: Option<String>,
    /// Why NVML tells nothing.
    pub(crate) nvml_error: Option<String>,
    pub(crate) gpus: Vec<Gpu>,
}

/// One GPU, or a simulated one that some process exports. Bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Gpu {
    /// NVML's index; of a GPU that only exports know, the process's ordinal.
    pub(crate) index: u32,
    pub(crate) uuid: Option<String>,
    pub(crate) name: String,
    pub(crate) simulated: bool,
    pub(crate) memory_total: u64,
    /// `None` without NVML.
    pub(crate) memory_used: Option<u64>,
    pub(crate) memory_free: Option<u64>,
    /// Percent of time.
    pub(crate) utilization: Option<u32>,
    /// Degrees Celsius.
    pub(crate) temperature: Option<u32>,
    /// Watts.
    pub(crate) power: Option<f64>,
    pub(crate) processes: Vec<Process>,
}

/// One process on one GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Process {
    pub(crate) pid: u64,
    pub(crate) name: String,
    /// What NVML counts for it: the allocator's memory, its CUDA context, other libraries.
    pub(crate) used_memory: Option<u64>,
    /// What it exports; the sum if it has several allocators on the GPU.
    pub(crate) gpucache: Option<Figures>,
}

/// A process's own figures. Bytes and counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Figures {
    pub(crate) allocated: u64,
    pub(crate) max_allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) max_reserved: u64,
    pub(crate) inactive_split: u64,
    /// What it may reserve.
    pub(crate) allowed: u64,
    /// Allocations so far.
    pub(crate) allocations_made: u64,
    pub(crate) num_alloc_retries: u64,
    pub(crate) num_ooms: u64,
    /// Allocators that are summed up here.
    pub(crate) allocators: u64,
}

impl Figures {
    fn add(&mut self, more: &Figures) {
        self.allocated += more.allocated;
        self.max_allocated += more.max_allocated;
        self.reserved += more.reserved;
        self.max_reserved += more.max_reserved;
        self.inactive_split += more.inactive_split;
        self.allowed = self.allowed.max(more.allowed);
        self.allocations_made += more.allocations_made;
        self.num_alloc_retries += more.num_alloc_retries;
        self.num_ooms += more.num_ooms;
        self.allocators += more.allocators;
    }
}

impl From<&Exported> for Figures {
    fn from(exported: &Exported) -> Self {
        Figures {
            allocated: exported.allocated,
            max_allocated: exported.max_allocated,
            reserved: exported.reserved,
            max_reserved: exported.max_reserved,
            inactive_split: exported.inactive_split,
            allowed: exported.allowed,
            allocations_made: exported.allocations_made,
            num_alloc_retries: exported.retries,
            num_ooms: exported.ooms,
            allocators: 1,
        }
    }
}

impl Machine {
    /// What NVML and the export files say now.
    pub(crate) fn read() -> Self {
        let mut machine = match nvml::machine() {
            Ok(known) => Machine::of_nvml(known),
            Err(reason) => Machine { nvml_error: Some(reason), ..Machine::default() },
        };
        machine.join(&export::exports());
        machine
    }

    fn of_nvml(known: nvml::Machine) -> Self {
        Machine {
            driver_version: known.driver_version,
            cuda_version: known.cuda_version.map(|v| format!("{}.{}", v / 1000, v % 1000 / 10)),
            nvml_error: None,
            gpus: known.gpus.into_iter().map(Gpu::of_nvml).collect(),
        }
    }

    /// All processes, each with its GPU.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (&Gpu, &Process)> {
        self.gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |process| (gpu, process)))
    }

    /// Puts exported figures beside the GPU and process that they are of. GPUs that NVML does not know (it is
    /// missing, or they are simulated) are added.
    pub(crate) fn join(&mut self, exports: &[Exported]) {
        for exported in exports {
            let gpu = self.gpu_of(exported);
            let known = gpu.processes.iter().position(|process| process.pid == exported.pid);
            let at = known.unwrap_or_else(|| {
                let name = exported.process.clone();
                gpu.processes.push(Process { pid: exported.pid, name, ..Process::default() });
                gpu.processes.len() - 1
            });
            gpu.processes[at].gpucache.get_or_insert_default().add(&exported.into());
        }
    }

    fn gpu_of(&mut self, exported: &Exported) -> &mut Gpu {
        let uuid = exported.uuid_text();
        let simulated = exported.simulated != 0;
        let same = |gpu: &Gpu| {
            // Slices of a partitioned GPU have UUIDs with another prefix.
            let number = |uuid: &str| uuid.split_once('-').map(|(_, number)| number.to_owned());
            match (&gpu.uuid, &uuid) {
                (Some(known), Some(uuid)) if !simulated => number(known) == number(uuid),
                _ => {
                    gpu.simulated == simulated
                        && gpu.uuid == uuid
                        && u64::from(gpu.index) == exported.device
                        && gpu.name == exported.device_name
                }
            }
        };
        let at = self.gpus.iter().position(same).unwrap_or_else(|| {
            self.gpus.push(Gpu {
                index: u32::try_from(exported.device).unwrap_or(u32::MAX),
                uuid,
                name: exported.device_name.clone(),
                simulated,
                memory_total: exported.total,
                ..Gpu::default()
            });
            self.gpus.len() - 1
        });
        &mut self.gpus[at]
    }
}

impl Gpu {
    fn of_nvml(known: nvml::MachineGpu) -> Self {
        let memory = known.memory.unwrap_or_default();
        let process = |process: ProcessMemory| Process {
            pid: u64::from(process.pid),
            name: name_of(process.pid),
            used_memory: process.used,
            gpucache: None,
        };
        Gpu {
            index: known.index,
            uuid: Some(known.uuid),
            name: known.name,
            simulated: false,
            memory_total: memory.total,
            memory_used: known.memory.map(|memory| memory.used),
            memory_free: known.memory.map(|memory| memory.free),
            utilization: known.utilization,
            temperature: known.temperature,
            power: known.power.map(|milliwatts| f64::from(milliwatts) / 1000.0),
            processes: known.processes.unwrap_or_default().into_iter().map(process).collect(),
        }
    }

    /// The figures of all exporting processes together; `None` if there are none.
    pub(crate) fn exported(&self) -> Option<Figures> {
        let mut sum = Figures::default();
        self.processes
            .iter()
            .filter_map(|process| process.gpucache.as_ref())
            .for_each(|figures| sum.add(figures));
        (sum.allocators > 0).then_some(sum)
    }
}

/// Any process can give itself any name, also one that confuses a terminal.
fn name_of(pid: u32) -> String {
    let name = process_name(pid).unwrap_or_default();
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn exported(pid: u64, device: u64) -> Exported {
        let mut exported = Exported::default();
        (exported.pid, exported.device, exported.total) = (pid, device, 80 << 30);
        (exported.process, exported.device_name) = ("train".into(), "H200".into());
        exported.uuid = [0x1a2b_3c4d_0001_0203, 0x0405_0607_0809_aaff];
        (exported.allocated, exported.max_allocated) = (3 << 30, 5 << 30);
        (exported.reserved, exported.max_reserved) = (4 << 30, 6 << 30);
        exported.allowed = 40 << 30;
        exported
    }

    /// One GPU with a process that exports and one that does not.
    pub(crate) fn machine() -> Machine {
        let process = |pid, name: &str, used| Process {
            pid,
            name: name.into(),
            used_memory: Some(used),
            gpucache: None,
        };
        let gpu = Gpu {
            index: 0,
            uuid: Some("GPU-1a2b3c4d-0001-0203-0405-06070809aaff".into()),
            name: "NVIDIA H200".into(),
            memory_total: 80 << 30,
            memory_used: Some(20 << 30),
            memory_free: Some(60 << 30),
            utilization: Some(93),
            temperature: Some(41),
            power: Some(512.5),
            processes: vec![process(7, "python", 5 << 30), process(9, "other", 14 << 30)],
            ..Gpu::default()
        };
        let mut machine = Machine {
            driver_version: Some("570.86".into()),
            cuda_version: Some("12.8".into()),
            nvml_error: None,
            gpus: vec![gpu],
        };
        machine.join(&[exported(7, 3)]);
        machine
    }

    #[test]
    fn exports_join_by_uuid_and_process() {
        let machine = machine();
        assert_eq!(machine.gpus.len(), 1, "the ordinal of the process is not NVML's");
        let processes = &machine.gpus[0].processes;
        assert_eq!(processes[0].gpucache.map(|f| (f.allocated, f.max_reserved)), Some((3 << 30, 6 << 30)));
        assert_eq!(processes[0].name, "python");
        assert_eq!(processes[1].gpucache, None);
    }

    #[test]
    fn without_nvml_exports_make_the_gpus() {
        let mut machine = Machine::default();
        let mut simulated = exported(8, 0);
        (simulated.simulated, simulated.uuid) = (1, [0, 0]);
        machine.join(&[exported(7, 0), exported(7, 0), exported(8, 0), simulated]);
        let pids: Vec<Vec<u64>> =
            machine.gpus.iter().map(|g| g.processes.iter().map(|p| p.pid).collect()).collect();
        assert_eq!(pids, [vec![7, 8], vec![8]]);
        let sum = machine.gpus[0].exported().unwrap();
        assert_eq!((sum.allocated, sum.allocators, sum.allowed), (9 << 30, 3, 40 << 30));
        assert_eq!(machine.gpus[0].memory_used, None);
    }
}
