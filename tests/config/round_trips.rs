//! What is printed reads back; no text is too strange.

use std::time::Duration;

use gpucache::Config;
use gpucache::config::{Divisions, OPTIONS, ReserveSize};
use proptest::prelude::*;

use crate::MIB;

fn arbitrary_config() -> impl Strategy<Value = Config> {
    let slot = prop_oneof![Just(0_u32), (0_u32..32).prop_map(|log| 1 << log)];
    let sizes = (6_u64..100, prop::option::of(0_u64..5000), prop::option::of(0_u64..5000));
    let reals = (prop_oneof![Just(0.0), 1e-6..0.999_f64], 0.0..=1.0_f64);
    let slots = prop_oneof![
        prop::array::uniform16(slot.clone()),
        slot.clone().prop_map(|count| [count; 16]),
        (prop::array::uniform16(slot.clone()), slot, 0_usize..16).prop_map(|(mut slots, tail, at)| {
            slots[at..].fill(tail);
            slots
        }),
    ];
    let reserve = prop::option::of(prop_oneof![
        (1e-3..4.0_f64).prop_map(ReserveSize::Fraction),
        (1_u64..=u64::MAX).prop_map(ReserveSize::Bytes),
        (1_u64..5000).prop_map(|gib| ReserveSize::Bytes(gib << 30)),
    ]);
    let pinned = (0_u32..8, 0_u64..1000, prop::option::of(0_u64..1000), prop::option::of(0_u64..1000));
    let flags = prop::array::uniform10(any::<bool>());
    (sizes, reals, slots, reserve, pinned, flags, prop::option::of(any::<u64>())).prop_map(
        |(sizes, reals, slots, reserve, pinned, flags, idle)| {
            let mut config = Config::default();
            config.large_segment_size = sizes.0 * 2 * MIB;
            config.max_split_size = sizes.1.map(|mib| config.large_segment_size + mib * MIB);
            config.max_non_split_rounding = sizes.2.map(|mib| config.large_segment_size + mib * MIB);
            (config.garbage_collection_threshold, config.per_process_memory_fraction) = reals;
            config.roundup_power2_divisions = Divisions(slots);
            config.expandable_segments_reserve = reserve;
            config.pinned.num_register_threads = 1 << pinned.0;
            config.pinned.reserve_segment_size = pinned.1 * MIB;
            config.pinned.max_round_threshold = pinned.2.map(|mib| mib * MIB);
            config.pinned.max_cached_size = pinned.3.map(|mib| mib * MIB);
            [
                config.expandable_segments,
                config.release_lock_on_cudamalloc,
                config.graph_capture_record_stream_reuse,
                config.throw_on_cudamalloc_oom,
                config.pinned.use_host_register,
                config.pinned.use_background_threads,
                config.pinned.free_catch_all,
                config.fraction_of_process,
                config.borrow_across_streams,
                config.caching,
            ] = flags;
            config.release_idle_after = idle.map(Duration::from_millis);
            config
        },
    )
}

proptest! {
    #[test]
    fn display_reads_back(config in arbitrary_config()) {
        prop_assert_eq!(config.validate(), Ok(()));
        let text = config.to_string();
        let mut back = Config::parse(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        back.source = String::new();
        prop_assert_eq!(back, config);
    }

    #[test]
    fn any_text_gives_an_answer(text in any::<String>()) {
        let _ = Config::parse(&text);
    }

    #[test]
    fn any_tokens_give_an_answer(words in prop::collection::vec(
        prop_oneof![
            (0..OPTIONS.len()).prop_map(|index| OPTIONS[index].name.to_owned()),
            "[\\[\\],:>]",
            "-?[0-9]{1,20}|True|False|none|[0-9]*\\.[0-9]*(e-?[0-9]{1,3})?|0x[0-9a-f.]*(p-?[0-9]{1,12})?",
        ],
        0..20,
    )) {
        let _ = Config::parse(&words.concat());
    }
}
