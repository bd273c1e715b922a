//! Scratch memory of gpucache beside candle's tensors, on candle's own context, stream and cuBLAS handle.
//!
//! Run from this folder with `cargo run --release`. It needs a GPU and the CUDA toolkit: candle's build script calls
//! `nvcc`, and candle links the driver, cuBLAS, cuRAND and NVRTC. Where those libraries are but no GPU is, it says why
//! it skips; where `libcuda.so.1` itself is missing, the system's loader refuses to start it.
//!
//! State: compiles with candle-core 0.11.1 and a stand-in for `nvcc` that answers as CUDA 12.8 and writes empty
//! kernels. Linked with stubs it skips on `crates/fake-cuda` without devices, and with one it gets as far as candle's
//! first kernel. Never linked with CUDA's real libraries, and never run on a GPU: its figures are unseen.

use std::error::Error;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use candle_core::cuda_backend::cudarc::cublas::{Gemm, GemmConfig};
use candle_core::cuda_backend::cudarc::driver::{CudaStream, CudaView};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Device, Layout, Storage, Tensor, bail};
use gpucache::device::cuda::{CudaDevice as Driver, device_properties};
use gpucache::units::format_size;
use gpucache::{Allocator, DeviceBuffer};

const N: usize = 1024;
const ROUNDS: usize = 4;
/// The sums have 1024 terms of size about 1; two orders of summation differ by far less.
const TOLERANCE: f32 = 1e-2;

fn main() -> Result<(), Box<dyn Error>> {
    match device_properties(0) {
        Ok(properties) => println!("Running on {}.", properties.name),
        Err(error) => {
            println!("Skipped: {error}.");
            return Ok(());
        }
    }
    // Not `new_cuda`: its per-thread stream is another stream in each thread, under the same handle.
    let device = Device::new_cuda_with_stream(0)?;
    let candle = device.as_cuda_device()?;
    let stream = candle.cuda_stream();
    let allocator = beside(&stream)?;

    let a = Tensor::randn(0.0_f32, 1.0, (N, N), &device)?;
    let b = Tensor::randn(0.0_f32, 1.0, (N, N), &device)?;
    let expected = a.matmul(&b)?;
    for round in 1..=ROUNDS {
        // SAFETY: the product overwrites all of it before anything reads it.
        let mut scratch = unsafe { allocator.alloc_uninit::<f32>(N * N, &stream) }?;
        multiply(candle, &a, &b, &mut scratch)?;
        let product = to_tensor(candle, &scratch)?;
        let difference = (product - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        println!("round {round}: scratch at {:#x}, largest difference {difference:e}", scratch.address());
        if difference.is_nan() || difference > TOLERANCE {
            return Err(format!("the product differs from candle's by {difference}").into());
        }
    }
    report(&allocator);
    Ok(())
}

/// An allocator in the context of candle's stream.
fn beside(stream: &Arc<CudaStream>) -> gpucache::Result<Allocator> {
    let device = Driver::from_context(Arc::clone(stream.context()))?;
    Allocator::builder().device(Arc::new(device)).build()
}

/// `out = a b`, with candle's cuBLAS handle, which works on candle's stream.
fn multiply(
    candle: &CudaDevice,
    a: &Tensor,
    b: &Tensor,
    out: &mut DeviceBuffer<f32>,
) -> Result<(), Box<dyn Error>> {
    let (a_storage, a_layout) = a.storage_and_layout();
    let (b_storage, b_layout) = b.storage_and_layout();
    let (a, b) = (elements(&a_storage, a_layout)?, elements(&b_storage, b_layout)?);
    let n = i32::try_from(N)?;
    let config = GemmConfig {
        transa: CUBLAS_OP_N,
        transb: CUBLAS_OP_N,
        m: n,
        n,
        k: n,
        alpha: 1.0_f32,
        lda: n,
        ldb: n,
        beta: 0.0,
        ldc: n,
    };
    // cuBLAS counts by columns and candle by rows: the transposed product is that of the transposed in reverse.
    // SAFETY: three matrices of N by N.
    unsafe { candle.cublas_handle().gemm(config, &b, &a, out) }?;
    Ok(())
}

/// The elements of a contiguous tensor, where candle keeps them.
fn elements<'a>(storage: &'a Storage, layout: &Layout) -> candle_core::Result<CudaView<'a, f32>> {
    let Storage::Cuda(storage) = storage else { bail!("the tensor is not on a CUDA device") };
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("the tensor is not contiguous") };
    Ok(storage.as_cuda_slice::<f32>()?.slice(start..end))
}

/// A tensor with a copy of the scratch. The tensor's memory is candle's: it takes no one else's.
fn to_tensor(candle: &CudaDevice, scratch: &DeviceBuffer<f32>) -> candle_core::Result<Tensor> {
    // SAFETY: the copy fills it.
    let mut slice = unsafe { candle.alloc::<f32>(scratch.len()) }?;
    candle.memcpy_dtod(scratch, &mut slice)?;
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, candle.clone()));
    Ok(Tensor::from_storage(storage, (N, N), BackpropOp::none(), false))
}

/// What the scratch took. candle's tensors are not in these figures.
fn report(allocator: &Allocator) {
    let stats = allocator.memory_stats();
    println!("memory_allocated {}", format_size(allocator.memory_allocated()));
    println!("memory_reserved  {}", format_size(allocator.memory_reserved()));
    println!("segments asked of the driver: {} for {ROUNDS} buffers", stats.num_device_alloc);
}
