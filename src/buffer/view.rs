//! Parts of a buffer.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, sys};

use super::DeviceBuffer;
use super::visits::Access;
use crate::error::{Error, Result};

/// Some elements of a [`DeviceBuffer`], borrowed; any number at a time.
pub struct DeviceView<'a, T> {
    pub(super) buffer: &'a DeviceBuffer<T>,
    pub(super) address: u64,
    len: usize,
}

/// Some elements of a [`DeviceBuffer`], borrowed for writing.
pub struct DeviceViewMut<'a, T> {
    pub(super) buffer: &'a DeviceBuffer<T>,
    pub(super) address: u64,
    len: usize,
    /// The elements are borrowed exclusively, the books of the buffer are not.
    exclusive: PhantomData<&'a mut [T]>,
}

/// Bounds as a range of elements, if they lie within `len`.
fn resolve(bounds: &impl RangeBounds<usize>, len: usize) -> Option<Range<usize>> {
    let start = match bounds.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match bounds.end_bound() {
        Bound::Included(&end) => end.checked_add(1)?,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then_some(start..end)
}

fn outside(bounds: &impl RangeBounds<usize>, len: usize) -> Error {
    Error::Buffer(format!(
        "elements {:?} to {:?} are not within the {len} there are",
        bounds.start_bound(),
        bounds.end_bound()
    ))
}

impl<T> DeviceBuffer<T> {
    /// All of it.
    pub fn as_view(&self) -> DeviceView<'_, T> {
        DeviceView { buffer: self, address: self.address(), len: self.len() }
    }

    /// All of it, for writing.
    pub fn as_view_mut(&mut self) -> DeviceViewMut<'_, T> {
        DeviceViewMut { buffer: self, address: self.address(), len: self.len(), exclusive: PhantomData }
    }

    /// The elements of a range; `None` if it reaches outside.
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<DeviceView<'_, T>> {
        self.as_view().part(resolve(&range, self.len())?).into()
    }

    /// The elements of a range.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the range reaches outside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'_, T>> {
        self.as_view().slice(range)
    }

    /// The elements of a range, for writing; `None` if it reaches outside.
    pub fn try_slice_mut(&mut self, range: impl RangeBounds<usize>) -> Option<DeviceViewMut<'_, T>> {
        self.slice_mut(range).ok()
    }

    /// The elements of a range, for writing.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the range reaches outside.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceViewMut<'_, T>> {
        self.as_view_mut().into_slice(range)
    }

    /// Two parts that can be written at the same time.
    ///
    /// # Errors
    /// [`Error::Buffer`] if `middle` is beyond the end.
    pub fn split_at_mut(&mut self, middle: usize) -> Result<(DeviceViewMut<'_, T>, DeviceViewMut<'_, T>)> {
        self.as_view_mut().into_split_at(middle)
    }
}

impl<'a, T> DeviceView<'a, T> {
    fn part(&self, range: Range<usize>) -> Self {
        let address = self.address + (range.start * size_of::<T>()) as u64;
        DeviceView { buffer: self.buffer, address, len: range.len() }
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the range reaches outside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'a, T>> {
        resolve(&range, self.len).map(|range| self.part(range)).ok_or_else(|| outside(&range, self.len))
    }

    /// Start address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl<'a, T> DeviceViewMut<'a, T> {
    /// Start address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the range reaches outside.
    pub fn into_slice(self, range: impl RangeBounds<usize>) -> Result<DeviceViewMut<'a, T>> {
        let elements = resolve(&range, self.len).ok_or_else(|| outside(&range, self.len))?;
        let address = self.address + (elements.start * size_of::<T>()) as u64;
        Ok(DeviceViewMut { address, len: elements.len(), ..self })
    }

    /// Two parts of it that do not overlap.
    ///
    /// # Errors
    /// [`Error::Buffer`] if `middle` is beyond the end.
    pub fn into_split_at(self, middle: usize) -> Result<(DeviceViewMut<'a, T>, DeviceViewMut<'a, T>)> {
        let tail = DeviceViewMut {
            buffer: self.buffer,
            address: self.address,
            len: self.len,
            exclusive: PhantomData,
        };
        Ok((self.into_slice(..middle)?, tail.into_slice(middle..)?))
    }
}

impl<T> DeviceSlice<T> for DeviceBuffer<T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtr<T> for DeviceBuffer<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (self.address(), self.used_by(stream, Access::Read))
    }
}

impl<T> DevicePtrMut<T> for DeviceBuffer<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (self.address(), self.used_by(stream, Access::Write))
    }
}

macro_rules! view_traits {
    ($view:ident) => {
        impl<T> DeviceSlice<T> for $view<'_, T> {
            fn len(&self) -> usize {
                self.len
            }

            fn stream(&self) -> &Arc<CudaStream> {
                &self.buffer.stream
            }
        }

        impl<T> DevicePtr<T> for $view<'_, T> {
            fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
                (self.address, self.buffer.used_by(stream, Access::Read))
            }
        }

        impl<T> fmt::Debug for $view<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($view))
                    .field("address", &format_args!("{:#x}", self.address))
                    .field("len", &self.len)
                    .finish_non_exhaustive()
            }
        }
    };
}

view_traits!(DeviceView);
view_traits!(DeviceViewMut);

impl<T> DevicePtrMut<T> for DeviceViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, self.buffer.used_by(stream, Access::Write))
    }
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn ranges_are_checked() {
        assert_eq!(resolve(&(..), 5), Some(0..5));
        assert_eq!(resolve(&(1..=4), 5), Some(1..5));
        assert_eq!(resolve(&(5..), 5), Some(5..5));
        assert_eq!(resolve(&(2..6), 5), None);
        assert_eq!(resolve(&(..=usize::MAX), 5), None);
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 3..2;
        assert_eq!(resolve(&reversed, 5), None);
    }
}
