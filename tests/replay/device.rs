//! Recordings replayed on devices that place segments where they like.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use gpucache::device::sim::{AddressPolicy, SimDevice};
use gpucache::device::{Device, Stream};
use gpucache::replay::{Agreement, DeviceReplay, Divergence, verify_on_device};

/// As much as the recordings' device.
const MEMORY: u64 = 150_109_880_320;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(name)
}

/// A device of so many bytes, and streams of it.
fn device(memory: u64, policy: AddressPolicy) -> (Arc<dyn Device>, Vec<Stream>) {
    let sim = SimDevice::builder().total_memory(memory).address_policy(policy).build();
    let streams = (0..8).map(|_| sim.create_stream()).collect();
    (Arc::new(sim), streams)
}

fn replay(name: &str, obs: &str, on: &(Arc<dyn Device>, Vec<Stream>)) -> Result<DeviceReplay, Divergence> {
    let [req, obs] = [(name, "req"), (obs, "obs")].map(|(name, part)| golden(&format!("{name}.{part}.zst")));
    verify_on_device(&req, &obs, &on.0, &on.1, &AtomicU64::new(0))
}

#[test]
fn busy_streams_and_growth_are_exact_at_other_addresses() {
    let on = device(MEMORY, AddressPolicy::Ascending);
    for case in ["record_stream_pending.default", "streams_two.exp", "exp_unmap_holes.exp", "cap_oom.default"]
    {
        let name = format!("rules/{case}");
        let replay = replay(&name, &name, &on).unwrap_or_else(|divergence| panic!("{case}: {divergence}"));
        assert_eq!(replay.agreement, Agreement::Exact, "{case}");
        assert_eq!(replay.recorded, replay.replayed, "{case}");
        assert!(replay.replayed.calls() > 0);
    }
}

#[test]
fn equal_sizes_are_told_apart_by_the_devices_addresses() {
    // Two cached segments of 20 MiB, of which one is given back: the lower one, which was the recording's second.
    let case = "rules/cap_retry_release.default";
    let replay = replay(case, case, &device(MEMORY, AddressPolicy::Ascending)).unwrap();
    let Agreement::ByAddress(difference) = replay.agreement else { panic!("{replay:?}") };
    assert_eq!(difference.request, 4);
    assert!(difference.reason.contains("event 1 is '+ sf"), "{difference}");
    assert_eq!(replay.recorded, replay.replayed);
}

#[test]
fn all_rules_agree_whatever_the_order_of_the_segments() {
    for policy in [AddressPolicy::Ascending, AddressPolicy::FirstFit] {
        let on = device(MEMORY, policy);
        let mut cases = 0;
        for entry in std::fs::read_dir(golden("rules")).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            if let Some(case) = file.strip_suffix(".req.zst") {
                let name = format!("rules/{case}");
                let replay =
                    replay(&name, &name, &on).unwrap_or_else(|divergence| panic!("{case}: {divergence}"));
                assert_eq!(replay.recorded.peak_reserved, replay.replayed.peak_reserved, "{case}");
                cases += 1;
            }
        }
        assert_eq!(cases, 64);
        let free = on.0.mem_get_info().unwrap();
        assert_eq!(free.free, free.total, "a replay kept memory");
    }
}

#[test]
fn the_answers_of_another_case_are_a_difference() {
    let on = device(MEMORY, AddressPolicy::Ascending);
    let wrong = replay("rules/cap_oom.default", "rules/cap_exact.default", &on).unwrap_err();
    assert!(wrong.reason.contains("different recordings"), "{wrong}");
}

#[test]
fn a_small_device_and_missing_streams_are_said() {
    let small = device(1 << 30, AddressPolicy::Ascending);
    let refused = replay("rules/sizes_kept.default", "rules/sizes_kept.default", &small).unwrap_err();
    assert!(refused.reason.contains("too little free memory"), "{refused}");
    let info = small.0.mem_get_info().unwrap();
    assert_eq!(info.free, info.total, "what the replay had taken is back");
    let without = (small.0, Vec::new());
    let refused = replay("rules/streams_two.default", "rules/streams_two.default", &without).unwrap_err();
    assert!(refused.reason.contains("streams"), "{refused}");
}

#[test]
fn a_difference_that_addresses_do_not_explain_is_an_error() {
    let folder = std::env::temp_dir().join(format!("gpucache-device-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let packed = std::fs::File::open(golden("rules/cap_oom.default.obs.zst")).unwrap();
    let mut text = String::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(packed).unwrap();
    std::io::Read::read_to_string(&mut decoder, &mut text).unwrap();
    let on = device(MEMORY, AddressPolicy::Ascending);
    for (from, to, reason) in [
        ("\n@ oom 0 0 0", "\n@ oom 0 0 8", "expected 41943048"),
        ("Tried to allocate 30.00 MiB", "Tried to allocate 32.00 MiB", "the error's text is"),
        ("+ sf 7fec12800000 ", "+ su 7fec12800000 ", "event 1 is"),
    ] {
        assert!(text.contains(from), "the recording has no '{from}'");
        let obs = folder.join("case.obs");
        std::fs::write(&obs, text.replacen(from, to, 1)).unwrap();
        let req = golden("rules/cap_oom.default.req.zst");
        let wrong = verify_on_device(&req, &obs, &on.0, &on.1, &AtomicU64::new(0)).unwrap_err();
        assert!(wrong.reason.contains(reason), "{wrong}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
