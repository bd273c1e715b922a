//! An all-reduce over several GPUs by NCCL: on ordinary buffers of ours, and on a pool whose memory NCCL allocates
//! and knows.
//!
//! `cargo run --release --features cuda-nccl --example nccl_all_reduce` (needs two GPUs, and `libnccl.so` in
//! LD_LIBRARY_PATH; a link of that name to `libnccl.so.2` will do)

use std::collections::HashMap;
use std::error::Error;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpucache::cudarc::driver::{CudaContext, CudaStream};
use gpucache::cudarc::nccl::{Comm, ReduceOp, result, sys};
use gpucache::device::Stream;
use gpucache::device::cuda::CudaDevice;
use gpucache::{Allocator, DeviceBuffer, Upstream};

const ELEMENTS: usize = 16 << 20;
const ROUNDS: u32 = 20;

/// One GPU, with an allocator of its own.
struct Rank {
    stream: Arc<CudaStream>,
    allocator: Allocator,
}

impl Rank {
    fn new(ordinal: u32) -> Result<Self, Box<dyn Error>> {
        let context = CudaContext::new(ordinal as usize)?;
        let stream = context.new_stream()?;
        let allocator = Allocator::builder().device(Arc::new(CudaDevice::from_context(context)?)).build()?;
        Ok(Rank { stream, allocator })
    }

    /// Every element is the rank's number, from 1.
    fn buffer(&self, number: u32) -> gpucache::Result<DeviceBuffer<u32>> {
        self.allocator.clone_htod(&vec![number; ELEMENTS], &self.stream)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("NCCL_NVLS_ENABLE").is_none() {
        // NVLink multicast is not worth its risk on shared machines for an example.
        // SAFETY: no other thread runs yet that could read the environment.
        unsafe { std::env::set_var("NCCL_NVLS_ENABLE", "0") };
    }
    let count = match gpucache::device_count() {
        Ok(count) if count > 1 => count,
        found => {
            let why = found.map_or_else(|error| error.to_string(), |_| "one GPU is visible".to_owned());
            println!("Skipped: {why}; two GPUs are needed.");
            return Ok(());
        }
    };
    // cudarc panics if the library lacks one of the functions that it knows.
    // SAFETY: this only loads the library.
    if !std::panic::catch_unwind(|| unsafe { sys::is_culib_present() }).unwrap_or(false) {
        println!("Skipped: libnccl.so cannot be loaded, or is too old for this version of cudarc.");
        return Ok(());
    }
    println!("NCCL {}, {count} GPUs", checked("ncclGetVersion", result::get_nccl_version())?);
    let ranks = (0..count).map(Rank::new).collect::<Result<Vec<_>, _>>()?;
    report_peers(&ranks)?;
    println!("ordinary buffers:        {}", ordinary(&ranks)?);
    println!("pool over ncclMemAlloc:  {}", registered(&ranks)?);
    for rank in &ranks {
        rank.allocator.verify()?;
    }
    Ok(())
}

fn checked<T>(call: &str, outcome: Result<T, result::NcclError>) -> Result<T, Box<dyn Error>> {
    outcome.map_err(|error| format!("{call}: {:?}", error.0).into())
}

/// Lets every GPU reach the others' memory, which NCCL does for itself; copies of one's own need it said.
fn report_peers(ranks: &[Rank]) -> Result<(), Box<dyn Error>> {
    for (here, user) in ranks.iter().enumerate() {
        for (there, owner) in ranks.iter().enumerate().filter(|(there, _)| *there != here) {
            match user.allocator.enable_peer_access(&owner.allocator) {
                Ok(()) => println!("GPU {here} reaches GPU {there}"),
                Err(error) => println!("GPU {here} does not reach GPU {there}: {error}"),
            }
        }
    }
    if let [first, second, ..] = ranks {
        let theirs = second.buffer(7)?;
        second.stream.synchronize()?;
        let mut ours = first.buffer(0)?;
        ours.copy_from(&theirs)?;
        let same = ours.to_vec()?.iter().all(|value| *value == 7);
        println!("copy from GPU 1 to GPU 0: {}", if same { "right" } else { "WRONG" });
    }
    Ok(())
}

/// cudarc's safe face: a buffer is as good as a slice of its own.
fn ordinary(ranks: &[Rank]) -> Result<String, Box<dyn Error>> {
    let streams = ranks.iter().map(|rank| Arc::clone(&rank.stream)).collect();
    let comms = checked("ncclCommInitAll", Comm::from_devices(streams))?;
    let mut buffers = ranks.iter().zip(1..).map(|(rank, n)| rank.buffer(n)).collect::<Result<Vec<_>, _>>()?;
    measure(ranks, &mut buffers, |buffers| {
        checked("ncclGroupStart", result::group_start())?;
        for (comm, buffer) in comms.iter().zip(buffers) {
            checked("ncclAllReduce", comm.all_reduce_in_place(buffer, &ReduceOp::Max))?;
        }
        checked("ncclGroupEnd", result::group_end()).map(drop)
    })
}

/// The same with memory of NCCL's own allocator, registered with the communicator: fewer copies on the way.
fn registered(ranks: &[Rank]) -> Result<String, Box<dyn Error>> {
    let mut comms = vec![null_mut(); ranks.len()];
    // SAFETY: the array has a place for each rank; without a list of devices the ranks are the devices in order.
    checked("ncclCommInitAll", unsafe {
        result::comm_init_all(comms.as_mut_ptr(), ranks.len() as i32, std::ptr::null())
    })?;
    let outcome = with_pools(ranks, &comms);
    for comm in comms {
        // SAFETY: nothing uses it any more: the pools have given their memory back, and the streams are idle.
        checked("ncclCommDestroy", unsafe { result::comm_destroy(comm) })?;
    }
    outcome
}

fn with_pools(ranks: &[Rank], comms: &[sys::ncclComm_t]) -> Result<String, Box<dyn Error>> {
    let mut buffers = Vec::new();
    for ((rank, comm), number) in ranks.iter().zip(comms).zip(1..) {
        let upstream = NcclUpstream::new(Arc::clone(rank.stream.context()), *comm);
        let pool = rank.allocator.create_pool_with(Arc::new(upstream));
        // The buffer outlives its pool; its segment goes back with `empty_cache`.
        buffers.push(pool.scope(|| rank.buffer(number))??);
    }
    let text = measure(ranks, &mut buffers, |buffers| {
        checked("ncclGroupStart", result::group_start())?;
        for ((rank, comm), buffer) in ranks.iter().zip(comms).zip(buffers) {
            let (at, stream) = (buffer.address() as *mut c_void, rank.stream.cu_stream());
            // SAFETY: the buffer has that many elements of the type, and is used on its home stream.
            checked("ncclAllReduce", unsafe {
                let (kind, max) = (sys::ncclDataType_t::ncclUint32, sys::ncclRedOp_t::ncclMax);
                result::all_reduce(at, at, ELEMENTS, kind, max, *comm, stream.cast())
            })?;
        }
        checked("ncclGroupEnd", result::group_end()).map(drop)
    });
    drop(buffers);
    for rank in ranks {
        rank.stream.synchronize()?;
        rank.allocator.empty_cache()?;
    }
    text
}

/// Repeats the reduction, checks the result, and says how fast it was.
fn measure(
    ranks: &[Rank],
    buffers: &mut [DeviceBuffer<u32>],
    mut reduce: impl FnMut(&mut [DeviceBuffer<u32>]) -> Result<(), Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    reduce(buffers)?;
    let wait = || ranks.iter().try_for_each(|rank| rank.stream.synchronize());
    wait()?;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        reduce(buffers)?;
    }
    wait()?;
    let time = started.elapsed() / ROUNDS;
    let expected = ranks.len() as u32;
    for (place, buffer) in buffers.iter().enumerate() {
        if buffer.to_vec()?.iter().any(|value| *value != expected) {
            return Err(format!("rank {place} has a wrong result").into());
        }
    }
    Ok(format!(
        "right, {time:.2?} for {} MiB, bus bandwidth {:.1} GB/s",
        ELEMENTS >> 18,
        bandwidth(ranks.len(), time)
    ))
}

/// As NCCL's own tests count it.
fn bandwidth(ranks: usize, time: Duration) -> f64 {
    let moved = 2.0 * (ranks as f64 - 1.0) / ranks as f64 * (ELEMENTS * size_of::<u32>()) as f64;
    moved / time.as_secs_f64() / 1e9
}

/// Segments from `ncclMemAlloc`, each registered with a communicator as long as it lives.
struct NcclUpstream {
    context: Arc<CudaContext>,
    comm: usize,
    /// Registrations by address. The lock also serialises the communicator, which is not thread-safe.
    handles: Mutex<HashMap<u64, usize>>,
}

impl NcclUpstream {
    /// The communicator must outlive the pool's memory.
    fn new(context: Arc<CudaContext>, comm: sys::ncclComm_t) -> Self {
        NcclUpstream { context, comm: comm as usize, handles: Mutex::default() }
    }

    fn comm(&self) -> sys::ncclComm_t {
        self.comm as sys::ncclComm_t
    }
}

impl Upstream for NcclUpstream {
    fn alloc(&self, bytes: u64, _stream: Stream) -> Option<u64> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        self.context.bind_to_thread().ok()?;
        let (mut memory, mut handle) = (null_mut(), null_mut());
        // SAFETY: both are valid places for the answers; the communicator is alive, and the lock is held.
        unsafe {
            sys::ncclMemAlloc(&raw mut memory, bytes as usize).result().ok()?;
            if sys::ncclCommRegister(self.comm(), memory, bytes as usize, &raw mut handle).result().is_err() {
                let _ = sys::ncclMemFree(memory);
                return None;
            }
        }
        handles.insert(memory as u64, handle as usize);
        Some(memory as u64)
    }

    fn free(&self, address: u64, _bytes: u64, _stream: Stream) {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(handle) = handles.remove(&address) else { return };
        if self.context.bind_to_thread().is_err() {
            return;
        }
        // SAFETY: both come from `alloc`, once. The allocator has waited for the work that uses the memory.
        unsafe {
            let _ = sys::ncclCommDeregister(self.comm(), handle as *mut c_void);
            let _ = sys::ncclMemFree(address as *mut c_void);
        }
    }
}
