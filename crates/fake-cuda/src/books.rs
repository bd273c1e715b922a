//! Everything that the driver knows.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use crate::Answer;
use crate::backing::{Backing, GRANULARITY};
use crate::capture::{Capture, Node};
use crate::errors::{INVALID_CONTEXT, INVALID_VALUE, NOT_INITIALIZED, OUT_OF_MEMORY};
use crate::events::EventBook;
use crate::streams::StreamBook;

/// One GPU.
pub struct DeviceBook {
    pub memory: usize,
    pub used: usize,
}

pub struct Context {
    pub device: usize,
    /// Retains minus releases.
    pub references: u32,
    /// Contexts whose memory this one may reach.
    pub peers: BTreeSet<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Device,
    Managed,
    Host,
    /// The program's own memory.
    Registered,
    /// Another process's.
    Opened,
}

/// An allocation outside virtual memory management.
pub struct Region {
    pub kind: Kind,
    pub bytes: usize,
    pub device: usize,
    pub backing: Option<Backing>,
}

pub struct Physical {
    pub device: usize,
    pub backing: Backing,
    pub handle_types: u32,
    /// Whether the program still holds the handle.
    pub held: bool,
    pub mappings: usize,
    /// Whether its bytes count against the device: not for memory of another process.
    pub charged: bool,
}

pub struct Mapping {
    pub bytes: usize,
    pub physical: u64,
    /// Devices that may read and write.
    pub accessors: BTreeSet<i32>,
}

/// Makes calls fail: the `countdown`-th from now, or all if it is 0.
pub struct Fault {
    pub name: String,
    pub countdown: u64,
    pub code: u32,
}

#[derive(Default)]
pub struct Books {
    pub initialized: bool,
    pub devices: Vec<DeviceBook>,
    pub contexts: BTreeMap<u64, Context>,
    pub regions: BTreeMap<u64, Region>,
    pub reservations: BTreeMap<u64, usize>,
    pub physical: BTreeMap<u64, Physical>,
    pub mappings: BTreeMap<u64, Mapping>,
    pub streams: BTreeMap<u64, StreamBook>,
    pub events: BTreeMap<u64, EventBook>,
    pub captures: BTreeMap<u64, Capture>,
    pub nodes: BTreeMap<u64, Node>,
    pub graphs: BTreeSet<u64>,
    /// Executable graphs, each with the nodes that it runs.
    pub executables: BTreeMap<u64, Vec<u64>>,
    pub faults: Vec<Fault>,
    pub calls: BTreeMap<&'static str, u64>,
    pub violations: Vec<String>,
    log: Option<std::fs::File>,
    handles: u64,
}

thread_local! {
    /// The thread's stack of contexts; the last is current.
    pub static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

impl Books {
    pub fn from_environment() -> Self {
        let device = || DeviceBook { memory: number("FAKE_CUDA_MEMORY", 80 << 30) as usize, used: 0 };
        let log = std::env::var_os("FAKE_CUDA_LOG")
            .and_then(|path| std::fs::File::options().create(true).append(true).open(path).ok());
        let mut books = Books {
            devices: std::iter::repeat_with(device).take(number("FAKE_CUDA_DEVICES", 1) as usize).collect(),
            log,
            // Apart from addresses and small integers, so that a mixed-up handle is not found.
            handles: 0xFA_0000_0000,
            ..Books::default()
        };
        if let Ok(text) = std::env::var("FAKE_CUDA_FAIL") {
            let mut parts = text.split(':');
            if let (Some(name), Some(Ok(countdown)), Some(Ok(code))) =
                (parts.next(), parts.next().map(str::parse), parts.next().map(str::parse))
            {
                books.faults.push(Fault { name: name.to_owned(), countdown, code });
            }
        }
        books
    }

    /// A handle that was never given out before.
    pub fn fresh(&mut self) -> u64 {
        self.handles += 0x100;
        self.handles
    }

    /// Counts a call; answers the error that a test wants it to fail with.
    pub fn counted(&mut self, name: &'static str) -> Option<u32> {
        *self.calls.entry(name).or_default() += 1;
        let mut injected = None;
        self.faults.retain_mut(|fault| {
            if injected.is_some() || (fault.name != "*" && fault.name != name) {
                return true;
            }
            match fault.countdown {
                0 => injected = Some(fault.code),
                1 => {
                    injected = Some(fault.code);
                    return false;
                }
                _ => fault.countdown -= 1,
            }
            true
        });
        injected
    }

    pub fn log(&mut self, name: &str, code: u32) {
        if let Some(log) = &mut self.log {
            let _ = writeln!(log, "{name} -> {code}");
        }
    }

    /// Notes something that a correct program never does, and answers its error.
    pub fn violation<T>(&mut self, code: u32, text: String) -> Answer<T> {
        self.violations.push(text);
        Err(code)
    }

    /// The calling thread's context.
    pub fn context(&mut self, call: &str) -> Answer<u64> {
        if !self.initialized {
            return Err(NOT_INITIALIZED);
        }
        match self.current() {
            Some(context) => Ok(context),
            None => self.violation(INVALID_CONTEXT, format!("{call} without a context")),
        }
    }

    /// Whether the calling thread has one.
    pub fn has_context(&self) -> bool {
        self.current().is_some()
    }

    fn current(&self) -> Option<u64> {
        let current = CURRENT.try_with(|stack| stack.borrow().last().copied()).ok().flatten();
        current.filter(|context| self.contexts.contains_key(context))
    }

    /// The calling thread's device.
    pub fn device(&mut self, call: &str) -> Answer<usize> {
        let context = self.context(call)?;
        Ok(self.contexts[&context].device)
    }

    /// Takes bytes out of a device's free memory, in whole steps.
    pub fn charge(&mut self, device: usize, bytes: usize) -> Answer {
        let book = &mut self.devices[device];
        let bytes = bytes.checked_next_multiple_of(GRANULARITY).ok_or(OUT_OF_MEMORY)?;
        if bytes > book.memory - book.used {
            return Err(OUT_OF_MEMORY);
        }
        book.used += bytes;
        Ok(())
    }

    pub fn refund(&mut self, device: usize, bytes: usize) {
        self.devices[device].used -= bytes.next_multiple_of(GRANULARITY);
    }

    /// The allocation that contains an address.
    pub fn region_of(&self, address: u64) -> Option<(u64, &Region)> {
        let (&base, region) = self.regions.range(..=address).next_back()?;
        (address - base < region.bytes as u64).then_some((base, region))
    }

    /// The mapping that contains an address.
    pub fn mapping_of(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&base, mapping) = self.mappings.range(..=address).next_back()?;
        (address - base < mapping.bytes as u64).then_some((base, mapping))
    }

    /// Checks that a device may use a range: what a GPU would answer with an illegal address.
    pub fn check_range(&mut self, device: usize, address: u64, bytes: usize) -> Answer {
        let end = address.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
        let mut at = address;
        while at < end {
            let usable_to = match (self.region_of(at), self.mapping_of(at)) {
                (Some((base, region)), _) => Some(base + region.bytes as u64),
                (None, Some((base, mapping))) if mapping.accessors.contains(&(device as i32)) => {
                    Some(base + mapping.bytes as u64)
                }
                _ => None,
            };
            match usable_to {
                Some(next) => at = next,
                None => {
                    let text = format!(
                        "device {device} used {at:#x}, which is not allocated or not accessible to it"
                    );
                    return self.violation(crate::errors::ILLEGAL_ADDRESS, text);
                }
            }
        }
        Ok(())
    }
}
