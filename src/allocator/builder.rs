//! Making an allocator.

use std::sync::Arc;

use super::Allocator;
use crate::config::Config;
use crate::device::Device;
use crate::device::sim::SimDevice;
use crate::engine::Core;
use crate::error::Result;

/// Options of a new allocator. Without a device, CUDA device 0; without a configuration, that of the
/// environment ([`Config::from_env`]).
#[derive(Debug, Default)]
#[must_use]
pub struct Builder {
    device: Option<Arc<dyn Device>>,
    config: Option<Config>,
}

impl Builder {
    /// The device that the memory is on.
    pub fn device(mut self, device: Arc<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// The options, instead of those of the environment.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Makes the allocator.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for options that cannot hold together, and the errors of
    /// [`Allocator::cuda`] where no device was given.
    pub fn build(self) -> Result<Allocator> {
        let config = match self.config {
            Some(config) => config,
            None => Config::from_env()?,
        };
        config.validate()?;
        let device = match self.device {
            Some(device) => device,
            None => cuda_device(0)?,
        };
        Ok(Allocator::from_core(Core::new(device, config)))
    }
}

impl Allocator {
    /// The allocator of a real GPU, on its primary context, with the environment's options.
    ///
    /// # Errors
    /// [`Error::NoDriver`](crate::Error::NoDriver), [`Error::NoGpu`](crate::Error::NoGpu),
    /// [`Error::InvalidOrdinal`](crate::Error::InvalidOrdinal), or what the options have wrong.
    pub fn cuda(ordinal: u32) -> Result<Self> {
        Self::builder().device(cuda_device(ordinal)?).build()
    }

    /// The allocator of a simulated GPU, with default options.
    pub fn simulated(device: SimDevice) -> Self {
        Allocator::from_core(Core::new(Arc::new(device), Config::default()))
    }

    /// A real GPU where there is one, else a simulated one of 80 GiB: for examples and first steps.
    /// [`device`](Allocator::device)`().properties().simulated` says which it took.
    pub fn cuda_or_simulated(ordinal: u32) -> Self {
        Self::cuda(ordinal).unwrap_or_else(|_| Self::simulated(SimDevice::new(80 << 30)))
    }
}

fn cuda_device(ordinal: u32) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(crate::device::cuda::CudaDevice::new(ordinal)?))
}
