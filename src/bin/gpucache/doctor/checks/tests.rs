use gpucache::device::DeviceProperties;
use gpucache::device::nvml::Machine;

use super::*;

/// A laptop without anything.
fn bare() -> Facts {
    Facts {
        container: None,
        kernel_driver: None,
        control_file: false,
        gpu_files: 0,
        cuda_visible_devices: None,
        nvidia_visible_devices: None,
        driver_capabilities: None,
        cuda: Err(Trouble::NoDriver("libcuda.so.1: not found".to_owned())),
        nvml: Err("libnvidia-ml.so.1: not found".to_owned()),
        toolkit: None,
        config: Ok(String::new()),
    }
}

fn healthy() -> Facts {
    let mut device = DeviceProperties::default();
    device.name = "NVIDIA H200".to_owned();
    device.total_memory = 140 << 30;
    device.driver_version = 13_000;
    Facts {
        kernel_driver: Some("580.159.04".to_owned()),
        control_file: true,
        gpu_files: 1,
        cuda: Ok(vec![device]),
        nvml: Ok(Machine::default()),
        ..bare()
    }
}

fn no_gpu_because(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts =
        Facts { cuda: Err(Trouble::NoGpu("cuInit: CUDA_ERROR_NO_DEVICE".to_owned())), ..healthy() };
    change(&mut facts);
    facts
}

/// The first problem's remedy.
fn remedy(facts: &Facts) -> String {
    all(facts).into_iter().find(|c| c.level == Level::Problem).and_then(|c| c.remedy).unwrap_or_default()
}

#[test]
fn a_healthy_machine_has_no_problem() {
    let checks = all(&healthy());
    assert!(checks.iter().all(|c| c.level == Level::Ok), "{checks:#?}");
    assert_eq!(checks[0].detail, "580.159.04, for CUDA 13.0");
}

#[test]
fn each_trouble_has_its_own_remedy() {
    let docker = Some("docker");
    for (facts, expected) in [
        (bare(), "install the NVIDIA driver"),
        (
            Facts { kernel_driver: Some("1.2".to_owned()), ..bare() },
            "install the driver's library libcuda.so.1",
        ),
        (Facts { container: docker, ..bare() }, "docker run --gpus all"),
        (
            Facts { container: docker, kernel_driver: Some("1.2".to_owned()), ..bare() },
            "the host has a driver",
        ),
        (
            Facts { container: docker, control_file: true, ..bare() },
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        (Facts { cuda: Err(Trouble::Other("cuInit failed".to_owned())), ..bare() }, "modprobe nvidia"),
        (Facts { cuda: Err(Trouble::Other("cuInit failed".to_owned())), ..healthy() }, "restart the machine"),
        (no_gpu_because(|f| f.cuda_visible_devices = Some("9".to_owned())), "CUDA_VISIBLE_DEVICES is '9'"),
        (no_gpu_because(|f| f.nvidia_visible_devices = Some("void".to_owned())), "NVIDIA_VISIBLE_DEVICES"),
        (no_gpu_because(|f| (f.container, f.gpu_files) = (docker, 0)), "docker run --gpus all"),
        (no_gpu_because(|f| f.kernel_driver = None), "modprobe nvidia"),
        (no_gpu_because(|_| ()), "nvidia-smi and dmesg"),
        (Facts { config: Err("unknown option".to_owned()), ..healthy() }, "GPUCACHE_ALLOC_CONF"),
        (
            Facts { config: Err("PYTORCH_CUDA_ALLOC_CONF: bad: worse".to_owned()), ..healthy() },
            "correct PYTORCH_CUDA_ALLOC_CONF,",
        ),
    ] {
        let found = remedy(&facts);
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    }
}

#[test]
fn versions_that_differ_are_a_problem() {
    let mut facts = healthy();
    let mut machine = Machine::default();
    machine.driver_version = Some("570.1".to_owned());
    facts.nvml = Ok(machine);
    assert!(remedy(&facts).contains("restart the machine"));
}

#[test]
fn missing_nvml_is_only_a_note() {
    let facts = Facts { nvml: Err("no library".to_owned()), ..healthy() };
    let checks = all(&facts);
    assert!(checks.iter().any(|c| c.level == Level::Note && c.what == "NVML"));
    assert!(checks.iter().all(|c| c.level != Level::Problem));
}
