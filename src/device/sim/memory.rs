//! Physical bytes (shared by the processes of a GPU) and the addresses that `malloc` hands out.

use std::collections::{BTreeMap, VecDeque};

use super::faults::{Fault, Outcome, Refusal, code};
use super::{AddressPolicy, ProcessMemory};

/// Addresses come in steps of the driver's page size, 2 MiB on every recent GPU.
pub(super) const PAGE: u64 = 2 << 20;

/// The bytes of the GPU and who holds them.
#[derive(Debug)]
pub(super) struct Physical {
    total: u64,
    /// Every driver allocation is accounted in multiples of this.
    granularity: u64,
    /// Wider than a byte count: other processes and contexts may claim more than there is.
    in_use: u128,
    /// Simulated processes: pid and bytes, by their index.
    own: Vec<(u32, u64)>,
    /// Processes that exist only as a figure, in the order in which they appeared.
    foreign: Vec<(u32, u64)>,
}

impl Physical {
    pub(super) fn new(total: u64, granularity: u64) -> Self {
        Physical { total, granularity: granularity.max(1), in_use: 0, own: Vec::new(), foreign: Vec::new() }
    }

    /// A new process, whose context takes `overhead` bytes whether they are there or not.
    pub(super) fn add_process(&mut self, pid: u32, overhead: u64) -> usize {
        self.own.push((pid, overhead));
        self.in_use += u128::from(overhead);
        self.own.len() - 1
    }

    pub(super) fn next_pid(&self) -> u32 {
        let taken = self.own.iter().chain(&self.foreign).map(|&(pid, _)| pid).max();
        taken.unwrap_or(0).saturating_add(1)
    }

    pub(super) fn set_foreign(&mut self, pid: u32, bytes: u64) {
        let before = self.foreign.iter().find(|p| p.0 == pid).map_or(0, |p| p.1);
        self.in_use = self.in_use - u128::from(before) + u128::from(bytes);
        match self.foreign.iter().position(|p| p.0 == pid) {
            Some(at) if bytes == 0 => drop(self.foreign.remove(at)),
            Some(at) => self.foreign[at].1 = bytes,
            None if bytes > 0 => self.foreign.push((pid, bytes)),
            None => {}
        }
    }

    /// What an allocation of `bytes` takes; `None` when it is no number.
    fn accounted(&self, bytes: u64) -> Option<u64> {
        bytes.checked_next_multiple_of(self.granularity)
    }

    pub(super) fn take(&mut self, process: usize, bytes: u64) -> Outcome<()> {
        let bytes = self.accounted(bytes).filter(|&b| b <= self.free()).ok_or(Fault::OutOfMemory)?;
        self.in_use += u128::from(bytes);
        self.own[process].1 += bytes;
        Ok(())
    }

    pub(super) fn give_back(&mut self, process: usize, bytes: u64) {
        let bytes = self.accounted(bytes).unwrap_or(0);
        self.in_use -= u128::from(bytes);
        self.own[process].1 -= bytes;
    }

    pub(super) fn free(&self) -> u64 {
        u128::from(self.total).saturating_sub(self.in_use) as u64
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn used_by(&self, process: usize) -> u64 {
        self.own[process].1
    }

    pub(super) fn processes(&self, asking: usize) -> Vec<ProcessMemory> {
        let own = self.own.iter().enumerate().map(|(at, &(pid, used))| (pid, used, at == asking));
        let foreign = self.foreign.iter().map(|&(pid, used)| (pid, used, false));
        own.chain(foreign)
            .map(|(pid, used, is_self)| ProcessMemory { pid, used: Some(used), is_self })
            .collect()
    }
}

/// Live address ranges of one kind, and where the next one goes.
#[derive(Debug)]
pub(super) struct AddressSpace {
    live: BTreeMap<u64, u64>,
    /// Free ranges below `top` (first fit only), start to end.
    gaps: BTreeMap<u64, u64>,
    base: u64,
    top: u64,
    policy: AddressPolicy,
    script: VecDeque<u64>,
}

impl AddressSpace {
    pub(super) fn new(base: u64, policy: AddressPolicy) -> Self {
        let (live, gaps, script) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        AddressSpace { live, gaps, base, top: base, policy, script }
    }

    pub(super) fn push_script(&mut self, address: u64) {
        self.script.push_back(address);
    }

    pub(super) fn script_remaining(&self) -> usize {
        self.script.len()
    }

    /// Bytes of the live range that begins exactly at `address`.
    pub(super) fn size_at(&self, address: u64) -> Option<u64> {
        self.live.get(&address).copied()
    }

    /// The live range (start, bytes) around `address`.
    pub(super) fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &bytes) = self.live.range(..=address).next_back()?;
        (address - start < bytes).then_some((start, bytes))
    }

    pub(super) fn live(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.live.iter().map(|(&start, &bytes)| (start, bytes))
    }

    /// Places a new range: at the script's next address, or as the policy says.
    pub(super) fn take(&mut self, bytes: u64) -> Outcome<u64> {
        let address = match self.script.pop_front() {
            Some(address) => self.check_scripted(address, bytes)?,
            None if self.policy == AddressPolicy::Scripted => return Err(Fault::OutOfMemory.into()),
            None => self.place(bytes)?,
        };
        self.live.insert(address, bytes);
        Ok(address)
    }

    fn check_scripted(&mut self, address: u64, bytes: u64) -> Outcome<u64> {
        let refuse = |why: String| {
            Err(Refusal::misuse(code::INVALID_VALUE, format!("scripted range {address:#x}+{bytes} {why}")))
        };
        let Some(end) = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE)) else {
            return refuse("wraps around".to_owned());
        };
        if let Some((&start, &len)) = self.live.range(..address + bytes).next_back()
            && start + len > address
        {
            return refuse(format!("overlaps the live range {start:#x}+{len}"));
        }
        if self.policy != AddressPolicy::Scripted {
            if !address.is_multiple_of(PAGE) {
                return refuse("is not 2 MiB aligned, as the other addresses of this policy are".to_owned());
            }
            self.carve(address, end);
        }
        Ok(address)
    }

    /// Keeps later placements out of `start..end`, which is free.
    fn carve(&mut self, start: u64, end: u64) {
        if end > self.top {
            let skipped = std::mem::replace(&mut self.top, end)..start;
            if !skipped.is_empty() && self.policy == AddressPolicy::FirstFit {
                self.add_gap(skipped.start, skipped.end);
            }
        } else if let Some((&gap, &gap_end)) = self.gaps.range(..=start).next_back()
            && gap_end >= end
        {
            self.gaps.remove(&gap);
            if gap < start {
                self.gaps.insert(gap, start);
            }
            if end < gap_end {
                self.gaps.insert(end, gap_end);
            }
        }
    }

    fn place(&mut self, bytes: u64) -> Outcome<u64> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(Fault::OutOfMemory)?;
        let gap = self.gaps.iter().find(|&(&start, &end)| end - start >= bytes).map(|(&s, &e)| (s, e));
        if let Some((start, end)) = gap {
            self.gaps.remove(&start);
            if end - start > bytes {
                self.gaps.insert(start + bytes, end);
            }
            return Ok(start);
        }
        let start = self.top;
        self.top = start.checked_add(bytes).ok_or(Fault::OutOfMemory)?;
        Ok(start)
    }

    /// Ends the live range that begins exactly at `address`; its size.
    pub(super) fn give_back(&mut self, address: u64) -> Option<u64> {
        let bytes = self.live.remove(&address)?;
        let end = address + bytes.next_multiple_of(PAGE);
        // Below the base lies only what a script put there.
        if self.policy == AddressPolicy::FirstFit && address >= self.base {
            self.add_gap(address, end);
        }
        Some(bytes)
    }

    fn add_gap(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, &before_end)) = self.gaps.range(..start).next_back()
            && before_end == start
        {
            self.gaps.remove(&before);
            start = before;
        }
        if let Some(after_end) = self.gaps.remove(&end) {
            end = after_end;
        }
        if end == self.top {
            self.top = start;
        } else {
            self.gaps.insert(start, end);
        }
    }
}
