//! Two kernels, as PTX text: no compiler is needed where the suite runs.

use std::sync::Arc;

use gpucache::cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use gpucache::cudarc::nvrtc::Ptx;

/// Both stride over the elements, so that any grid does.
const SOURCE: &str = "
.version 6.4
.target sm_70
.address_size 64

.visible .entry fill_u32(.param .u64 out, .param .u32 value, .param .u64 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [value];
    ld.param.u64 %rd2, [n];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %nctaid.x;
    cvt.u64.u32 %rd4, %r4;
    mad.wide.u32 %rd3, %r2, %r3, %rd4;
    mul.wide.u32 %rd5, %r5, %r3;
FILL_NEXT:
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 bra FILL_DONE;
    shl.b64 %rd6, %rd3, 2;
    add.s64 %rd7, %rd1, %rd6;
    st.global.u32 [%rd7], %r1;
    add.s64 %rd3, %rd3, %rd5;
    bra FILL_NEXT;
FILL_DONE:
    ret;
}

.visible .entry count_other_u32(.param .u64 data, .param .u32 value, .param .u64 n, .param .u64 count)
{
    .reg .pred %p<3>;
    .reg .b32 %r<7>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [value];
    ld.param.u64 %rd2, [n];
    ld.param.u64 %rd8, [count];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd8, %rd8;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %nctaid.x;
    cvt.u64.u32 %rd4, %r4;
    mad.wide.u32 %rd3, %r2, %r3, %rd4;
    mul.wide.u32 %rd5, %r5, %r3;
COUNT_NEXT:
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 bra COUNT_DONE;
    shl.b64 %rd6, %rd3, 2;
    add.s64 %rd7, %rd1, %rd6;
    ld.global.u32 %r6, [%rd7];
    setp.ne.u32 %p2, %r6, %r1;
    @%p2 red.global.add.u32 [%rd8], 1;
    add.s64 %rd3, %rd3, %rd5;
    bra COUNT_NEXT;
COUNT_DONE:
    ret;
}
";

#[derive(Clone)]
pub(crate) struct Kernels {
    fill: CudaFunction,
    count_other: CudaFunction,
}

fn grid(words: u64) -> LaunchConfig {
    let blocks = words.div_ceil(256).clamp(1, 1024) as u32;
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 }
}

impl Kernels {
    pub(crate) fn load(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let module = context.load_module(Ptx::from_src(SOURCE))?;
        Ok(Kernels {
            fill: module.load_function("fill_u32")?,
            count_other: module.load_function("count_other_u32")?,
        })
    }

    /// Writes `value` into every word.
    ///
    /// # Safety
    /// There are `words` words of live memory at `address` until the kernel is done.
    pub(crate) unsafe fn fill(
        &self,
        stream: &Arc<CudaStream>,
        address: u64,
        words: u64,
        value: u32,
    ) -> Result<(), DriverError> {
        let mut launch = stream.launch_builder(&self.fill);
        launch.arg(&address).arg(&value).arg(&words);
        // SAFETY: these are the kernel's arguments; the memory is the caller's promise.
        unsafe { launch.launch(grid(words)) }.map(drop)
    }

    /// Adds the number of words other than `value` to the word at `count`.
    ///
    /// # Safety
    /// As [`fill`](Kernels::fill), for both addresses.
    pub(crate) unsafe fn count_other(
        &self,
        stream: &Arc<CudaStream>,
        address: u64,
        words: u64,
        value: u32,
        count: u64,
    ) -> Result<(), DriverError> {
        let mut launch = stream.launch_builder(&self.count_other);
        launch.arg(&address).arg(&value).arg(&words).arg(&count);
        // SAFETY: as above.
        unsafe { launch.launch(grid(words)) }.map(drop)
    }
}
