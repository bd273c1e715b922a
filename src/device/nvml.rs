//! What NVML knows and CUDA does not: which processes hold memory on a GPU, and what `nvidia-smi` shows.

use std::fmt::Write as _;
use std::sync::OnceLock;

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::{NvmlMemory, ProcessMemory};

/// The processes with a compute context on the GPU with that UUID, in NVML's order.
///
/// `None` if NVML cannot be loaded or does not know the GPU, or if the calling process is not among them: it has a
/// context, so the pids are those of another namespace (a container sees the host's).
pub(super) fn processes(uuid: &[u8; 16]) -> Option<Vec<ProcessMemory>> {
    let found = processes_of(&find(nvml()?, uuid)?)?;
    found.iter().any(|process| process.is_self).then_some(found)
}

fn processes_of(device: &Device<'_>) -> Option<Vec<ProcessMemory>> {
    let own = std::process::id();
    let mut found: Vec<ProcessMemory> = Vec::new();
    for process in listed(device)? {
        let used = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        // A process with several contexts, or several slices of a partitioned GPU, is listed once for each.
        match found.iter_mut().find(|known| known.pid == process.pid) {
            Some(known) => known.used = known.used.zip(used).map(|(a, b)| a + b),
            None => found.push(ProcessMemory { pid: process.pid, used, is_self: process.pid == own }),
        }
    }
    Some(found)
}

/// The memory of the GPU with that UUID; `None` if NVML cannot be loaded or does not know the GPU.
pub(super) fn memory(uuid: &[u8; 16]) -> Option<NvmlMemory> {
    memory_of(&find(nvml()?, uuid)?)
}

fn memory_of(device: &Device<'_>) -> Option<NvmlMemory> {
    let info = device.memory_info().ok()?;
    Some(NvmlMemory { total: info.total, used: info.used, reserved: info.reserved, free: info.free })
}

/// NVML counts first and lists then; a few processes may start in between.
fn listed(device: &Device<'_>) -> Option<Vec<ProcessInfo>> {
    const ATTEMPTS: usize = 3;
    for _ in 0..ATTEMPTS {
        match device.running_compute_processes() {
            Err(NvmlError::InsufficientSize(_)) => {}
            answer => return answer.ok(),
        }
    }
    None
}

/// NVML, started once and kept: starting it takes milliseconds.
fn nvml() -> Option<&'static Nvml> {
    started().ok()
}

/// The same, with the reason where it does not start.
fn started() -> Result<&'static Nvml, &'static NvmlError> {
    static NVML: OnceLock<Result<Nvml, NvmlError>> = OnceLock::new();
    NVML.get_or_init(Nvml::init).as_ref()
}

/// By UUID, because NVML's own numbering ignores `CUDA_VISIBLE_DEVICES`. Slices of a partitioned GPU have a prefix of
/// their own.
fn find<'nvml>(nvml: &'nvml Nvml, uuid: &[u8; 16]) -> Option<Device<'nvml>> {
    ["GPU-", "MIG-"].into_iter().find_map(|prefix| nvml.device_by_uuid(text_of(prefix, uuid)).ok())
}

fn text_of(prefix: &str, uuid: &[u8; 16]) -> String {
    let mut text = prefix.to_owned();
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// All GPUs of a machine, whether this process sees them through CUDA or not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Machine {
    /// Version of the driver, such as `580.159.04`.
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver serves, as `1000 * major + 10 * minor`.
    pub cuda_version: Option<u32>,
    /// Version of NVML itself.
    pub nvml_version: Option<String>,
    /// The GPUs in NVML's order, which is that of `nvidia-smi` and not always that of CUDA.
    pub gpus: Vec<MachineGpu>,
}

/// One GPU as `nvidia-smi` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MachineGpu {
    /// `nvidia-smi`'s number.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// UUID as text, `GPU-...`.
    pub uuid: String,
    /// PCI address as text.
    pub pci_bus_id: String,
    /// Its memory; `None` where NVML does not say.
    pub memory: Option<NvmlMemory>,
    /// The processes with a compute context; `None` where NVML does not say. In a container the ids may be those of the
    /// host.
    pub processes: Option<Vec<ProcessMemory>>,
    /// Percent of the last moment in which a kernel ran; `None` where NVML does not say, as for the next two.
    pub utilization: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Power draw in milliwatts.
    pub power: Option<u32>,
}

/// What NVML says about the machine. It makes no CUDA context.
///
/// # Errors
/// NVML's reason, as text, if it cannot be loaded or started.
pub fn machine() -> Result<Machine, String> {
    let nvml = started().map_err(ToString::to_string)?;
    let count = nvml.device_count().map_err(|e| e.to_string())?;
    Ok(Machine {
        driver_version: nvml.sys_driver_version().ok(),
        cuda_version: nvml.sys_cuda_driver_version().ok().and_then(|v| u32::try_from(v).ok()),
        nvml_version: nvml.sys_nvml_version().ok(),
        gpus: (0..count).filter_map(|index| Some(gpu(index, &nvml.device_by_index(index).ok()?))).collect(),
    })
}

fn gpu(index: u32, device: &Device<'_>) -> MachineGpu {
    MachineGpu {
        index,
        name: device.name().unwrap_or_default(),
        uuid: device.uuid().unwrap_or_default(),
        pci_bus_id: device.pci_info().map(|p| p.bus_id).unwrap_or_default(),
        memory: memory_of(device),
        processes: processes_of(device),
        utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        power: device.power_usage().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::{machine, processes, text_of};

    #[test]
    fn a_machine_answers_or_says_why_not() {
        match machine() {
            Ok(machine) => assert!(machine.gpus.iter().all(|g| !g.uuid.is_empty())),
            Err(why) => assert!(!why.is_empty()),
        }
    }

    #[test]
    fn an_unknown_gpu_has_no_processes() {
        assert_eq!(processes(&[0; 16]), None);
    }

    #[test]
    fn uuid_text_is_nvidia_smis() {
        let uuid = [0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xaa, 0xff];
        assert_eq!(text_of("GPU-", &uuid), "GPU-1a2b3c4d-0001-0203-0405-06070809aaff");
    }
}
