//! A clock that runs on measured costs instead of wall time.
//!
//! The figures are medians measured on an NVIDIA H200 (driver 580, CUDA 13.0). Calls that were not measured take
//! the figure of their nearest relative, or an estimate that says so.

use std::time::Duration;

use super::log::CallKind;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Size in bytes and cost in nanoseconds, ascending.
type Curve = &'static [(u64, u64)];

const MALLOC: Curve =
    &[(2 * MIB, 48_000), (20 * MIB, 48_000), (64 * MIB, 61_000), (GIB, 206_000), (4 * GIB, 595_000)];
const FREE: Curve =
    &[(2 * MIB, 38_000), (20 * MIB, 55_000), (64 * MIB, 93_000), (GIB, 610_000), (4 * GIB, 2_797_000)];
const CREATE: Curve = &[(2 * MIB, 13_000), (20 * MIB, 12_000), (GIB, 108_000)];
const MAP: Curve = &[(2 * MIB, 1_100), (20 * MIB, 1_100), (GIB, 2_900)];
const SET_ACCESS: Curve = &[(2 * MIB, 29_000), (20 * MIB, 29_000), (GIB, 84_000)];
const UNMAP: Curve = &[(2 * MIB, 19_000), (20 * MIB, 20_000), (GIB, 38_000)];
const RELEASE: Curve = &[(2 * MIB, 13_000), (20 * MIB, 29_000), (GIB, 530_000)];
const RESERVE: Curve = &[(0, 18_000)];
const MEM_GET_INFO: Curve = &[(0, 5_300)];
/// Half of creation and destruction together (163 ns).
const EVENT_LIFE: Curve = &[(0, 82)];
const EVENT_RECORD: Curve = &[(0, 210)];
const EVENT_QUERY: Curve = &[(0, 141)];
const STREAM_QUERY: Curve = &[(0, 184)];
const LAST_ERROR: Curve = &[(0, 20)];
/// Estimate: pinning costs about a microsecond for each 4 KiB page.
const HOST: Curve = &[(4 * KIB, 10_000), (MIB, 250_000), (GIB, 256_000_000)];

fn curve(kind: CallKind) -> Curve {
    match kind {
        CallKind::Malloc => MALLOC,
        CallKind::Free => FREE,
        CallKind::MemGetInfo => MEM_GET_INFO,
        CallKind::PendingError => LAST_ERROR,
        CallKind::EventCreate | CallKind::EventDestroy => EVENT_LIFE,
        CallKind::EventRecord | CallKind::StreamWaitEvent => EVENT_RECORD,
        CallKind::EventQuery | CallKind::EventSynchronize => EVENT_QUERY,
        CallKind::StreamSynchronize
        | CallKind::DeviceSynchronize
        | CallKind::CaptureStatus
        | CallKind::CaptureTerminals
        | CallKind::GraphNodeDependencies => STREAM_QUERY,
        CallKind::AddressReserve | CallKind::AddressFree => RESERVE,
        CallKind::MemCreate => CREATE,
        CallKind::MemRelease => RELEASE,
        CallKind::MemMap => MAP,
        CallKind::MemUnmap => UNMAP,
        CallKind::MemSetAccess => SET_ACCESS,
        CallKind::HostMalloc | CallKind::HostFree | CallKind::HostRegister | CallKind::HostUnregister => HOST,
    }
}

/// Nanoseconds of one call that concerns `bytes`: linear between the measured sizes and beyond the last,
/// constant below the first.
pub(super) fn cost(kind: CallKind, bytes: u64) -> u64 {
    let points = curve(kind);
    let above = points.partition_point(|&(size, _)| size <= bytes);
    let ((x0, y0), (x1, y1)) = match (above, points.len()) {
        (0, _) | (_, 1) => return points[0].1,
        (at, n) if at == n => (points[n - 2], points[n - 1]),
        (at, _) => (points[at - 1], points[at]),
    };
    let slope = (y1 as f64 - y0 as f64) / (x1 - x0) as f64;
    (y0 as f64 + slope * (bytes - x0) as f64).round() as u64
}

/// Time that one process spent in driver calls.
#[derive(Debug, Default)]
pub(super) struct Clock {
    nanoseconds: u64,
}

impl Clock {
    pub(super) fn spend(&mut self, kind: CallKind, bytes: u64) {
        self.nanoseconds = self.nanoseconds.saturating_add(cost(kind, bytes));
    }

    pub(super) fn advance(&mut self, time: Duration) {
        let more = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds = self.nanoseconds.saturating_add(more);
    }

    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_sizes_cost_what_was_measured_and_others_lie_between() {
        assert_eq!(cost(CallKind::Malloc, 2 * MIB), 48_000);
        assert_eq!(cost(CallKind::Malloc, GIB), 206_000);
        assert_eq!(cost(CallKind::Malloc, 512), 48_000);
        assert_eq!(cost(CallKind::Free, 4 * GIB), 2_797_000);
        // Halfway between 1 and 4 GiB, and as far again beyond.
        assert_eq!(cost(CallKind::Malloc, 2 * GIB + GIB / 2), 400_500);
        assert_eq!(cost(CallKind::Malloc, 7 * GIB), 984_000);
        assert_eq!(cost(CallKind::EventQuery, 0), 141);
        assert_eq!(cost(CallKind::EventQuery, u64::MAX), 141);
    }
}
