//! What the example does on a GPU: cudarc's stream capture and one kernel, or the simulated device.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use gpucache::cudarc::driver::{CudaGraph, CudaStream, DriverError, result, sys};
use gpucache::device::Stream;
use gpucache::device::cuda::CudaDevice;
use gpucache::device::sim::{SimDevice, SimGraph};
use gpucache::device::{DeviceError, DeviceResult};

/// Work on one stream; addresses and lengths in bytes.
pub(crate) trait Gpu {
    type Graph;
    type Error: std::error::Error + 'static;

    fn stream(&self) -> Stream;
    fn begin_capture(&self) -> Result<(), Self::Error>;
    fn end_capture(&self) -> Result<Self::Graph, Self::Error>;
    fn replay(&self, graph: &Self::Graph) -> Result<(), Self::Error>;
    fn fill(&self, address: u64, bytes: usize, value: u8) -> Result<(), Self::Error>;
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), Self::Error>;
    /// Adds to each `u32`.
    fn add_u32(&self, address: u64, bytes: usize, value: u32) -> Result<(), Self::Error>;
    /// Waits, and reads the first `u32`; `None` where nothing really runs.
    fn read_u32(&self, address: u64) -> Result<Option<u32>, Self::Error>;
}

/// `out[i] += value` for all `i < n`. PTX is compiled by the driver, so no toolkit is needed.
const KERNEL: &str = "
.version 6.0
.target sm_50
.address_size 64
.visible .entry add_u32(.param .u64 out, .param .u32 value, .param .u64 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [value];
    ld.param.u64 %rd2, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    cvt.u64.u32 %rd3, %r5;
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd4, %rd1;
    shl.b64 %rd5, %rd3, 2;
    add.u64 %rd6, %rd4, %rd5;
    ld.global.u32 %r6, [%rd6];
    add.u32 %r7, %r6, %r1;
    st.global.u32 [%rd6], %r7;
DONE:
    ret;
}
";
const THREADS: u32 = 256;

/// A real GPU.
pub(crate) struct CudaGpu {
    stream: Arc<CudaStream>,
    module: sys::CUmodule,
    kernel: sys::CUfunction,
}

impl CudaGpu {
    pub(crate) fn new(device: &CudaDevice) -> Result<Self, Box<dyn std::error::Error>> {
        device.context().bind_to_thread()?;
        let stream = device.context().new_stream()?;
        let image = CString::new(KERNEL)?;
        // SAFETY: the image is PTX text that ends in a zero; the driver copies it.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
        // SAFETY: the module was loaded just now.
        let kernel = unsafe { result::module::get_function(module, CString::new("add_u32")?) }?;
        Ok(CudaGpu { stream, module, kernel })
    }
}

impl Drop for CudaGpu {
    fn drop(&mut self) {
        // SAFETY: loaded in `new`, and the graph that used its kernel is gone.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

impl Gpu for CudaGpu {
    type Graph = CudaGraph;
    type Error = DriverError;

    fn stream(&self) -> Stream {
        Stream::from_raw(self.stream.cu_stream() as u64)
    }

    fn begin_capture(&self) -> Result<(), DriverError> {
        self.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    }

    fn end_capture(&self) -> Result<CudaGraph, DriverError> {
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags)?;
        graph.ok_or(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED))
    }

    fn replay(&self, graph: &CudaGraph) -> Result<(), DriverError> {
        graph.launch()
    }

    fn fill(&self, address: u64, bytes: usize, value: u8) -> Result<(), DriverError> {
        // SAFETY: the callers give blocks of that length, which live until the work is done.
        unsafe { result::memset_d8_async(address, value, bytes, self.stream.cu_stream()) }
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }
    }

    fn add_u32(&self, address: u64, bytes: usize, value: u32) -> Result<(), DriverError> {
        let (mut address, mut value, mut count) = (address, value, bytes as u64 / 4);
        let grid = (count.div_ceil(u64::from(THREADS)) as u32, 1, 1);
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut address).cast(), (&raw mut value).cast(), (&raw mut count).cast()];
        // SAFETY: three arguments of the kernel's types, which the driver copies; the memory as above.
        unsafe {
            result::launch_kernel(
                self.kernel,
                grid,
                (THREADS, 1, 1),
                0,
                self.stream.cu_stream(),
                &mut arguments,
            )
        }
    }

    fn read_u32(&self, address: u64) -> Result<Option<u32>, DriverError> {
        self.stream.synchronize()?;
        let mut bytes = [0_u8; 4];
        // SAFETY: the callers give live blocks.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }?;
        Ok(Some(u32::from_ne_bytes(bytes)))
    }
}

/// The simulated device: work becomes nodes of a graph, nothing is computed.
pub(crate) struct SimGpu {
    device: SimDevice,
    stream: Stream,
}

impl SimGpu {
    pub(crate) fn new(device: SimDevice) -> Self {
        let stream = device.create_stream();
        SimGpu { device, stream }
    }

    fn work(&self) {
        self.device.launch(self.stream);
    }
}

impl Gpu for SimGpu {
    type Graph = SimGraph;
    type Error = DeviceError;

    fn stream(&self) -> Stream {
        self.stream
    }

    fn begin_capture(&self) -> DeviceResult<()> {
        self.device.begin_capture(self.stream).map(drop)
    }

    fn end_capture(&self) -> DeviceResult<SimGraph> {
        self.device.end_capture(self.stream)
    }

    fn replay(&self, _graph: &SimGraph) -> DeviceResult<()> {
        self.work();
        Ok(())
    }

    fn fill(&self, _address: u64, _bytes: usize, _value: u8) -> DeviceResult<()> {
        self.work();
        Ok(())
    }

    fn copy(&self, _to: u64, _from: u64, _bytes: usize) -> DeviceResult<()> {
        self.work();
        Ok(())
    }

    fn add_u32(&self, _address: u64, _bytes: usize, _value: u32) -> DeviceResult<()> {
        self.work();
        Ok(())
    }

    fn read_u32(&self, _address: u64) -> DeviceResult<Option<u32>> {
        Ok(None)
    }
}
