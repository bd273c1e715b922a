//! A forked child gets a clear error, touches neither locks nor the driver, and may make an allocator of its own.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpucache::device::sim::SimDevice;
use gpucache::device::{Device, Stream};
use gpucache::{Allocator, Error};

const MIB: usize = 1 << 20;

/// Runs `child` in a forked child, which must end by itself within 20 seconds and find nothing wrong.
fn forked(child: impl FnOnce() -> Result<(), String>) {
    // SAFETY: the child runs its closure and ends without unwinding into the test harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: only sets a timer that ends this child if a lock is never given back.
        unsafe { libc::alarm(20) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        let code = match outcome {
            Ok(Ok(())) => 0,
            Ok(Err(text)) => {
                eprintln!("in the child: {text}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child failed (wait status {status:#x}; 0xe: it hung)");
}

fn is_forked<T>(what: &str, outcome: Result<T, Error>) -> Result<(), String> {
    let parent = std::os::unix::process::parent_id();
    match outcome {
        Err(Error::Forked { owner, child }) if owner == parent && child == std::process::id() => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
        Ok(_) => Err(format!("{what} went through")),
    }
}

#[test]
fn every_entry_answers_and_no_driver_call_is_made() {
    let sim = SimDevice::new(1 << 30);
    let allocator = Allocator::simulated(sim.clone());
    let used = sim.create_stream();
    let cached = allocator.alloc(3 * MIB).unwrap();
    let recorded = allocator.alloc(3 * MIB).unwrap();
    recorded.record_stream(used);
    let address = allocator.alloc_raw(1000, Stream::DEFAULT).unwrap();
    let pool = allocator.create_pool();
    drop(allocator.alloc(100).unwrap());
    let calls = sim.total_calls();

    let watched = sim.clone();
    let inherited = allocator.clone();
    forked(move || {
        is_forked("a hit", inherited.alloc(100))?;
        is_forked("a miss", inherited.alloc(100 * MIB))?;
        is_forked("free", cached.free())?;
        is_forked("free_raw", inherited.free_raw(address))?;
        is_forked("record_stream_raw", inherited.record_stream_raw(address, used))?;
        is_forked("empty_cache", inherited.empty_cache())?;
        is_forked("reserve", inherited.reserve(MIB, used))?;
        is_forked("would_allocate", inherited.would_allocate(MIB, used))?;
        is_forked("mem_get_info", inherited.mem_get_info())?;
        is_forked("set_allocator_settings", inherited.set_allocator_settings(""))?;
        is_forked("set_fraction", inherited.set_per_process_memory_fraction(0.5))?;
        is_forked("scope", pool.scope(|| ()))?;
        if inherited.verify().is_ok() {
            return Err("verify went through".into());
        }
        recorded.record_stream(used);
        drop(recorded);
        drop(pool);
        drop(inherited);
        if watched.total_calls() != calls {
            return Err("the driver was called".into());
        }
        Ok(())
    });
    // The parent's copies of what the child was given have gone too, the usual way.
    allocator.free_raw(address).unwrap();
    drop(allocator.alloc(100).unwrap());
    allocator.verify().unwrap();
}

#[test]
fn the_last_handle_may_go_in_the_child() {
    let sim = SimDevice::new(1 << 30);
    let allocator = Allocator::simulated(sim.clone());
    let block = allocator.alloc(3 * MIB).unwrap();
    let watched = sim.clone();
    let mut owned = Some((allocator, block));
    forked(|| {
        let before = watched.total_calls();
        drop(owned.take());
        if watched.total_calls() == before { Ok(()) } else { Err("the driver was called".into()) }
    });
    let (allocator, block) = owned.take().unwrap();
    drop(block);
    allocator.verify().unwrap();
    drop(allocator);
    sim.assert_clean();
}

#[test]
fn a_child_makes_its_own() {
    let allocator = Allocator::simulated(SimDevice::new(1 << 30));
    forked(|| {
        let own = Allocator::simulated(SimDevice::new(1 << 30));
        let block = own.alloc(MIB).map_err(|error| error.to_string())?;
        is_forked("the parent's", allocator.alloc(MIB))?;
        let inner = own.clone();
        // A child of the child.
        forked(|| is_forked("the child's", inner.alloc(MIB)));
        drop(block);
        own.verify()
    });
}

/// Locks that another thread holds at the fork stay locked in the child.
#[test]
fn a_child_never_waits_for_a_thread_that_is_not_there() {
    let allocator = Allocator::simulated(SimDevice::new(8 << 30));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(allocator.alloc(3 * MIB).unwrap());
                    allocator.empty_cache().unwrap();
                }
            });
        }
        for _ in 0..40 {
            let inherited = allocator.clone();
            let block = inherited.alloc(1000).unwrap();
            forked(move || {
                is_forked("alloc", inherited.alloc(1000))?;
                is_forked("free", block.free())?;
                is_forked("empty_cache", inherited.empty_cache())
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(allocator.memory_allocated(), 0);
}

#[test]
fn pinned_memory_too() {
    let sim = SimDevice::builder().real_host_memory(true).build();
    let config = gpucache::Config::parse("pinned_use_background_threads:True").unwrap();
    let allocator = Allocator::builder().device(Arc::new(sim.clone())).config(config).build().unwrap();
    let pinned = allocator.pinned();
    let address = pinned.host_alloc_raw(1000).unwrap();
    let calls = sim.total_calls();
    let mut inherited = Some(pinned);
    forked(|| {
        let pinned = inherited.take().ok_or("not inherited")?;
        is_forked("host_alloc_raw", pinned.host_alloc_raw(1000))?;
        is_forked("host_free_raw", pinned.host_free_raw(address))?;
        is_forked("host_empty_cache", pinned.host_empty_cache())?;
        drop(pinned);
        if sim.total_calls() == calls { Ok(()) } else { Err("the driver was called".into()) }
    });
    let pinned = inherited.take().unwrap();
    pinned.host_free_raw(address).unwrap();
    pinned.host_empty_cache().unwrap();
}

#[test]
fn buffers_of_cudarc_streams_go_quietly() {
    let Some((driver, device)) = fake::driver::driver() else { return };
    // A real driver's objects are not for a child to count.
    let Some(fake) = driver.fake() else { return };
    let device = Arc::new(device);
    let home = device.context().new_stream().unwrap();
    let side = device.context().new_stream().unwrap();
    let shared: Arc<dyn Device> = Arc::<gpucache::device::cuda::CudaDevice>::clone(&device);
    let allocator = Allocator::builder().device(shared).config(gpucache::Config::default()).build().unwrap();
    let mut buffer = Some(allocator.alloc_zeros::<u32>(1000, &home).unwrap());
    let inner = buffer.as_ref().unwrap();
    side.clone_dtoh(inner).unwrap();
    inner.record_stream(&side);
    let calls = fake.report().calls;
    let mut side = Some(side);
    forked(|| {
        is_forked("alloc_zeros", allocator.alloc_zeros::<u32>(1000, &home))?;
        // The child's own stream handles are cudarc's to end; only ours are looked at.
        std::mem::forget(side.take());
        drop(buffer.take());
        if fake.report().calls == calls { Ok(()) } else { Err("the driver was called".into()) }
    });
    drop(buffer);
    allocator.verify().unwrap();
}
