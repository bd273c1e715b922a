//! What can be seen of the machine, gathered once; judged in `checks`.

use std::path::Path;

use gpucache::device::DeviceProperties;
use gpucache::device::nvml::{Machine, machine};
use gpucache::observe::processes::process_name;
use gpucache::{Config, Error, device_count, device_properties};

/// Why CUDA cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    NoDriver(String),
    NoGpu(String),
    Other(String),
}

/// The machine as this process sees it.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// Kind of container, if this is one.
    pub(crate) container: Option<&'static str>,
    /// The kernel's NVIDIA driver, if it is loaded.
    pub(crate) kernel_driver: Option<String>,
    /// Whether `/dev/nvidiactl` is there (or `/dev/dxg`, under WSL).
    pub(crate) control_file: bool,
    /// `/dev/nvidia0` and the like.
    pub(crate) gpu_files: usize,
    pub(crate) cuda_visible_devices: Option<String>,
    pub(crate) nvidia_visible_devices: Option<String>,
    pub(crate) driver_capabilities: Option<String>,
    pub(crate) cuda: Result<Vec<DeviceProperties>, Trouble>,
    pub(crate) nvml: Result<Machine, String>,
    /// Version of an installed CUDA toolkit; gpucache needs none.
    pub(crate) toolkit: Option<String>,
    /// The options of the environment, or what is wrong with them.
    pub(crate) config: Result<String, String>,
}

impl Facts {
    pub(crate) fn gather() -> Self {
        let exists = |path: &str| Path::new(path).exists();
        let variable = |name: &str| std::env::var(name).ok();
        Facts {
            container: container(),
            kernel_driver: std::fs::read_to_string("/proc/driver/nvidia/version")
                .ok()
                .and_then(|text| kernel_version(&text)),
            control_file: exists("/dev/nvidiactl") || exists("/dev/dxg"),
            gpu_files: (0..64).filter(|n| exists(&format!("/dev/nvidia{n}"))).count(),
            cuda_visible_devices: variable("CUDA_VISIBLE_DEVICES"),
            nvidia_visible_devices: variable("NVIDIA_VISIBLE_DEVICES"),
            driver_capabilities: variable("NVIDIA_DRIVER_CAPABILITIES"),
            cuda: visible_devices(),
            nvml: machine(),
            toolkit: toolkit(),
            config: Config::from_env().map(|c| c.to_string()).map_err(|e| e.to_string()),
        }
    }
}

fn visible_devices() -> Result<Vec<DeviceProperties>, Trouble> {
    let all = device_count().and_then(|count| (0..count).map(device_properties).collect());
    all.map_err(|error| match error {
        Error::NoDriver(why) => Trouble::NoDriver(why),
        Error::NoGpu(why) => Trouble::NoGpu(why),
        other => Trouble::Other(other.to_string()),
    })
}

/// `580.159.04` from the kernel's text, whose first line names the module and then its version.
fn kernel_version(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

fn container() -> Option<&'static str> {
    if Path::new("/.dockerenv").exists() {
        return Some("docker");
    }
    if Path::new("/run/.containerenv").exists() {
        return Some("podman");
    }
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("kubernetes");
    }
    let cgroup = std::fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    ["docker", "kubepods", "containerd", "lxc"].into_iter().find(|kind| cgroup.contains(kind))
}

fn toolkit() -> Option<String> {
    let text = std::fs::read_to_string("/usr/local/cuda/version.json").ok()?;
    let value: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(value.get("cuda")?.get("version")?.as_str()?.to_owned())
}

/// The name of a process on this machine.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    process_name(pid)
}

#[cfg(test)]
mod tests {
    use super::kernel_version;

    #[test]
    fn the_kernels_text_has_the_version_in_it() {
        for (text, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC",
                "535.104.05",
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\n",
                "580.159.04",
            ),
        ] {
            assert_eq!(kernel_version(text).as_deref(), Some(version));
        }
        assert_eq!(kernel_version(""), None);
    }
}
