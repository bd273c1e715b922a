//! cuBLAS on buffers of ours: a matrix product, its check, and its speed.
//!
//! `cargo run --release --features cuda-examples --example cublas_gemm` (needs a GPU, NVRTC and cuBLAS)
#![allow(clippy::float_cmp)] // small whole numbers are exact

mod common {
    pub(crate) mod gpu;
}

use std::error::Error;
use std::time::Instant;

use common::gpu::gpu;
use gpucache::cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use gpucache::cudarc::cublas::{CudaBlas, Gemm, GemmConfig};

const N: usize = 4096;
const ROUNDS: u32 = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(gpu) = gpu(true)? else { return Ok(()) };
    let blas = CudaBlas::new(gpu.stream.clone())?;
    // Column-major: a is 2 on the diagonal, so that the product is 2 b.
    let mut diagonal = vec![0.0_f32; N * N];
    (0..N).for_each(|i| diagonal[i * N + i] = 2.0);
    let host: Vec<f32> = (0..N * N).map(|i| (i % 251) as f32).collect();
    let a = gpu.allocator.clone_htod(&diagonal, &gpu.stream)?;
    let b = gpu.allocator.clone_htod(&host, &gpu.stream)?;

    let n = i32::try_from(N)?;
    let config = || GemmConfig {
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
    let mut started = Instant::now();
    for round in 0..=ROUNDS {
        // A fresh result each time, as a tensor library makes it: no driver call after the first.
        let mut c = gpu.allocator.alloc_zeros::<f32>(N * N, &gpu.stream)?;
        // SAFETY: three matrices of N by N.
        unsafe { blas.gemm(config(), &a, &b, &mut c) }?;
        if round == 0 {
            let wrong = c.to_vec()?.iter().zip(&host).filter(|(c, b)| **c != 2.0 * **b).count();
            println!("{wrong} of {} elements wrong", N * N);
            started = Instant::now();
        }
    }
    gpu.stream.synchronize()?;
    let seconds = started.elapsed().as_secs_f64() / f64::from(ROUNDS);
    println!("{N} x {N}: {:.2} ms, {:.1} TFLOP/s", seconds * 1e3, 2.0 * (N as f64).powi(3) / seconds / 1e12);
    println!("segments asked of the driver: {}", gpu.allocator.memory_stats().num_device_alloc);
    Ok(())
}
