//! Facts into verdicts: what is well, what is wrong, what to do.

use std::fmt::Write as _;

use gpucache::units::format_size as size;

use super::facts::{Facts, Trouble, name_of};

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Ok,
    Note,
    Problem,
}

impl Level {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "PROBLEM",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) level: Level,
    pub(crate) what: &'static str,
    pub(crate) detail: String,
    pub(crate) remedy: Option<String>,
}

impl Check {
    fn ok(what: &'static str, detail: impl Into<String>) -> Self {
        Check { level: Level::Ok, what, detail: detail.into(), remedy: None }
    }

    fn note(what: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Check { level: Level::Note, what, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn problem(what: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Check { level: Level::Problem, what, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}

pub(crate) fn all(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![driver(facts), gpus(facts), nvml(facts), options(facts)];
    checks.extend(container(facts));
    checks.extend(versions(facts));
    checks.extend(hidden_processes(facts));
    checks
}

fn driver(facts: &Facts) -> Check {
    let Err(trouble) = &facts.cuda else {
        let kernel = facts.kernel_driver.as_deref().unwrap_or("of unknown version");
        let cuda = facts.cuda.iter().flatten().next().map_or(0, |d| d.driver_version);
        return Check::ok("driver", format!("{kernel}, for CUDA {}", cuda_text(cuda)));
    };
    match trouble {
        Trouble::NoDriver(why) => {
            Check::problem("driver", format!("libcuda cannot be used: {why}"), no_driver(facts))
        }
        Trouble::NoGpu(_) => Check::ok("driver", "libcuda is there"),
        Trouble::Other(why) => Check::problem("driver", why.clone(), other_trouble(facts)),
    }
}

/// Where libcuda is missing: who should have brought it?
fn no_driver(facts: &Facts) -> &'static str {
    match (facts.container.is_some(), facts.control_file, facts.kernel_driver.is_some()) {
        (true, true, _) => {
            "the container has the GPU but not the driver's library: start it with \
             NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        }
        (true, false, true) => {
            "the host has a driver, but the container was started without GPUs: docker run --gpus all (the host needs \
             the NVIDIA Container Toolkit)"
        }
        (true, false, false) => {
            "if the host has a GPU and a driver: docker run --gpus all, with the NVIDIA Container Toolkit on the host; in \
             Kubernetes ask for nvidia.com/gpu"
        }
        (false, _, true) => {
            "the kernel module is loaded; install the driver's library libcuda.so.1 of the same version"
        }
        (false, ..) => "install the NVIDIA driver; without a GPU use Allocator::simulated",
    }
}

fn other_trouble(facts: &Facts) -> &'static str {
    if facts.kernel_driver.is_none() && facts.container.is_none() {
        return "the kernel module is not loaded: sudo modprobe nvidia, or restart after an update of the driver";
    }
    "the driver's library and kernel module may have different versions (after an update): restart the machine"
}

fn gpus(facts: &Facts) -> Check {
    match &facts.cuda {
        Ok(devices) => {
            let names: Vec<String> = devices
                .iter()
                .map(|d| format!("{} {} ({})", d.ordinal, d.name, size(d.total_memory)))
                .collect();
            Check::ok("GPUs", names.join(", "))
        }
        Err(Trouble::NoGpu(why)) => Check::problem("GPUs", format!("none is visible ({why})"), no_gpu(facts)),
        Err(_) => Check::problem("GPUs", "none can be used without the driver", "see above"),
    }
}

fn no_gpu(facts: &Facts) -> String {
    if let Some(value) = &facts.cuda_visible_devices {
        return format!(
            "CUDA_VISIBLE_DEVICES is '{value}', which hides GPUs: unset it, or name one that is there"
        );
    }
    if matches!(facts.nvidia_visible_devices.as_deref(), Some("void" | "none" | "")) {
        return "NVIDIA_VISIBLE_DEVICES hides the GPUs from the container: set it to all".to_owned();
    }
    if facts.container.is_some() && facts.gpu_files == 0 {
        return "the container was started without GPUs: docker run --gpus all (the host needs the NVIDIA Container \
                Toolkit)"
            .to_owned();
    }
    if facts.kernel_driver.is_none() {
        return "the kernel module is not loaded: sudo modprobe nvidia, or restart after an update of the driver"
            .to_owned();
    }
    "look at nvidia-smi and dmesg: the GPU may have failed".to_owned()
}

fn nvml(facts: &Facts) -> Check {
    match &facts.nvml {
        Ok(machine) => {
            let version = machine.nvml_version.as_deref().unwrap_or("of unknown version");
            Check::ok("NVML", format!("{version}, {} GPUs", machine.gpus.len()))
        }
        Err(why) if facts.cuda.is_ok() => Check::note(
            "NVML",
            why.clone(),
            "memory of other processes stays unknown; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        Err(why) => Check::note("NVML", why.clone(), "it comes with the driver"),
    }
}

fn options(facts: &Facts) -> Check {
    match &facts.config {
        Ok(text) if text.is_empty() => Check::ok("options", "all at their defaults"),
        Ok(text) => Check::ok("options", text.clone()),
        Err(why) => {
            // The error begins with the variable that is at fault.
            let variable = why.split(':').next().filter(|name| name.ends_with("_ALLOC_CONF"));
            let remedy = format!("correct {}, or unset it", variable.unwrap_or("GPUCACHE_ALLOC_CONF"));
            Check::problem("options", why.clone(), remedy)
        }
    }
}

fn container(facts: &Facts) -> Option<Check> {
    let kind = facts.container?;
    let gpus = facts.nvidia_visible_devices.as_deref();
    let gpus = gpus.map_or_else(String::new, |v| format!(", NVIDIA_VISIBLE_DEVICES={v}"));
    let abilities = facts.driver_capabilities.as_deref();
    let abilities = abilities.map_or_else(String::new, |v| format!(", NVIDIA_DRIVER_CAPABILITIES={v}"));
    Some(Check::ok("container", format!("{kind}{gpus}{abilities}")))
}

fn versions(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    let kernel = facts.kernel_driver.as_deref();
    let user = facts.nvml.as_ref().ok().and_then(|m| m.driver_version.as_deref());
    if let (Some(kernel), Some(user)) = (kernel, user)
        && kernel != user
    {
        let detail = format!("the kernel module is {kernel}, the library {user}");
        checks.push(Check::problem("versions", detail, "restart the machine, so that both are the same"));
    }
    let toolkit = facts.toolkit.as_deref();
    checks.push(Check::ok("CUDA toolkit", format!("{} (not needed)", toolkit.unwrap_or("none found"))));
    checks
}

/// In use on all GPUs, though nobody is listed: then somebody is hidden.
const MUCH: u64 = 1 << 30;

fn hidden_processes(facts: &Facts) -> Option<Check> {
    let gpus = facts.nvml.as_ref().ok()?.gpus.iter();
    let used: u64 = gpus.clone().filter_map(|g| g.memory).map(|m| m.used).sum();
    let listed: Vec<u32> = gpus.flat_map(|g| g.processes.iter().flatten()).map(|p| p.pid).collect();
    let strange = listed.iter().filter(|&&pid| name_of(pid).is_none()).count();
    let what_to_do = "docker run --pid=host shows them; in Kubernetes hostPID: true";
    if strange > 0 {
        let detail = format!("{strange} of {} are of another namespace", listed.len());
        return Some(Check::note("processes", detail, what_to_do));
    }
    if facts.container.is_some() && listed.is_empty() && used > MUCH {
        let detail = format!("{} are in use, by processes that cannot be seen", size(used));
        return Some(Check::note("processes", detail, what_to_do));
    }
    None
}

fn cuda_text(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Who uses which GPU; empty where NVML says nothing.
pub(crate) fn gpu_table(facts: &Facts) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for gpu in facts.nvml.iter().flat_map(|m| &m.gpus) {
        let _ = write!(text, "\nGPU {} {} {} {}\n", gpu.index, gpu.name, gpu.pci_bus_id, gpu.uuid);
        if let Some(m) = gpu.memory {
            let (used, total, kept, free) = (size(m.used), size(m.total), size(m.reserved), size(m.free));
            let _ = writeln!(text, "    used {used} of {total}, {kept} reserved by the driver, {free} free");
        }
        for process in gpu.processes.iter().flatten() {
            let name = name_of(process.pid).unwrap_or_else(|| "?".to_owned());
            let used = process.used.map_or_else(|| "unknown".to_owned(), size);
            let _ = writeln!(text, "    {:>8}  {:<20} {:>12}", process.pid, name, used);
        }
    }
    text
}

#[cfg(test)]
mod tests;
