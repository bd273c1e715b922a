//! On a driver: the fake one, where a stream can be held, or a real one, where a kernel spins.

use std::sync::Arc;

use gpucache::cudarc::driver::{CudaFunction, CudaModule, CudaStream, LaunchConfig, PushKernelArg};
use gpucache::cudarc::nvrtc::Ptx;
use gpucache::device::Device;
use gpucache::device::cuda::CudaDevice;
use gpucache::{Allocator, Config, DeviceBuffer};

use super::fake::driver::{Driver, copy_out, driver, raw};
use super::naive::Naive;

pub const LEN: usize = 1 << 20;
const BYTES: usize = 4 * LEN;
/// About a fifth of a second on a GPU.
const SLOW: u64 = 400_000_000;

/// Kernels and two streams.
pub struct Gpu {
    pub device: Arc<CudaDevice>,
    pub a: Arc<CudaStream>,
    pub b: Arc<CudaStream>,
    module: Arc<CudaModule>,
    // Checks for leaks, so it goes last.
    pub driver: Driver,
}

impl Gpu {
    pub fn new() -> Option<Gpu> {
        let (driver, device) = driver()?;
        let context = device.context();
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let module = context.load_module(Ptx::from_src(include_str!("kernels.ptx"))).unwrap();
        let gpu = Gpu { device: Arc::new(device), a, b, module, driver };
        if gpu.driver.fake().is_none() {
            // `cargo test` finds the fake driver beside the test binaries when it was built.
            if gpu.module.load_function("spin").is_err() {
                println!(
                    "skipped: this driver has no kernels of ours; .ci/fake-cuda.sh runs this on the fake driver"
                );
                return None;
            }
            gpu.load_kernels();
        }
        Some(gpu)
    }

    /// A real driver loads a kernel at its first launch, and waits for others then.
    fn load_kernels(&self) {
        let one = elements(1);
        for name in ["fill_u32", "add_u32"] {
            // SAFETY: the kernels have these arguments and touch no element of none.
            unsafe {
                self.a.launch_builder(&self.kernel(name)).arg(&0_u64).arg(&0_u32).arg(&0_u64).launch(one)
            }
            .unwrap();
        }
        // SAFETY: the kernel has this argument and touches no memory.
        unsafe { self.a.launch_builder(&self.kernel("spin")).arg(&0_u64).launch(one) }.unwrap();
        self.a.synchronize().unwrap();
    }

    pub fn allocator(&self, options: &str) -> Allocator {
        let device: Arc<dyn Device> = Arc::<CudaDevice>::clone(&self.device);
        Allocator::builder().device(device).config(Config::parse(options).unwrap()).build().unwrap()
    }

    pub fn kernel(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }

    /// What is queued on the stream from now on is late.
    pub fn slow_down(&self, stream: &CudaStream) {
        if let Some(fake) = self.driver.fake() {
            fake.hold(raw(stream).raw(), true);
            return;
        }
        let spin = self.kernel("spin");
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel has this argument and touches no memory.
        unsafe { stream.launch_builder(&spin).arg(&SLOW).launch(one) }.unwrap();
    }

    /// Ends that, and waits for all work.
    pub fn finish(&self) {
        for stream in [&self.a, &self.b] {
            if let Some(fake) = self.driver.fake() {
                fake.hold(raw(stream).raw(), false);
            }
            stream.synchronize().unwrap();
        }
    }

    /// Launches on the buffer's home stream.
    pub fn fill(&self, buffer: &mut DeviceBuffer<u32>, value: u32) {
        let (function, len) = (self.kernel("fill_u32"), buffer.len() as u64);
        let stream = Arc::clone(buffer.stream());
        // SAFETY: the kernel has these arguments and writes `len` elements.
        unsafe {
            stream.launch_builder(&function).arg(buffer).arg(&value).arg(&len).launch(elements(len)).unwrap();
        }
    }

    /// Launches with the address alone, which says nothing about streams.
    fn launch_raw(&self, stream: &CudaStream, kernel: &str, address: u64, value: u32) {
        let (function, len) = (self.kernel(kernel), LEN as u64);
        // SAFETY: the kernel has these arguments; the tests give `LEN` elements.
        unsafe {
            stream
                .launch_builder(&function)
                .arg(&address)
                .arg(&value)
                .arg(&len)
                .launch(elements(len))
                .unwrap();
        }
    }

    /// Launches on a stream that is noted.
    pub fn add_on(&self, buffer: &mut DeviceBuffer<u32>, stream: &Arc<CudaStream>, value: u32) {
        let (function, len) = (self.kernel("add_u32"), buffer.len() as u64);
        // SAFETY: the kernel has these arguments and writes `len` elements.
        unsafe {
            stream
                .launch_builder(&function)
                .arg(&buffer.on_mut(stream))
                .arg(&value)
                .arg(&len)
                .launch(elements(len))
                .unwrap();
        }
    }
}

/// Without printing a million elements.
pub fn assert_all(found: &[u32], value: u32, otherwise: &str) {
    let wrong = found.iter().filter(|&&element| element != value).count();
    assert_eq!((found.len(), wrong), (LEN, 0), "elements, and how many are not {value}: {otherwise}");
}

pub fn elements(len: u64) -> LaunchConfig {
    LaunchConfig::for_num_elems(u32::try_from(len).unwrap())
}

fn words(gpu: &Gpu, address: u64) -> Vec<u32> {
    copy_out(&gpu.device, address, BYTES)
        .chunks(4)
        .map(|b| u32::from_ne_bytes(b.try_into().unwrap()))
        .collect()
}

/// A late use on B, a drop, an allocation on A that overwrites, and both read back.
fn late_use(options: &str, use_on_b: impl Fn(&Gpu, &mut DeviceBuffer<u32>, &mut DeviceBuffer<u32>)) {
    let Some(gpu) = Gpu::new() else { return };
    let allocator = gpu.allocator(options);
    let mut seen = allocator.alloc_zeros::<u32>(LEN, &gpu.b).unwrap();
    let mut buffer = allocator.alloc_zeros::<u32>(LEN, &gpu.a).unwrap();
    let address = buffer.address();
    gpu.fill(&mut buffer, 1);
    gpu.a.synchronize().unwrap();

    gpu.slow_down(&gpu.b);
    use_on_b(&gpu, &mut buffer, &mut seen);
    drop(buffer);
    let stats = allocator.memory_stats();
    let pending = stats.active_bytes.all.current - stats.allocated_bytes.all.current;
    assert_eq!(pending, BYTES as i64, "the block is not kept back for the other stream");
    // SAFETY: filled next.
    let mut next = unsafe { allocator.alloc_uninit::<u32>(LEN, &gpu.a) }.unwrap();
    assert_ne!(next.address(), address, "handed out while the other stream uses it");
    gpu.fill(&mut next, 7);
    gpu.finish();
    assert_all(&next.to_vec().unwrap(), 7, "the late kernel wrote into another's buffer");
    assert_all(&seen.to_vec().unwrap(), 1, "the late reader saw another's data");

    drop((next, seen));
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.memory_reserved(), 0);
    allocator.verify().unwrap();
}

#[test]
fn a_copy_on_another_stream_is_noted_by_itself() {
    for options in ["", "expandable_segments:True"] {
        late_use(options, |gpu, buffer, seen| gpu.b.memcpy_dtod(buffer, seen).unwrap());
    }
}

#[test]
fn a_launch_on_another_stream_is_noted_by_on() {
    late_use("", |gpu, buffer, seen| {
        gpu.b.memcpy_dtod(buffer, seen).unwrap();
        gpu.add_on(buffer, &gpu.b, 1);
    });
}

#[test]
fn a_plain_launch_is_safe_after_record_stream() {
    late_use("", |gpu, buffer, seen| {
        gpu.launch_raw(&gpu.b, "fill_u32", seen.address(), 1);
        gpu.launch_raw(&gpu.b, "add_u32", buffer.address(), 1);
        buffer.record_stream(&gpu.b);
    });
}

#[test]
fn a_naive_allocator_spoils_it() {
    let Some(gpu) = Gpu::new() else { return };
    let mut naive = Naive::new(Arc::<CudaDevice>::clone(&gpu.device));
    let address = naive.alloc(BYTES as u64, raw(&gpu.a));
    gpu.launch_raw(&gpu.a, "fill_u32", address, 1);
    gpu.a.synchronize().unwrap();
    gpu.slow_down(&gpu.b);
    gpu.launch_raw(&gpu.b, "add_u32", address, 1);
    naive.free(address, BYTES as u64, raw(&gpu.a));

    let next = naive.alloc(BYTES as u64, raw(&gpu.a));
    gpu.launch_raw(&gpu.a, "fill_u32", next, 7);
    gpu.a.synchronize().unwrap();
    gpu.finish();
    assert_all(&words(&gpu, next), 8, "the test sees no early reuse");
    naive.free(next, BYTES as u64, raw(&gpu.a));
}

#[test]
fn the_other_stream_may_be_gone_by_the_drop() {
    let Some(gpu) = Gpu::new() else { return };
    let allocator = gpu.allocator("");
    let buffer = allocator.alloc_zeros::<u32>(LEN, &gpu.a).unwrap();
    let address = buffer.address();
    let brief = gpu.device.context().new_stream().unwrap();
    let mut seen = allocator.alloc_zeros::<u32>(LEN, &brief).unwrap();
    brief.memcpy_dtod(&buffer, &mut seen).unwrap();
    drop(seen);
    brief.synchronize().unwrap();
    drop(brief);
    drop(buffer);
    let again = allocator.alloc_zeros::<u32>(LEN, &gpu.a).unwrap();
    assert_eq!(again.address(), address);
    drop(again);
    allocator.verify().unwrap();
}
