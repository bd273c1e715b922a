//! A kernel of one's own on memory of ours: `y = a * x + y`.
//!
//! `cargo run --release --features cuda-examples --example saxpy` (needs a GPU and the toolkit's NVRTC)
#![allow(clippy::float_cmp)] // small whole numbers are exact

mod common {
    pub(crate) mod gpu;
}

use std::error::Error;

use common::gpu::{elements, gpu};
use gpucache::cudarc::driver::PushKernelArg;

const SOURCE: &str = r#"
extern "C" __global__ void saxpy(float a, const float *x, float *y, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(gpu) = gpu(false)? else { return Ok(()) };
    let saxpy = gpu.kernel(SOURCE, "saxpy")?;
    let n = 1_usize << 24;
    let host: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();

    for round in 1..=3 {
        let x = gpu.allocator.clone_htod(&host, &gpu.stream)?;
        let mut y = gpu.allocator.alloc_zeros::<f32>(n, &gpu.stream)?;
        let count = n as u64;
        let mut launch = gpu.stream.launch_builder(&saxpy);
        launch.arg(&2.0_f32).arg(&x).arg(&mut y).arg(&count);
        // SAFETY: the arguments are the kernel's, and it stays within `n` elements.
        unsafe { launch.launch(elements(n)) }?;
        let wrong = y.to_vec()?.iter().zip(&host).filter(|(y, x)| **y != 2.0 * **x).count();
        println!(
            "round {round}: {wrong} of {n} elements wrong; segments asked of the driver so far: {}",
            gpu.allocator.memory_stats().num_device_alloc
        );
        // Dropped here; the next round gets the same two blocks without the driver.
    }
    print!("{}", gpu.allocator.memory_summary(true));
    Ok(())
}
