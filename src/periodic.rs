//! A thread that does something now and then, until its owner goes.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Runs until it is dropped. Dropping waits for a step under way.
#[derive(Debug)]
pub(crate) struct Periodic {
    running: Option<(Sender<()>, JoinHandle<()>)>,
    /// A forked child has this value, but not the thread.
    process: u32,
}

impl Periodic {
    /// Calls `step` at once and then once per `interval`, until it says `false`.
    pub(crate) fn start(
        name: &str,
        interval: Duration,
        mut step: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            while step() && stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {}
        })?;
        Ok(Periodic { running: Some((stop, thread)), process: std::process::id() })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.running.take() else { return };
        drop(stop);
        // A step may itself drop the owner: a thread cannot wait for itself.
        if self.process == std::process::id() && thread.thread().id() != thread::current().id() {
            // An error means that the step panicked, and that was reported then.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn it_steps_until_it_is_dropped() {
        let steps = Arc::new(AtomicU32::new(0));
        let count = steps.clone();
        let step = move || count.fetch_add(1, Ordering::Relaxed) < u32::MAX;
        let thread = Periodic::start("test", Duration::from_millis(1), step).unwrap();
        while steps.load(Ordering::Relaxed) < 3 {
            thread::yield_now();
        }
        drop(thread);
        let at_the_end = steps.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(steps.load(Ordering::Relaxed), at_the_end);
    }
}
