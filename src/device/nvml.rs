//! What NVML knows and the driver does not: which processes hold memory on a GPU.

use std::fmt::Write as _;
use std::sync::OnceLock;

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
    let own = std::process::id();
    let device = find(nvml()?, uuid)?;
    let mut found: Vec<ProcessMemory> = Vec::new();
    for process in listed(&device)? {
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
    found.iter().any(|process| process.is_self).then_some(found)
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
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    NVML.get_or_init(|| Nvml::init().ok()).as_ref()
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

#[cfg(test)]
mod tests {
    use super::{processes, text_of};

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
