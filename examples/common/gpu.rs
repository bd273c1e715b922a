//! What the CUDA examples share: a GPU, a stream and an allocator for them.
#![allow(dead_code)] // as in the module beside it

use std::error::Error;
use std::sync::Arc;

use gpucache::Allocator;
use gpucache::cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig};
use gpucache::cudarc::nvrtc::{self, CompileOptions, Ptx};
use gpucache::cudarc::{cublas, driver};
use gpucache::device::cuda::{CudaDevice, device_properties};

pub(crate) struct Gpu {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) allocator: Allocator,
}

/// The first GPU; without one, or without the libraries that the example calls, says why and what to do.
pub(crate) fn gpu(needs_cublas: bool) -> Result<Option<Gpu>, Box<dyn Error>> {
    let properties = match device_properties(0) {
        Ok(properties) => properties,
        Err(error) => {
            println!("Skipped: {error}.");
            println!("This example launches kernels; `quickstart` runs without a GPU.");
            return Ok(None);
        }
    };
    // SAFETY: only looks for the library.
    let nvrtc = unsafe { nvrtc::sys::is_culib_present() };
    // SAFETY: as above.
    let cublas = !needs_cublas || unsafe { cublas::sys::is_culib_present() };
    for (name, present) in [("libnvrtc", nvrtc), ("libcublas", cublas)] {
        if !present {
            println!("Skipped: {name}.so cannot be loaded. Put the CUDA toolkit's lib64 in LD_LIBRARY_PATH.");
            return Ok(None);
        }
    }
    println!("Running on {}.", properties.name);
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let device = CudaDevice::from_context(Arc::clone(&context))?;
    let allocator = Allocator::builder().device(Arc::new(device)).build()?;
    Ok(Some(Gpu { context, stream, allocator }))
}

impl Gpu {
    /// Compiles CUDA C++ for this GPU.
    pub(crate) fn compile(&self, source: &str) -> Result<Ptx, Box<dyn Error>> {
        let (major, minor) = self.context.compute_capability()?;
        // The option outlives the process; there is one per device.
        let architecture: &'static str = Box::leak(format!("compute_{major}{minor}").into_boxed_str());
        let options = CompileOptions { arch: Some(architecture), ..CompileOptions::default() };
        Ok(nvrtc::compile_ptx_with_opts(source, options)?)
    }

    /// One kernel of a source.
    pub(crate) fn kernel(&self, source: &str, name: &str) -> Result<CudaFunction, Box<dyn Error>> {
        Ok(self.context.load_module(self.compile(source)?)?.load_function(name)?)
    }
}

/// 256 threads per block, one thread per element.
pub(crate) fn elements(count: usize) -> LaunchConfig {
    let blocks = count.div_ceil(256).max(1) as u32;
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 }
}

/// Free bytes as the driver sees them.
pub(crate) fn free_bytes() -> Result<usize, driver::DriverError> {
    Ok(driver::result::mem_get_info()?.0)
}
