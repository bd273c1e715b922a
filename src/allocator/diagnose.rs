//! Explanations: where the memory is, why a request fails, what leaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::{Allocator, Forecast};
use crate::device::Stream;
use crate::engine::Core;
use crate::error::Result;
use crate::observe::diagnose::{Diagnosis, diagnose};
use crate::observe::leaks::{GrowthReport, LeakReport, LiveBlock, Mark, set_ages};
use crate::observe::processes::named;
use crate::observe::reconcile::{Reconciliation, identity, process_list};

type LeakObserver = Arc<dyn Fn(&LeakReport) + Send + Sync>;

/// What all handles share for explanations.
pub(super) struct Watch {
    /// The least that this process was seen to hold outside the allocator.
    least_outside: AtomicU64,
    print_leaks: AtomicBool,
    on_leaks: Mutex<Option<LeakObserver>>,
}

impl Watch {
    pub(super) fn new() -> Self {
        Watch {
            least_outside: AtomicU64::new(u64::MAX),
            print_leaks: AtomicBool::new(false),
            on_leaks: Mutex::new(None),
        }
    }

    /// The last handle goes: tells who asked for it what is still live.
    pub(super) fn at_end(&self, core: &Core) {
        let observer = self.on_leaks.lock().take();
        let print = self.print_leaks.load(Ordering::Relaxed);
        if observer.is_none() && !print {
            return;
        }
        let report = leaks(core);
        if report.blocks == 0 {
            return;
        }
        if print {
            eprintln!("gpucache: the allocator of GPU {} ends with {report}", core.properties.ordinal);
        }
        if let Some(observer) = observer {
            // A panic must not leave a drop.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| observer(&report)));
        }
    }
}

fn leaks(core: &Core) -> LeakReport {
    LeakReport::new(&live_blocks(core))
}

fn live_blocks(core: &Core) -> Vec<LiveBlock> {
    let mut blocks = core.live_blocks();
    let trace = core.history(false);
    if !trace.is_empty() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        set_ages(&mut blocks, &trace, now);
    }
    blocks
}

impl Allocator {
    /// Explains where the device's memory is: who or what holds it, and what to do about it. It reads every block,
    /// and the history if one is recorded.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when the driver cannot say how much is free.
    pub fn diagnose(&self) -> Result<Diagnosis> {
        let core = self.core();
        let memory = core.device.mem_get_info()?;
        let processes = core.device.processes();
        Ok(diagnose(&core.evidence(None, Some(memory), processes.as_deref())))
    }

    /// Explains why a request would fail, without making it. One that would succeed has no findings.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge) from 2^60 bytes on; as [`diagnose`](Allocator::diagnose).
    #[track_caller]
    pub fn diagnose_request(&self, bytes: usize, stream: Stream) -> Result<Diagnosis> {
        let core = self.core();
        let forecast = core.forecast(bytes as u64, stream)?;
        let fails = matches!(forecast, Forecast::OutOfMemory { .. });
        let mut wanted = core.wanted_by(bytes as u64, stream);
        wanted.fails = Some(fails);
        let memory = core.device.mem_get_info()?;
        let processes = core.device.processes();
        Ok(diagnose(&core.evidence(Some(wanted), Some(memory), processes.as_deref())))
    }

    /// Accounts for what `nvidia-smi` shows: the allocator, this process's context and other memory, other processes,
    /// the driver. Call it once early: the least that the process ever held outside the allocator counts as its
    /// CUDA context.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) when the driver cannot say how much is free.
    pub fn reconcile(&self) -> Result<Reconciliation> {
        let core = self.core();
        let cuda = core.device.mem_get_info()?;
        let nvml = core.device.device_memory();
        let reserved = self.memory_reserved();
        let processes = core.device.processes();
        let lines = processes.map(|all| named(&core.properties, &all));
        let own = lines.iter().flatten().find(|p| p.is_self).and_then(|p| p.used);
        let outside = own.map(|own| own.saturating_sub(reserved));
        let context =
            outside.map(|now| self.watch().least_outside.fetch_min(now, Ordering::Relaxed).min(now));
        Ok(Reconciliation {
            device: core.properties.clone(),
            reserved,
            allocated: self.memory_allocated(),
            context,
            other_own: outside.zip(context).map(|(outside, context)| outside - context),
            others: lines.map(|all| all.into_iter().filter(|p| !p.is_self).collect()),
            cuda,
            nvml,
        })
    }

    /// PyTorch's text of the processes on this device and their memory (`list_gpu_processes`) [spec 19].
    pub fn list_gpu_processes(&self) -> String {
        process_list(self.core().properties.ordinal, self.core().device.processes().as_deref())
    }

    /// One line that names the device, its compute capability and the driver's CUDA version.
    pub fn device_identity(&self) -> String {
        identity(&self.core().properties)
    }

    /// Every block in clients' hands, with its call site; with ages as far as a recorded history goes back.
    pub fn live_blocks(&self) -> Vec<LiveBlock> {
        live_blocks(self.core())
    }

    /// What is live, by call site.
    pub fn leaks(&self) -> LeakReport {
        leaks(self.core())
    }

    /// Remembers what is live now, for [`since`](Allocator::since).
    pub fn mark(&self) -> Mark {
        Mark::new(self.core().live_blocks())
    }

    /// What came and went since a mark, by call site. A mark of another allocator gives a meaningless answer.
    ///
    /// ```
    /// # use gpucache::{Allocator, device::sim::SimDevice};
    /// let gpu = Allocator::simulated(SimDevice::new(1 << 30));
    /// let mark = gpu.mark();
    /// let kept = gpu.alloc(1 << 20)?;
    /// drop(gpu.alloc(1 << 20)?);
    /// assert_eq!(gpu.since(&mark).net_bytes(), 1 << 20);
    /// # drop(kept);
    /// # Ok::<(), gpucache::Error>(())
    /// ```
    pub fn since(&self, mark: &Mark) -> GrowthReport {
        mark.compare(&self.core().live_blocks())
    }

    /// Prints what is still live to standard error when the last handle goes, by call site. Nothing is printed if
    /// nothing is.
    pub fn report_leaks_on_drop(&self, on: bool) {
        self.watch().print_leaks.store(on, Ordering::Relaxed);
    }

    /// Calls `observer` with what is still live when the last handle goes, if anything is. It runs on the thread that
    /// drops the handle; if it panics, the panic ends there. A second observer replaces the first.
    pub fn attach_leak_observer(&self, observer: impl Fn(&LeakReport) + Send + Sync + 'static) {
        *self.watch().on_leaks.lock() = Some(Arc::new(observer));
    }
}
