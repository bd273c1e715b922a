//! What nvidia-smi shows, byte for byte.

use gpucache::Allocator;
use gpucache::device::Device;
use gpucache::device::sim::SimDevice;

use super::{GIB, MIB};

fn machine() -> SimDevice {
    SimDevice::builder()
        .total_memory(16 << 30)
        .context_overhead(500 << 20)
        .driver_reserved(616 << 20)
        .driver_version(13_000)
        .pid(4321)
        .build()
}

#[test]
fn the_rows_add_up_to_nvidia_smis_figure() {
    let device = machine();
    device.set_other_process(77, 3 << 30);
    let gpu = Allocator::simulated(device.clone());
    let first = gpu.reconcile().unwrap();
    assert_eq!((first.context, first.other_own), (Some(500 << 20), Some(0)));

    let library = device.malloc(200 << 20).unwrap();
    let live = gpu.alloc(GIB).unwrap();
    drop(gpu.alloc(2 * GIB).unwrap());
    let r = gpu.reconcile().unwrap();
    assert_eq!((r.reserved, r.allocated), (3 << 30, 1 << 30));
    assert_eq!((r.context, r.other_own), (Some(500 << 20), Some(200 << 20)));
    assert_eq!(r.others_bytes(), Some(3 << 30));
    assert_eq!(r.used(), (6 << 30) + (700 << 20));
    assert_eq!(r.residual(), Some(0));
    let nvml = r.nvml.unwrap();
    assert_eq!(nvml.used + nvml.reserved + nvml.free, nvml.total);
    let table = r.to_string();
    for text in [
        "GPU 0: Simulated GPU, compute capability 9.0, driver for CUDA 13.0",
        "reserved by gpucache                                 3.00 GiB",
        "CUDA context and modules                           500.00 MiB",
        "other memory of this process                       200.00 MiB",
        "process 77                                           3.00 GiB",
        "residual                                              0 bytes",
        "= used, as nvidia-smi shows it                       6.68 GiB",
        "reserved by the driver                             616.00 MiB",
    ] {
        assert!(table.contains(text), "{text:?} in\n{table}");
    }
    drop(live);
    device.free(library).unwrap();
}

#[test]
fn without_nvml_it_says_what_cannot_be_known() {
    let device = SimDevice::builder().total_memory(8 << 30).processes_visible(false).build();
    device.set_other_process(77, 3 << 30);
    let gpu = Allocator::simulated(device);
    let _live = gpu.alloc(512 * MIB).unwrap();
    let r = gpu.reconcile().unwrap();
    assert_eq!((r.residual(), r.nvml, r.context), (None, None, None));
    assert_eq!(r.unattributed(), 3 << 30);
    let table = r.to_string();
    assert!(table.contains("context, other libraries, other processes            3.00 GiB"), "{table}");
    assert!(table.contains("NVML tells nothing here"), "{table}");
}

#[test]
fn processes_are_listed_as_pytorch_does() {
    let device = machine();
    device.set_other_process(77, 1_572_864);
    let gpu = Allocator::simulated(device);
    assert_eq!(
        gpu.list_gpu_processes(),
        "GPU:0\nprocess       4321 uses      500.000 MB GPU memory\nprocess         77 uses        1.500 MB GPU memory"
    );
    let blind = SimDevice::builder().processes_visible(false).ordinal(3).build();
    let text = Allocator::simulated(blind).list_gpu_processes();
    assert!(text.starts_with("GPU:3\nthe processes cannot be seen"), "{text}");
    assert!(gpu.device_identity().starts_with("GPU 0: Simulated GPU"));
}
