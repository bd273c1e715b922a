//! The thread that looks for finished events, so that allocation need not (`pinned_use_background_threads`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::HostState;

/// How often it looks while something waits [spec 17.3].
const INTERVAL: Duration = Duration::from_micros(100);

#[derive(Debug, Default)]
struct State {
    stop: bool,
    /// Something was freed that waits for events.
    work: bool,
}

#[derive(Debug, Default)]
struct Signal {
    running: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// The thread, if it was needed so far.
#[derive(Debug, Default)]
pub(super) struct Worker {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    /// Whether the thread is there; else allocation looks for events itself.
    pub(super) fn is_running(&self) -> bool {
        self.signal.running.load(Ordering::Acquire)
    }

    /// Starts the thread unless it is there. Where the system has no thread for us, nothing is lost but speed.
    pub(super) fn start(&self, host: Arc<HostState>) {
        if self.is_running() {
            return;
        }
        let mut thread = self.thread.lock();
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let running = Running::begin(self.signal.clone());
        let builder = thread::Builder::new().name("gpucache-pinned".to_owned());
        // If it fails, `running` ends with the closure that it belongs to.
        let work = move || {
            let running = running;
            run(&host, &running.signal);
        };
        *thread = builder.spawn(work).ok();
    }

    /// Tells the thread that there is something to look for.
    pub(super) fn wake(&self) {
        if self.is_running() {
            self.signal.state.lock().work = true;
            self.signal.changed.notify_all();
        }
    }

    /// Ends the thread and waits for it.
    pub(super) fn stop(&self) {
        self.signal.state.lock().stop = true;
        self.signal.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // It fails if the thread panicked, which the thread itself has reported.
            let _ = thread.join();
        }
    }
}

/// As long as it exists, allocation leaves the events to the thread.
struct Running {
    signal: Arc<Signal>,
}

impl Running {
    fn begin(signal: Arc<Signal>) -> Self {
        signal.running.store(true, Ordering::Release);
        Running { signal }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal.running.store(false, Ordering::Release);
    }
}

impl Signal {
    /// Sleeps until it is time to look again. Whether to stop.
    fn sleep(&self, nothing_waits: bool) -> bool {
        let mut state = self.state.lock();
        if nothing_waits {
            self.changed.wait_while(&mut state, |state| !state.stop && !state.work);
        } else if !state.stop {
            self.changed.wait_for(&mut state, INTERVAL);
        }
        state.work = false;
        state.stop
    }
}

fn run(host: &HostState, signal: &Signal) {
    while host.options.read().pinned.use_background_threads {
        let pool = &host.pools.default;
        // A failing driver fails every later call too; those have somebody to tell it to.
        let _ = host.process_events(pool);
        if signal.sleep(pool.waiting.load(Ordering::Acquire) == 0) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::device::Stream;
    use crate::device::sim::SimDevice;
    use crate::pinned::{Host, Owner};

    #[test]
    fn runs_from_the_first_miss_until_the_option_is_off() {
        let on = Config::parse("pinned_use_background_threads:True").unwrap();
        let host = Host::new(Arc::new(SimDevice::new(1 << 30)), &on);
        assert!(!host.worker.is_running());
        let address = host.alloc(64, Stream::DEFAULT, Owner::Raw).unwrap();
        assert!(host.worker.is_running());
        host.free(address, Owner::Raw).unwrap();
        for _ in 0..2 {
            host.set_config(&Config::default());
            let thread = host.worker.thread.lock().take();
            thread.unwrap().join().unwrap();
            assert!(!host.worker.is_running());
            host.set_config(&on);
            host.worker.start(host.state.clone());
            assert!(host.worker.is_running());
        }
    }
}
