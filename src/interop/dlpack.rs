//! DLPack: device memory to and from PyTorch, JAX, CuPy, TVM and others, without a copy.
//!
//! The structures are those of `dlpack.h` 1.0; a [`DlTensor`] owns one. Export with [`Allocator::export_dlpack`] or
//! [`DeviceBuffer::into_dlpack`], import with [`DlTensor::from_raw`].

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use crate::allocator::Allocator;
use crate::buffer::{DeviceBuffer, TypedAllocation};
use crate::error::{Error, Result};

/// `DLPACK_MAJOR_VERSION` of these structures.
pub const MAJOR_VERSION: u32 = 1;
const MINOR_VERSION: u32 = 0;
const CUDA: i32 = 2;
/// `kDLExtDev`: what the simulated device is to others.
const EXTENSION: i32 = 12;

/// `DLDevice`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// `DLDeviceType`: 1 host, 2 CUDA, 3 page-locked host, 13 managed CUDA memory
    pub device_type: i32,
    /// Ordinal.
    pub device_id: i32,
}

/// `DLDataType`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// `DLDataTypeCode`: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// 1, except for vector types.
    pub lanes: u16,
}

/// `DLTensor`
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// Device address.
    pub data: *mut c_void,
    /// Where the memory is.
    pub device: DLDevice,
    /// Number of dimensions.
    pub ndim: i32,
    /// Type of the elements.
    pub dtype: DLDataType,
    /// `ndim` sizes.
    pub shape: *mut i64,
    /// `ndim` steps in elements; null means compact and row-major.
    pub strides: *mut i64,
    /// Where the first element is, from `data`.
    pub byte_offset: u64,
}

/// `DLPackVersion`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Changes with the layout.
    pub major: u32,
    /// Changes with additions.
    pub minor: u32,
}

/// `DLManagedTensorVersioned`
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// Of these structures.
    pub version: DLPackVersion,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Ends the tensor; may be null.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0: read only. Bit 1: copied.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// `DLManagedTensor`, from before version 1 (capsules named `dltensor`).
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Ends the tensor; may be null.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// Rust types that DLPack has a name for.
pub trait Element: Copy + Send + Sync + 'static {
    /// The name.
    const DTYPE: DLDataType;
}

macro_rules! elements {
    ($($rust:ty: $code:literal),*) => {$(
        impl Element for $rust {
            const DTYPE: DLDataType = DLDataType { code: $code, bits: 8 * size_of::<$rust>() as u8, lanes: 1 };
        }
    )*};
}

elements!(i8: 0, i16: 0, i32: 0, i64: 0, u8: 1, u16: 1, u32: 1, u64: 1, f32: 2, f64: 2, bool: 6);

/// A tensor of DLPack, owned: dropping it calls its deleter, from any thread.
pub struct DlTensor {
    managed: NonNull<DLManagedTensorVersioned>,
}

// SAFETY: DLPack asks of producers that the deleter may be called from any thread; the rest is plain data.
unsafe impl Send for DlTensor {}
// SAFETY: through `&self` it is only read.
unsafe impl Sync for DlTensor {}

/// A tensor of ours, and what keeps its memory.
struct Export<B> {
    managed: DLManagedTensorVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: B,
}

unsafe extern "C" fn delete_export<B>(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: DLPack calls this once, with the tensor that `export` made; the box is the one it leaked.
    drop(unsafe { Box::from_raw((*managed).manager_ctx.cast::<Export<B>>()) });
}

fn export<T: Element, B: Send + 'static>(
    memory: B,
    (address, len): (u64, usize),
    device: DLDevice,
    shape: &[usize],
) -> Result<DlTensor> {
    let elements = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
    if elements != Some(len) {
        return Err(Error::Buffer(format!("shape {shape:?} does not have {len} elements")));
    }
    let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
    let mut strides = vec![1; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis] * sizes[axis].max(1);
    }
    let dl_tensor = DLTensor {
        data: address as *mut c_void,
        device,
        ndim: sizes.len() as i32,
        dtype: T::DTYPE,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DLManagedTensorVersioned {
        version: DLPackVersion { major: MAJOR_VERSION, minor: MINOR_VERSION },
        manager_ctx: std::ptr::null_mut(),
        deleter: Some(delete_export::<B>),
        flags: 0,
        dl_tensor,
    };
    let export = Box::leak(Box::new(Export { managed, shape: sizes, strides, _memory: memory }));
    // The vectors do not move any more.
    export.managed.dl_tensor.shape = export.shape.as_mut_ptr();
    export.managed.dl_tensor.strides = export.strides.as_mut_ptr();
    let whole = std::ptr::from_mut(export);
    // SAFETY: the pointer is to the box leaked just now; the fields are reached through the whole, for the deleter.
    unsafe {
        (*whole).managed.manager_ctx = whole.cast();
        Ok(DlTensor { managed: NonNull::new_unchecked(&raw mut (*whole).managed) })
    }
}

impl Allocator {
    /// Hands memory of this allocator over as a tensor, row-major. Work that others queue on it must be ordered after
    /// that of the memory's stream, by the caller. The simulated device appears as an extension device.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the shape has another number of elements; the memory is freed then.
    pub fn export_dlpack<T: Element>(&self, memory: TypedAllocation<T>, shape: &[usize]) -> Result<DlTensor> {
        let properties = self.device().properties();
        let device_type = if properties.simulated { EXTENSION } else { CUDA };
        let place = (memory.address(), memory.len());
        export::<T, _>(memory, place, DLDevice { device_type, device_id: properties.ordinal as i32 }, shape)
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Hands the buffer over as a tensor, row-major. `consumer` waits for what is queued on it, and is recorded, so
    /// that the block is not reused before the consumer's work is done.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the shape has another number of elements; [`Error::Device`] if the streams cannot be
    /// joined. The buffer is freed then.
    pub fn into_dlpack(self, shape: &[usize], consumer: &Arc<CudaStream>) -> Result<DlTensor> {
        if consumer.cu_stream() != self.stream().cu_stream() {
            let joined = consumer.join(self.stream());
            joined.map_err(|error| crate::device::cuda::call_error("cuStreamWaitEvent", error))?;
            self.record_stream(consumer);
        }
        let device = DLDevice { device_type: CUDA, device_id: self.stream().context().ordinal() as i32 };
        let place = (self.address(), self.len());
        export::<T, _>(self, place, device, shape)
    }
}

impl DlTensor {
    /// Takes a tensor over.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for a null pointer or another major version; of the latter only the deleter is called,
    /// as DLPack asks.
    ///
    /// # Safety
    /// The pointer is null or to a valid tensor that is used by nobody else from now on.
    pub unsafe fn from_raw(managed: *mut DLManagedTensorVersioned) -> Result<Self> {
        let Some(managed) = NonNull::new(managed) else {
            return Err(Error::NotSupported("a null DLPack tensor".to_owned()));
        };
        let tensor = DlTensor { managed };
        // SAFETY: the version is the first field in all versions.
        let version = unsafe { (*managed.as_ptr()).version };
        if version.major != MAJOR_VERSION {
            return Err(Error::NotSupported(format!(
                "DLPack version {}.{}; this crate knows version {MAJOR_VERSION}",
                version.major, version.minor
            )));
        }
        Ok(tensor)
    }

    /// Gives it away; the receiver calls the deleter.
    pub fn into_raw(self) -> *mut DLManagedTensorVersioned {
        std::mem::ManuallyDrop::new(self).managed.as_ptr()
    }

    /// Gives it away in the form of before version 1, for capsules named `dltensor`.
    pub fn into_raw_legacy(self) -> *mut DLManagedTensor {
        struct Legacy {
            managed: DLManagedTensor,
            _tensor: DlTensor,
        }
        unsafe extern "C" fn delete(managed: *mut DLManagedTensor) {
            // SAFETY: as in `delete_export`.
            drop(unsafe { Box::from_raw((*managed).manager_ctx.cast::<Legacy>()) });
        }
        let DLTensor { data, device, ndim, dtype, shape, strides, byte_offset } = *self.tensor();
        let dl_tensor = DLTensor { data, device, ndim, dtype, shape, strides, byte_offset };
        let managed = DLManagedTensor { dl_tensor, manager_ctx: std::ptr::null_mut(), deleter: Some(delete) };
        let whole = Box::into_raw(Box::new(Legacy { managed, _tensor: self }));
        // SAFETY: the box leaked just now.
        unsafe {
            (*whole).managed.manager_ctx = whole.cast();
            &raw mut (*whole).managed
        }
    }

    /// The structure behind it.
    pub fn tensor(&self) -> &DLTensor {
        // SAFETY: `from_raw`'s caller and `export` vouch for the structure, which lives as long as this.
        unsafe { &(*self.managed.as_ptr()).dl_tensor }
    }

    fn sizes(&self, numbers: *const i64) -> &[i64] {
        let count = usize::try_from(self.tensor().ndim).unwrap_or(0);
        if numbers.is_null() || count == 0 {
            return &[];
        }
        // SAFETY: DLPack says that these arrays have `ndim` elements, as long as the tensor lives.
        unsafe { std::slice::from_raw_parts(numbers, count) }
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &[i64] {
        self.sizes(self.tensor().shape)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape().iter().map(|&size| usize::try_from(size).unwrap_or(0)).product()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let strides = self.sizes(self.tensor().strides);
        let mut expected = 1;
        strides.is_empty()
            || self.is_empty()
            || self.shape().iter().zip(strides).rev().all(|(&size, &stride)| {
                let fits = size == 1 || stride == expected;
                expected *= size;
                fits
            })
    }

    /// Address of the first element of a tensor of `T`s on a CUDA device, row-major without gaps. Valid as long as
    /// this lives.
    ///
    /// # Errors
    /// [`Error::Buffer`] says which of that does not hold.
    pub fn address<T: Element>(&self) -> Result<u64> {
        let tensor = self.tensor();
        let wrong = |what: String| Err(Error::Buffer(format!("the DLPack tensor {what}")));
        if !matches!(tensor.device.device_type, CUDA | EXTENSION) {
            return wrong(format!("is on a device of type {}, not CUDA", tensor.device.device_type));
        }
        if tensor.dtype != T::DTYPE {
            return wrong(format!("has elements of type {:?}, not {:?}", tensor.dtype, T::DTYPE));
        }
        if !self.is_contiguous() {
            return wrong("is not row-major without gaps; copy it first".to_owned());
        }
        Ok(tensor.data as u64 + tensor.byte_offset)
    }
}

impl Drop for DlTensor {
    fn drop(&mut self) {
        let managed = self.managed.as_ptr();
        // SAFETY: this owns the tensor, so the deleter is called once.
        unsafe {
            if let Some(delete) = (*managed).deleter {
                delete(managed);
            }
        }
    }
}

impl fmt::Debug for DlTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlTensor")
            .field("device", &self.tensor().device)
            .field("dtype", &self.tensor().dtype)
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::device::Stream;
    use crate::device::sim::SimDevice;

    fn tensor(allocator: &Allocator) -> (DlTensor, u64) {
        let memory = allocator.typed::<f32>(24, Stream::DEFAULT).unwrap();
        let address = memory.address();
        (allocator.export_dlpack(memory, &[2, 3, 4]).unwrap(), address)
    }

    #[test]
    fn the_structures_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<DLDevice>(), size_of::<DLDataType>()), (8, 4));
        assert_eq!((size_of::<DLTensor>(), size_of::<DLManagedTensor>()), (48, 64));
        assert_eq!(size_of::<DLManagedTensorVersioned>(), 80);
    }

    #[test]
    fn there_and_back() {
        let allocator = Allocator::simulated(SimDevice::new(1 << 30));
        let (exported, address) = tensor(&allocator);
        let raw = exported.into_raw();
        assert_eq!(allocator.memory_allocated(), 512);
        // SAFETY: given away just now.
        let back = unsafe { DlTensor::from_raw(raw) }.unwrap();
        assert_eq!((back.shape(), back.len()), (&[2, 3, 4][..], 24));
        assert_eq!(back.sizes(back.tensor().strides), [12, 4, 1]);
        assert_eq!(back.address::<f32>().unwrap(), address);
        assert!(matches!(back.address::<i32>(), Err(Error::Buffer(_))));
        std::thread::spawn(move || drop(back)).join().unwrap();
        assert_eq!(allocator.memory_allocated(), 0);
    }

    #[test]
    fn the_older_form() {
        let allocator = Allocator::simulated(SimDevice::new(1 << 30));
        let (exported, address) = tensor(&allocator);
        let raw = exported.into_raw_legacy();
        // SAFETY: the tensor was made just now, and its deleter is called once.
        unsafe {
            assert_eq!((*raw).dl_tensor.data as u64, address);
            assert_eq!(*(*raw).dl_tensor.shape.add(2), 4);
            ((*raw).deleter.unwrap())(raw);
        }
        assert_eq!(allocator.memory_allocated(), 0);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_freed() {
        let allocator = Allocator::simulated(SimDevice::new(1 << 30));
        let memory = allocator.typed::<f32>(24, Stream::DEFAULT).unwrap();
        let error = allocator.export_dlpack(memory, &[5, 5]).unwrap_err();
        assert!(error.to_string().contains("24 elements"), "{error}");
        assert_eq!(allocator.memory_allocated(), 0);
        // SAFETY: null is allowed.
        assert!(unsafe { DlTensor::from_raw(std::ptr::null_mut()) }.is_err());

        let raw = tensor(&allocator).0.into_raw();
        // SAFETY: ours; the deleter is called by `from_raw`.
        unsafe {
            (*raw).version.major = 2;
            assert!(matches!(DlTensor::from_raw(raw), Err(Error::NotSupported(_))));
        }
        assert_eq!(allocator.memory_allocated(), 0);
    }

    #[test]
    fn a_transposed_tensor_has_no_address() {
        let allocator = Allocator::simulated(SimDevice::new(1 << 30));
        let raw = tensor(&allocator).0.into_raw();
        // SAFETY: ours, with three dimensions.
        let turned = unsafe {
            std::ptr::swap((*raw).dl_tensor.shape, (*raw).dl_tensor.shape.add(2));
            std::ptr::swap((*raw).dl_tensor.strides, (*raw).dl_tensor.strides.add(2));
            DlTensor::from_raw(raw)
        }
        .unwrap();
        assert!(!turned.is_contiguous());
        assert!(turned.address::<f32>().unwrap_err().to_string().contains("row-major"));
    }

    #[test]
    fn scalars_and_empty_tensors() {
        let allocator = Allocator::simulated(SimDevice::new(1 << 30));
        let scalar =
            allocator.export_dlpack(allocator.typed::<u8>(1, Stream::DEFAULT).unwrap(), &[]).unwrap();
        assert_eq!((scalar.len(), scalar.shape().len()), (1, 0));
        let empty = allocator.typed::<u8>(0, Stream::DEFAULT).unwrap();
        let empty = allocator.export_dlpack(empty, &[3, 0]).unwrap();
        assert!(empty.is_empty() && empty.is_contiguous());
    }
}
