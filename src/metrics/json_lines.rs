//! A line of JSON per interval or on demand, for the logs of Slurm and Kubernetes jobs.

use std::env;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::figures::Figures;
use crate::Allocator;
use crate::allocator::WeakAllocator;
use crate::periodic::Periodic;

/// Where a job learns its name: the line's key and the environment variables, the first that is set counts.
const JOB: [(&str, &[&str]); 6] = [
    ("host", &["SLURMD_NODENAME", "NODE_NAME", "HOSTNAME"]),
    ("slurm_job_id", &["SLURM_JOB_ID"]),
    ("slurm_array_task_id", &["SLURM_ARRAY_TASK_ID"]),
    ("rank", &["SLURM_PROCID", "RANK", "JOB_COMPLETION_INDEX"]),
    ("pod", &["POD_NAME"]),
    ("namespace", &["POD_NAMESPACE"]),
];

/// Writes an allocator's figures as lines of JSON.
///
/// A line's `level` is `info`, or `warn` with a `message` while more is reserved than the threshold, and once after
/// requests failed or were retried. No thread is started unless [`every`](JsonLogger::every) asks for one.
///
/// ```
/// use gpucache::{Allocator, device::sim::SimDevice, metrics::JsonLogger};
///
/// let gpu = Allocator::simulated(SimDevice::new(1 << 30));
/// let mut log = JsonLogger::new(&gpu, Vec::new()).warn_above(1 << 20);
/// let block = gpu.alloc(4 << 20)?;
/// log.log()?;
/// let line: serde_json::Value = serde_json::from_slice(log.writer())?;
/// assert_eq!(line["level"], "warn");
/// assert_eq!(line["allocated_bytes"], 4 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct JsonLogger<W> {
    allocator: WeakAllocator,
    writer: W,
    warn_above: Option<u64>,
    job: Map<String, Value>,
    seen: (i64, i64),
}

impl<W: Write> JsonLogger<W> {
    /// A logger to `writer`, often `std::io::stderr()`. It does not keep the allocator alive.
    pub fn new(allocator: &Allocator, writer: W) -> Self {
        let stats = allocator.memory_stats();
        JsonLogger {
            allocator: allocator.downgrade(),
            writer,
            warn_above: None,
            job: job(|name| env::var(name).ok()),
            seen: (stats.num_ooms, stats.num_alloc_retries),
        }
    }

    /// Warns while more than so many bytes are reserved.
    #[must_use]
    pub fn warn_above(mut self, bytes: u64) -> Self {
        self.warn_above = Some(bytes);
        self
    }

    /// Writes a line. `false`: the allocator is gone, nothing was written.
    ///
    /// # Errors
    /// The writer's.
    pub fn log(&mut self) -> io::Result<bool> {
        let Some(allocator) = self.allocator.upgrade() else { return Ok(false) };
        let figures = Figures::of(&allocator);
        // Before the writer blocks: this handle would keep the allocator open meanwhile.
        drop(allocator);
        // In one piece, so that lines of several processes don't mix.
        let line = format!("{}\n", self.line(&figures));
        self.writer.write_all(line.as_bytes())?;
        self.writer.flush()?;
        Ok(true)
    }

    /// The writer.
    pub fn writer(&self) -> &W {
        &self.writer
    }

    fn line(&mut self, figures: &Figures) -> Value {
        let stats = &figures.stats;
        let message = self.complaint(figures);
        let mut line = json!({
            "unix_time": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()),
            "level": if message.is_some() { "warn" } else { "info" },
            "source": "gpucache",
            "pid": std::process::id(),
            "device": figures.device,
            "device_name": figures.device_name,
            "allocated_bytes": stats.memory_allocated(),
            "max_allocated_bytes": stats.max_memory_allocated(),
            "reserved_bytes": stats.memory_reserved(),
            "max_reserved_bytes": stats.max_memory_reserved(),
            "allowed_bytes": figures.allowed_memory,
            "inactive_split_bytes": stats.inactive_split_bytes.all.current,
            "fragmentation": rounded(figures.fragmentation()),
            "utilisation": rounded(figures.utilisation()),
            "num_alloc_retries": stats.num_alloc_retries,
            "num_ooms": stats.num_ooms,
        });
        if let Value::Object(map) = &mut line {
            map.extend(self.job.clone());
            map.extend(message.map(|text| ("message".to_owned(), text.into())));
        }
        line
    }

    /// What there is to warn of.
    fn complaint(&mut self, figures: &Figures) -> Option<String> {
        let stats = &figures.stats;
        let seen = std::mem::replace(&mut self.seen, (stats.num_ooms, stats.num_alloc_retries));
        let (ooms, retries) = (stats.num_ooms - seen.0, stats.num_alloc_retries - seen.1);
        let reserved = stats.memory_reserved();
        if ooms > 0 {
            return Some(format!("{ooms} requests ran out of memory since the last line"));
        }
        if let Some(limit) = self.warn_above.filter(|limit| reserved > *limit) {
            return Some(format!("{reserved} bytes reserved, more than the threshold of {limit}"));
        }
        (retries > 0).then(|| format!("{retries} requests succeeded only after the cache was given back"))
    }
}

impl<W: Write + Send + 'static> JsonLogger<W> {
    /// Starts a thread that writes a line now and then one per `interval`, until the returned handle is dropped, the
    /// allocator is gone or the writer fails.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn every(mut self, interval: Duration) -> io::Result<PeriodicLogger> {
        let thread = Periodic::start("gpucache-log", interval, move || matches!(self.log(), Ok(true)))?;
        Ok(PeriodicLogger { _thread: thread })
    }
}

/// A thread that logs; it ends when this is dropped.
#[derive(Debug)]
pub struct PeriodicLogger {
    _thread: Periodic,
}

fn job(variable: impl Fn(&str) -> Option<String>) -> Map<String, Value> {
    let find = |names: &[&str]| names.iter().find_map(|name| variable(name));
    JOB.iter().filter_map(|(key, names)| Some(((*key).to_owned(), find(names)?.into()))).collect()
}

/// Four decimals: a log is read by people too.
fn rounded(ratio: f64) -> f64 {
    (ratio * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_by_its_environment() {
        let slurm =
            [("SLURM_JOB_ID", "42"), ("SLURM_PROCID", "3"), ("HOSTNAME", "login"), ("SLURMD_NODENAME", "n7")];
        let of =
            |name: &str| slurm.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        assert_eq!(Value::from(job(of)), json!({"host": "n7", "slurm_job_id": "42", "rank": "3"}));
        assert!(job(|_| None).is_empty());
    }
}
