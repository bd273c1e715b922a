//! The simulated GPU: capacity, addresses, processes.

use crate::code;
use gpucache::device::sim::{AddressPolicy, SimDevice};
use gpucache::device::{Device, HandleType, MemInfo, ProcessMemory};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x1000_0000_0000;

#[test]
fn memory_runs_out_exactly_at_the_total() {
    let gpu = SimDevice::new(100);
    let a = gpu.malloc(60).unwrap();
    assert!(gpu.malloc(41).unwrap_err().is_out_of_memory());
    let b = gpu.malloc(40).unwrap();
    assert_eq!(gpu.mem_get_info().unwrap(), MemInfo { free: 0, total: 100 });
    gpu.free(a).unwrap();
    assert_eq!(gpu.mem_get_info().unwrap().free, 60);
    assert!(gpu.malloc(u64::MAX).unwrap_err().is_out_of_memory());
    gpu.free(b).unwrap();
    gpu.assert_clean();
}

#[test]
fn granularity_context_and_others_take_their_part() {
    let gpu = SimDevice::builder().total_memory(10 * MIB).granularity(2 * MIB).context_overhead(MIB).build();
    gpu.set_other_process(77, MIB);
    let a = gpu.malloc(1).unwrap();
    assert_eq!(gpu.mem_get_info().unwrap().free, 6 * MIB);
    assert_eq!(gpu.used(), 3 * MIB);
    gpu.set_other_process(77, u64::MAX);
    assert_eq!(gpu.mem_get_info().unwrap().free, 0);
    gpu.set_other_process(77, 0);
    assert_eq!(gpu.mem_get_info().unwrap().free, 7 * MIB);
    gpu.free(a).unwrap();
    assert_eq!(gpu.used(), MIB);
}

#[test]
fn processes_share_the_memory_and_nothing_else() {
    let one = SimDevice::builder().total_memory(100 * MIB).context_overhead(10 * MIB).pid(500).build();
    let two = one.another_process();
    one.set_other_process(9, 5 * MIB);
    let a = one.malloc(60 * MIB).unwrap();
    assert!(two.malloc(16 * MIB).unwrap_err().is_out_of_memory());
    let b = two.malloc(15 * MIB).unwrap();
    assert_eq!(a, b, "each process has an address space of its own");
    let row = |pid, mib: u64, is_self| ProcessMemory { pid, used: Some(mib * MIB), is_self };
    assert_eq!(one.processes().unwrap(), [row(500, 70, true), row(501, 25, false), row(9, 5, false)]);
    assert!(two.processes().unwrap()[1].is_self);
    assert_eq!(two.total_calls(), 2);

    let blind = SimDevice::builder().processes_visible(false).build();
    assert_eq!(blind.processes(), None);
}

#[test]
fn ascending_never_reuses_and_first_fit_takes_the_lowest() {
    let ascending = SimDevice::new(1 << 30);
    let a = ascending.malloc(3 * MIB).unwrap();
    ascending.free(a).unwrap();
    assert_eq!((a, ascending.malloc(1).unwrap()), (BASE, BASE + 4 * MIB));

    let gpu = SimDevice::builder().address_policy(AddressPolicy::FirstFit).build();
    let [a, b, c] = [4, 2, 2].map(|n| gpu.malloc(n * MIB).unwrap() - BASE);
    assert_eq!([a, b, c], [0, 4 * MIB, 6 * MIB]);
    gpu.free(BASE).unwrap();
    gpu.free(BASE + 4 * MIB).unwrap();
    assert_eq!(gpu.malloc(7 * MIB).unwrap() - BASE, 8 * MIB, "too large for the gap");
    assert_eq!(gpu.malloc(5 * MIB).unwrap() - BASE, 0, "the two gaps are one");
}

#[test]
fn devices_have_addresses_of_their_own() {
    let zero = SimDevice::builder().build();
    let one = SimDevice::builder().ordinal(1).build();
    assert_ne!(zero.malloc(MIB).unwrap(), one.malloc(MIB).unwrap());
    assert_ne!(zero.properties().uuid, one.properties().uuid);
}

#[test]
fn scripted_addresses_come_in_order_and_run_out() {
    let gpu = SimDevice::builder().address_policy(AddressPolicy::Scripted).build();
    gpu.push_address(0x7f00_0000_0200);
    gpu.push_address(0x7e00_0000_0000);
    assert_eq!(gpu.script_remaining(), (2, 0));
    assert_eq!(gpu.malloc(MIB).unwrap(), 0x7f00_0000_0200);
    assert_eq!(gpu.malloc(MIB).unwrap(), 0x7e00_0000_0000);
    assert!(gpu.malloc(MIB).unwrap_err().is_out_of_memory());
    assert_eq!(gpu.used(), 2 * MIB, "a failed call takes nothing");
    gpu.push_address(0x7f00_0000_0000);
    assert_eq!(code(gpu.malloc(MIB)), 1);
    assert!(gpu.misuses()[0].contains("overlaps"), "{:?}", gpu.misuses());
    // Where memory runs out, the script is not used up.
    gpu.push_address(0x7f00_4000_0000);
    assert!(gpu.malloc(1 << 40).is_err());
    assert_eq!(gpu.script_remaining(), (1, 0));
}

#[test]
fn scripted_reservations_stay_clear_of_placed_ones() {
    let gpu = SimDevice::builder().build();
    let base = 0x6000_0000_0000;
    gpu.push_reservation(base + 8 * MIB);
    assert_eq!(gpu.address_reserve(4 * MIB).unwrap(), base + 8 * MIB);
    assert_eq!(gpu.address_reserve(10 * MIB).unwrap(), base + 12 * MIB);
    assert_eq!(gpu.address_reserve(8 * MIB).unwrap(), base);
    gpu.address_free(base + 8 * MIB, 4 * MIB).unwrap();
    assert_eq!(gpu.address_reserve(2 * MIB).unwrap(), base + 8 * MIB);
    gpu.push_reservation(base + 10 * MIB + 1);
    assert_eq!(code(gpu.address_reserve(2 * MIB)), 1);
}

#[test]
fn wrong_frees_are_errors_that_say_what_is_wrong() {
    let gpu = SimDevice::new(1 << 30);
    let a = gpu.malloc(MIB).unwrap();
    assert_eq!(code(gpu.free(a + 512)), 1);
    assert_eq!(code(gpu.free(12345)), 1);
    gpu.free(a).unwrap();
    assert_eq!(code(gpu.free(a)), 1);
    assert_eq!(code(gpu.malloc(0)), 1);
    let misuses = gpu.misuses();
    assert_eq!(misuses.len(), 4);
    assert!(misuses[0].starts_with("cuMemFree: ") && misuses[0].contains("inside"), "{misuses:?}");
    assert!(misuses[2].contains("freed twice"), "{misuses:?}");
    assert_eq!(gpu.used(), 0);
}

#[test]
fn leaks_are_listed() {
    let gpu = SimDevice::new(1 << 30);
    gpu.malloc(MIB).unwrap();
    gpu.address_reserve(2 * MIB).unwrap();
    gpu.mem_create(2 * MIB, HandleType::None).unwrap();
    gpu.event_create().unwrap();
    gpu.host_malloc(10).unwrap();
    gpu.host_register(4096, 10).unwrap();
    assert_eq!(gpu.leaks().len(), 6, "{:?}", gpu.leaks());
}

#[test]
#[should_panic(expected = "not clean")]
fn assert_clean_panics_on_a_leak() {
    let gpu = SimDevice::new(1 << 30);
    gpu.malloc(MIB).unwrap();
    gpu.assert_clean();
}

proptest! {
    /// First fit against the obvious way: walk the live ranges in order and take the first hole.
    #[test]
    fn first_fit_is_first_fit(ops in prop::collection::vec((any::<bool>(), 1u64..20), 1..120)) {
        let gpu = SimDevice::builder().address_policy(AddressPolicy::FirstFit).build();
        let mut live: Vec<(u64, u64)> = Vec::new();
        for (free, n) in ops {
            if free && !live.is_empty() {
                let (address, _) = live.remove(n as usize % live.len());
                gpu.free(address).unwrap();
                continue;
            }
            let pages = n.div_ceil(2) * 2 * MIB;
            let mut expected = BASE;
            for &(start, bytes) in &live {
                if expected + pages <= start {
                    break;
                }
                expected = start + bytes;
            }
            prop_assert_eq!(gpu.malloc(n * MIB).unwrap(), expected);
            live.push((expected, pages));
            live.sort_unstable();
        }
        prop_assert_eq!(gpu.misuses(), Vec::<String>::new());
    }
}
