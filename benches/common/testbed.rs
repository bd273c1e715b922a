//! The device, the allocator and the streams that a bench runs on.

use std::error::Error;
use std::str::FromStr;
use std::sync::Arc;

use gpucache::Allocator;
use gpucache::cudarc::driver::{CudaContext, CudaStream, DriverError, LaunchConfig};
use gpucache::cudarc::nvrtc::Ptx;
use gpucache::device::Stream;
use gpucache::device::sim::SimDevice;

use super::must;

/// Stream 0 and 32 more.
pub(crate) const STREAMS: usize = 33;

/// Memory of the simulated device where nothing else is said: that of the GPU which the recordings were made on.
pub(crate) const H200_BYTES: u64 = 150_109_880_320;

/// Memory for scenarios with more cached bytes than any GPU has.
pub(crate) const VAST_BYTES: u64 = 1 << 40;

/// Where a bench runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Simulated,
    Cuda(u32),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "sim" => Ok(Target::Simulated),
            Some(("cuda", ordinal)) => {
                ordinal.parse().map(Target::Cuda).map_err(|e| format!("'{text}': {e}; write cuda:0"))
            }
            _ => Err(format!("'{text}' is no device: write sim or cuda:0")),
        }
    }
}

impl Target {
    /// From `GPUCACHE_BENCH_DEVICE`; the simulated device where it is not set.
    pub(crate) fn from_env() -> Self {
        match std::env::var("GPUCACHE_BENCH_DEVICE") {
            Ok(text) => must::<_, String>(text.parse()),
            Err(_) => Target::Simulated,
        }
    }
}

/// An allocator on its device, with streams to use it on.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) allocator: Allocator,
    pub(crate) streams: Vec<Stream>,
    cuda: Option<CudaStreams>,
}

#[derive(Debug)]
struct CudaStreams {
    context: Arc<CudaContext>,
    streams: Vec<Arc<CudaStream>>,
}

/// A kernel that does nothing.
const NOTHING: &str = ".version 6.4\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

impl Testbed {
    /// An allocator with default options. `bytes` is the memory of a simulated device; a real one has its own.
    pub(crate) fn open(target: Target, bytes: u64) -> Result<Self, Box<dyn Error>> {
        match target {
            Target::Simulated => Ok(Self::simulated(bytes)),
            Target::Cuda(ordinal) => Self::cuda(ordinal),
        }
    }

    /// On the device that the environment names, or the end of the program.
    pub(crate) fn from_env(bytes: u64) -> Self {
        must(Self::open(Target::from_env(), bytes))
    }

    /// An allocator with default options on a simulated device.
    pub(crate) fn simulated(bytes: u64) -> Self {
        let allocator = Allocator::simulated(simulated_device(bytes));
        let streams = (0..STREAMS as u64).map(|i| Stream::from_raw(i << 8)).collect();
        Testbed { allocator, streams, cuda: None }
    }

    fn cuda(ordinal: u32) -> Result<Self, Box<dyn Error>> {
        // First: it answers with an error where there is no driver, cudarc's own calls panic.
        let allocator = Allocator::cuda(ordinal)?;
        let context = CudaContext::new(ordinal as usize)?;
        // These do not synchronize with the default stream, as the contract asks.
        let own = (1..STREAMS).map(|_| context.new_stream()).collect::<Result<Vec<_>, _>>()?;
        let streams = std::iter::once(Stream::DEFAULT)
            .chain(own.iter().map(|s| Stream::from_raw(s.cu_stream() as u64)))
            .collect();
        Ok(Testbed { allocator, streams, cuda: Some(CudaStreams { context, streams: own }) })
    }

    /// Launches a kernel and waits for it, on a GPU: asking the driver for an event costs several times as much in a
    /// program that ever did. Whether there is a GPU.
    pub(crate) fn launch_kernel(&self) -> Result<bool, DriverError> {
        let Some(cuda) = &self.cuda else { return Ok(false) };
        let nothing = cuda.context.load_module(Ptx::from_src(NOTHING))?.load_function("nothing")?;
        let stream = &cuda.streams[0];
        // SAFETY: it takes no arguments and touches no memory.
        unsafe { stream.launch_builder(&nothing).launch(LaunchConfig::for_num_elems(1)) }?;
        stream.synchronize()?;
        Ok(true)
    }

    /// The second stream.
    pub(crate) fn side_stream(&self) -> Stream {
        self.streams[1]
    }
}

fn simulated_device(bytes: u64) -> SimDevice {
    SimDevice::new(bytes)
}
