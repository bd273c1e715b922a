//! The model's device: byte accounts and addresses, nothing else.

use std::collections::{BTreeMap, VecDeque};

pub(crate) const MIB: u64 = 1 << 20;
const MALLOC_BASE: u64 = 0x1000_0000_0000;
const RESERVE_BASE: u64 = 0x6000_0000_0000;
const ALIGNMENT: u64 = 2 * MIB;

/// Where new memory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressPolicy {
    /// The lowest free range that is large enough.
    FirstFit,
    /// As [`Device::script`] says.
    Scripted,
}

/// One driver call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Malloc {
        bytes: u64,
        address: Option<u64>,
    },
    Free {
        address: u64,
    },
    Reserve {
        address: u64,
        bytes: u64,
    },
    Unreserve {
        address: u64,
        bytes: u64,
    },
    /// One page.
    Map {
        address: u64,
        bytes: u64,
    },
    /// One page.
    Unmap {
        address: u64,
        bytes: u64,
    },
}

/// The answers of the recorded driver within one request.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// One per `cudaMalloc`; `None` is a failure, and so is an exhausted list.
    pub(crate) mallocs: VecDeque<Option<u64>>,
    /// Where mapped ranges begin: a new reservation begins where the next one does.
    pub(crate) maps: VecDeque<u64>,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) total: u64,
    pub(crate) used: u64,
    policy: AddressPolicy,
    mallocs: BTreeMap<u64, u64>,
    reservations: BTreeMap<u64, u64>,
    next_reserve: u64,
    pub(crate) script: Script,
    pub(crate) calls: Vec<Call>,
}

impl Device {
    pub(crate) fn new(total: u64, policy: AddressPolicy) -> Self {
        Device {
            total,
            used: 0,
            policy,
            mallocs: BTreeMap::new(),
            reservations: BTreeMap::new(),
            next_reserve: RESERVE_BASE,
            script: Script::default(),
            calls: Vec::new(),
        }
    }

    pub(crate) fn malloc(&mut self, bytes: u64) -> Option<u64> {
        let address = if self.used + bytes > self.total {
            None
        } else {
            match self.policy {
                AddressPolicy::FirstFit => Some(first_fit(&self.mallocs, MALLOC_BASE, bytes)),
                AddressPolicy::Scripted => self.script.mallocs.pop_front().flatten(),
            }
        };
        self.calls.push(Call::Malloc { bytes, address });
        let address = address?;
        self.used += bytes;
        self.mallocs.insert(address, bytes);
        Some(address)
    }

    /// False where the driver would answer "invalid argument".
    pub(crate) fn free(&mut self, address: u64) -> bool {
        let Some(bytes) = self.mallocs.remove(&address) else { return false };
        self.used -= bytes;
        self.calls.push(Call::Free { address });
        true
    }

    pub(crate) fn reserve(&mut self, bytes: u64) -> u64 {
        let address = match self.policy {
            AddressPolicy::FirstFit => first_fit(&self.reservations, RESERVE_BASE, bytes),
            AddressPolicy::Scripted => self.script.maps.front().copied().unwrap_or(self.next_reserve),
        };
        self.next_reserve = self.next_reserve.max((address + bytes).next_multiple_of(ALIGNMENT));
        self.reservations.insert(address, bytes);
        self.calls.push(Call::Reserve { address, bytes });
        address
    }

    pub(crate) fn unreserve(&mut self, address: u64) {
        let bytes = self.reservations.remove(&address).expect("a reservation starts here");
        self.calls.push(Call::Unreserve { address, bytes });
    }

    /// Maps the whole range or nothing [spec 13.3].
    pub(crate) fn map(&mut self, address: u64, bytes: u64, page: u64) -> bool {
        if self.used + bytes > self.total {
            return false;
        }
        self.script.maps.pop_front();
        self.used += bytes;
        self.calls.extend(pages(address, bytes, page).map(|address| Call::Map { address, bytes: page }));
        true
    }

    pub(crate) fn unmap(&mut self, address: u64, bytes: u64, page: u64) {
        self.used -= bytes;
        self.calls.extend(pages(address, bytes, page).map(|address| Call::Unmap { address, bytes: page }));
    }
}

fn pages(address: u64, bytes: u64, page: u64) -> impl Iterator<Item = u64> {
    (address..address + bytes).step_by(page as usize)
}

fn first_fit(taken: &BTreeMap<u64, u64>, base: u64, bytes: u64) -> u64 {
    let mut candidate = base;
    for (&start, &size) in taken {
        if candidate + bytes <= start {
            break;
        }
        candidate = candidate.max((start + size).next_multiple_of(ALIGNMENT));
    }
    candidate
}
