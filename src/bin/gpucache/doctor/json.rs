//! The same for programs. Sizes are bytes.

use gpucache::observe::diagnose::{Diagnosis, Figure, Finding, Outcome, Value as Number};
use serde_json::{Value, json};

use super::checks::Check;
use super::facts::{Facts, name_of};

pub(crate) fn machine(facts: &Facts, checks: &[Check]) -> Value {
    let checks: Vec<Value> = checks
        .iter()
        .map(|c| json!({"level": c.level.name().to_lowercase(), "what": c.what, "detail": c.detail, "remedy": c.remedy}))
        .collect();
    let nvml = facts.nvml.as_ref().ok();
    let gpus: Vec<Value> = nvml
        .iter()
        .flat_map(|m| &m.gpus)
        .map(|gpu| {
            let processes: Option<Vec<Value>> = gpu.processes.as_ref().map(|all| {
                all.iter().map(|p| json!({"pid": p.pid, "name": name_of(p.pid), "used": p.used})).collect()
            });
            json!({
                "index": gpu.index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "pci_bus_id": gpu.pci_bus_id,
                "memory": gpu.memory.map(|m| {
                    json!({"total": m.total, "used": m.used, "reserved": m.reserved, "free": m.free})
                }),
                "processes": processes,
            })
        })
        .collect();
    json!({
        "driver_version": facts.kernel_driver.clone().or_else(|| nvml.and_then(|m| m.driver_version.clone())),
        "cuda_version": nvml.and_then(|m| m.cuda_version),
        "container": facts.container,
        "checks": checks,
        "gpus": gpus,
    })
}

pub(crate) fn diagnosis(d: &Diagnosis) -> Value {
    let outcome = match d.outcome {
        Outcome::Overview => "overview",
        Outcome::Fits => "fits",
        Outcome::Fails => "fails",
    };
    json!({
        "device": d.device,
        "outcome": outcome,
        "request": d.request.map(|r| json!({"bytes": r.bytes, "rounded": r.rounded, "segment_size": r.segment_size,
                                            "stream": r.stream})),
        "allocated": d.allocated,
        "reserved": d.reserved,
        "device_used": d.device_used,
        "findings": d.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn finding(f: &Finding) -> Value {
    let holders: Vec<Value> = f.holders.iter().map(|h| json!({"what": h.what, "bytes": h.bytes})).collect();
    json!({
        "cause": f.cause.name(),
        "bytes": f.bytes,
        "confidence": f.confidence.name(),
        "sufficient": f.sufficient,
        "figures": f.figures.iter().map(figure).collect::<Vec<_>>(),
        "holders": holders,
        "explanation": f.explanation,
        "remedy": f.remedy,
    })
}

fn figure(f: &Figure) -> Value {
    let (value, unit) = match f.value {
        Number::Bytes(n) => (json!(n), "bytes"),
        Number::Count(n) => (json!(n), "count"),
        Number::BytesPerSecond(n) => (json!(n), "bytes/s"),
        Number::Seconds(n) => (json!(n), "s"),
        other => (json!(format!("{other}")), "text"),
    };
    json!({"name": f.name, "value": value, "unit": unit})
}
