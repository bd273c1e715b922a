//! The out-of-memory path [spec 11.1].

use std::sync::Arc;

use super::Core;
use super::parts::DEFAULT_POOL;
use super::shard::Request;
use super::shards::Shard;
use crate::device::MemInfo;
use crate::error::Error;
use crate::observe::diagnose::{Finding, diagnose, write_findings};
use crate::observe::history::TraceAction;
use crate::observe::oom::OomReport;
use crate::pool::block::State;

/// The findings as text.
fn explain(findings: &[Finding]) -> Option<String> {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_findings(&mut text, findings);
    (!text.is_empty()).then_some(text)
}

impl Core {
    /// Counts, records and reports a request that failed.
    pub(super) fn out_of_memory(&self, shard: &Arc<Shard>, request: &Request) -> Error {
        let report = self.oom_report(shard, request);
        self.ledger.lock().num_ooms += 1;
        shard.lock().record(TraceAction::Oom, report.device_free, request.rounded, Some(request.site));
        self.hooks.report_oom(&report);
        Error::OutOfMemory(Box::new(report))
    }

    /// A request refused for the cap's sake before anything was released [spec 22].
    pub(super) fn rejected(&self, shard: &Arc<Shard>, request: &Request) -> Error {
        let mut report = self.oom_report(shard, request);
        report.rejected = true;
        self.hooks.report_oom(&report);
        Error::OutOfMemory(Box::new(report))
    }

    /// The figures behind the error. A driver that cannot even say what is free counts as full.
    pub(super) fn oom_report(&self, shard: &Arc<Shard>, request: &Request) -> OomReport {
        let total_memory = self.properties.total_memory;
        let info = self.device.mem_get_info().unwrap_or(MemInfo { free: 0, total: total_memory });
        let stats = self.stats();
        let (segment_size, largest_free) = {
            let state = shard.lock();
            let free = state.slab.iter().filter(|(_, b)| b.state == State::Free && b.pool == request.pool);
            let largest = free.filter(|(_, b)| b.kind == request.kind).map(|(_, b)| b.size).max();
            (state.rules.segment_size(request.rounded), largest.unwrap_or(0))
        };
        let processes = self.device.processes();
        let wanted = self.wanted(request, segment_size, shard.stream);
        let findings = diagnose(&self.evidence(Some(wanted), Some(info), processes.as_deref())).findings;
        // Not inside the report: the lock would be held until that is done, and reading the settings comes before it.
        let allowed = self.ledger.lock().allowed_max;
        OomReport {
            device: self.properties.ordinal,
            requested: request.bytes,
            rounded: request.rounded,
            segment_size,
            stream: shard.stream.raw(),
            device_total: info.total,
            device_free: info.free,
            allowed,
            allocated: stats.allocated_bytes.all.current as u64,
            reserved: stats.reserved_bytes.all.current as u64,
            active: stats.active_bytes.all.current as u64,
            private_free: self.private_free(),
            largest_free,
            processes,
            config: self.config(),
            explanation: explain(&findings),
            findings,
            ..OomReport::default()
        }
    }

    /// Free blocks of all private pools, in bytes.
    fn private_free(&self) -> u64 {
        let free = |shard: &Arc<Shard>| -> u64 {
            let state = shard.lock();
            let blocks = state.slab.iter().filter(|(_, b)| b.state == State::Free && b.pool != DEFAULT_POOL);
            blocks.map(|(_, b)| b.size).sum()
        };
        self.shards.by_stream().iter().map(free).sum()
    }

    /// Memory of this process on the device that is not ours but counts for the cap (`fraction_of_process`): the
    /// CUDA context, other libraries. 0 where nobody can say.
    pub(super) fn counted_outside(&self) -> u64 {
        if !self.config.read().fraction_of_process || self.ledger.lock().allowed_max.is_none() {
            return 0;
        }
        let own = self.device.processes().and_then(|all| all.into_iter().find(|p| p.is_self)?.used);
        own.map_or(0, |own| own.saturating_sub(self.reserved().0))
    }
}
