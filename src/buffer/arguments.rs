//! Buffers as arguments of kernel launches.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaStream, LaunchArgs, PushKernelArg, SyncOnDrop};

use super::view::{DeviceView, DeviceViewMut};
use super::visits::Access;
use super::{DeviceBuffer, handle};

/// A buffer (or part of one) as the argument of launches on one stream, which it has noted. Made by
/// [`DeviceBuffer::on`] and [`DeviceBuffer::on_mut`]; the use counts as queued when this is dropped.
#[must_use = "pass it to `LaunchArgs::arg`"]
pub struct OnStream<'a> {
    address: u64,
    stream: &'a CudaStream,
    // Dropped after the launch, which borrows the address.
    _used: SyncOnDrop<'a>,
}

impl fmt::Debug for OnStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStream")
            .field("address", &format_args!("{:#x}", self.address))
            .field("stream", &handle(self.stream))
            .finish()
    }
}

fn noted<'a, T>(
    buffer: &'a DeviceBuffer<T>,
    address: u64,
    stream: &'a Arc<CudaStream>,
    access: Access,
) -> OnStream<'a> {
    buffer.record_stream(stream);
    OnStream { address, stream, _used: buffer.used_by(stream, access) }
}

impl<T> DeviceBuffer<T> {
    /// The buffer as an argument that a kernel on `stream` reads: `.arg(&buffer.on(&stream))`. `stream` waits for what
    /// was queued so far for the buffer, later uses wait for the kernel, and a drop of the buffer cannot let the
    /// block be reused before.
    pub fn on<'a>(&'a self, stream: &'a Arc<CudaStream>) -> OnStream<'a> {
        noted(self, self.address(), stream, Access::Read)
    }

    /// As [`on`](DeviceBuffer::on), for a kernel that writes.
    pub fn on_mut<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> OnStream<'a> {
        noted(self, self.address(), stream, Access::Write)
    }
}

impl<'a, T> DeviceView<'a, T> {
    /// As [`DeviceBuffer::on`].
    pub fn on(&self, stream: &'a Arc<CudaStream>) -> OnStream<'a> {
        noted(self.buffer, self.address, stream, Access::Read)
    }
}

impl<T> DeviceViewMut<'_, T> {
    /// As [`DeviceBuffer::on_mut`].
    pub fn on_mut<'b>(&'b mut self, stream: &'b Arc<CudaStream>) -> OnStream<'b> {
        noted(self.buffer, self.address, stream, Access::Write)
    }
}

// SAFETY (of all impls below): the pushed reference is to a 64-bit device address, which is what a pointer argument of
// a kernel is, and it lives as long as the launch ('b: 'a).

macro_rules! plain_argument {
    ([$($lifetime:lifetime)?] $argument:ty, |$it:ident| $buffer:expr, $address:expr) => {
        // SAFETY: see above.
        unsafe impl<'a, 'b: 'a, $($lifetime: 'b,)? T> PushKernelArg<$argument> for LaunchArgs<'a> {
            #[track_caller]
            fn arg(&mut self, $it: $argument) -> &mut Self {
                $buffer.launches.note(&*self, Location::caller());
                PushKernelArg::<&'b u64>::arg(self, $address)
            }
        }
    };
}

plain_argument!([] &'b DeviceBuffer<T>, |it| it, it.as_allocation().address_place());
plain_argument!([] &'b mut DeviceBuffer<T>, |it| it, it.as_allocation().address_place());
plain_argument!(['c] &'b DeviceView<'c, T>, |it| it.buffer, &it.address);
plain_argument!(['c] &'b mut DeviceViewMut<'c, T>, |it| it.buffer, &it.address);

// SAFETY: see above.
unsafe impl<'a, 'b: 'a, 'c: 'b> PushKernelArg<&'b OnStream<'c>> for LaunchArgs<'a> {
    fn arg(&mut self, argument: &'b OnStream<'c>) -> &mut Self {
        PushKernelArg::<&'b u64>::arg(self, &argument.address)
    }
}
