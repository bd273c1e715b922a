//! Options: grammar, bounds, texts, round trips [spec 2.2, 15].

#![allow(clippy::unwrap_used)] // helpers of tests

use std::ffi::OsString;
use std::time::Duration;

use gpucache::Config;
use gpucache::config::{ConfigError, Divisions, OPTIONS, ReserveSize, find_option};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn parse(text: &str) -> Config {
    Config::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> String {
    Config::parse(text).expect_err(text).to_string()
}

/// Slots of `roundup_power2_divisions:VALUE`.
fn slots(value: &str) -> [u32; 16] {
    parse(&format!("roundup_power2_divisions:{value}")).roundup_power2_divisions.0
}

// ---- PyTorch's own answers -------------------------------------------------------------------------------------

/// Settings calls answered by PyTorch 2.11.0 itself: `text, "ok", values...` or `text, error` ("assert" for its
/// internal assertions). Made from hand-picked and random texts; each started from the default settings.
#[test]
fn every_text_is_read_as_pytorch_reads_it() {
    for line in include_str!("data/config_pytorch.tsv").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let outcome = Config::parse(fields[0]);
        match (&outcome, fields[1]) {
            // Refused here with a reason of its own: pages that the driver cannot make.
            (Err(ConfigError::Conflict { first: "expandable_segments", .. }), "ok") => {}
            (Ok(config), "ok") => assert_eq!(values(config), fields[2..], "{line}"),
            (Err(error), expected) => assert!(same_mistake(error, expected), "{line}\n{error:?}"),
            (Ok(config), expected) => {
                assert!(fields[0].starts_with("throw_on"), "accepted: {line}\n{expected}\n{config}");
            }
        }
    }
}

fn values(config: &Config) -> Vec<String> {
    let flag = |on: bool| u8::from(on).to_string();
    let slots = config.roundup_power2_divisions.0.map(|slot| slot.to_string());
    vec![
        (config.max_split_bytes() as i64).to_string(),
        format!("{:?}", config.garbage_collection_threshold),
        flag(config.expandable_segments),
        config.pinned.num_register_threads.to_string(),
        flag(config.release_lock_on_cudamalloc),
        flag(config.pinned.use_host_register),
        flag(config.graph_capture_record_stream_reuse),
        slots.join(" "),
    ]
}

fn same_mistake(error: &ConfigError, pytorch: &str) -> bool {
    match error {
        ConfigError::UnknownKey { key, .. } => pytorch.starts_with(&format!("Unrecognized key '{key}' in ")),
        ConfigError::InvalidValue { message, .. } => message.starts_with(pytorch),
        ConfigError::Syntax { .. } | ConfigError::Unsupported { .. } => pytorch == "assert",
        _ => false,
    }
}

// ---- Tables of the specification -------------------------------------------------------------------------------

/// [spec 15.4]
#[test]
fn slot_table() {
    for (list, slots_text) in [
        ("[256:1,512:2,1024:4,>:8]", "1 1 1 1 1 1 1 1 1 2 4 8 8 8 8 8"),
        ("[64:8,256:4,1024:4,>:1]", "8 8 8 8 8 8 8 0 4 0 4 1 1 1 1 1"),
        ("[>:4]", "0 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4"),
        ("[128:2]", "2 2 2 2 2 2 2 2 0 0 0 0 0 0 0 0"),
        ("[512:4,64:2]", "4 4 4 4 4 4 2 4 4 4 0 0 0 0 0 0"),
        ("[131072:4]", "4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 4"),
        ("[4:0,>:2]", "0 0 0 2 2 2 2 2 2 2 2 2 2 2 2 2"),
        ("[]", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"),
        ("8", "8 8 8 8 8 8 8 8 8 8 8 8 8 8 8 8"),
    ] {
        assert_eq!(slots(list).map(|slot| slot.to_string()).join(" "), slots_text, "{list}");
    }
}

/// [spec 2.2]: which slot serves which request.
#[test]
fn division_lookup() {
    let mut slots = [0; 16];
    for (slot, count) in slots.iter_mut().enumerate() {
        *count = slot as u32;
    }
    let divisions = Divisions(slots);
    for (bytes, slot) in [
        (0, 0),
        (1, 0),
        (MIB - 1, 0),
        (MIB, 0),
        (2 * MIB - 1, 0),
        (2 * MIB, 1),
        (3 * MIB, 1),
        (1024 * MIB, 10),
        ((32 << 30) - 1, 14),
        (32 << 30, 15),
        (64 << 30, 15),
        (u64::MAX, 15),
    ] {
        assert_eq!(divisions.for_size(bytes), slot, "{bytes}");
    }
}

/// [spec 2.1, 2.2]: the counts that the lookup gives lead to the block sizes of the table.
#[test]
fn worked_block_sizes() {
    fn block(value: &str, n: u64) -> u64 {
        let d = u64::from(Divisions(slots(value)).for_size(n));
        if n < 512 {
            512
        } else if d > 1 && n > 512 * d {
            let floor = 1 << n.ilog2();
            n.next_multiple_of(if n == floor { floor } else { floor >> d.ilog2() })
        } else {
            n.next_multiple_of(512)
        }
    }
    let rows: &[(&str, &[(u64, u64)])] = &[
        ("[]", &[(1, 512), (512, 512), (513, 1024), (1000, 1024), (1_048_577, 1_049_088)]),
        ("4", &[(1, 512), (513, 1024), (1200, 1536), (2048, 2048), (2049, 2560), (3000, 3072), (5000, 5120)]),
        ("4", &[(1_048_577, 1_310_720), (1_310_721, 1_572_864), (11_534_336, 12_582_912)]),
        ("2", &[(1024, 1024), (1025, 1536), (1537, 2048), (2049, 3072), (3_145_729, 4_194_304)]),
        ("8", &[(4096, 4096), (4097, 4608), (5000, 5120), (9_437_189, 10_485_760)]),
        ("1", &[(1025, 1536), (3_145_729, 3_146_240)]),
        ("16384", &[(8_388_608, 8_388_608), (8_388_609, 8_389_120), (16_777_217, 16_778_240)]),
        (
            "[1:4,2:0,>:8]",
            &[
                (600_000, 655_360),
                (1_048_577, 1_310_720),
                (2_097_151, 2_097_152),
                (2_097_153, 2_097_664),
                (3_145_729, 3_146_240),
                (4_194_305, 4_718_592),
            ],
        ),
    ];
    for (value, pairs) in rows {
        for (request, size) in *pairs {
            assert_eq!(block(value, *request), *size, "{value}: {request}");
        }
    }
}

/// [spec 15.3]
#[test]
fn bounds_and_texts() {
    for (text, message) in [
        ("backend:x", "Unknown allocator backend, options are native and cudaMallocAsync"),
        ("large_segment_size_mb:10", "CachingAllocator option large_segment_size_mb must be > 10 MB"),
        ("max_split_size_mb:19", "CachingAllocator option max_split_size_mb too small, must be >= 20"),
        (
            "max_split_size_mb:40,large_segment_size_mb:64",
            "CachingAllocator option max_split_size_mb too small, must be >= 64",
        ),
        (
            "max_non_split_rounding_mb:19",
            "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20",
        ),
        ("garbage_collection_threshold:1", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
        ("roundup_power2_divisions:0", "For roundups, the divisions has to be power of 2 "),
        (
            "roundup_power2_divisions:[1:3]",
            "For roundups, the divisions has to be power of 2 or 0 to disable roundup ",
        ),
        ("roundup_power2_divisions:[3:1]", "For roundups, the intervals have to be power of 2 "),
        ("pinned_num_register_threads:3", "Number of register threads has to be power of 2, got 3"),
        (
            "pinned_num_register_threads:256",
            "Number of register threads should be less than or equal to 128, got 256",
        ),
        ("pinned_reserve_segment_size_mb:0", "Pinned reserve segment size has to be greater than 0"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"),
        (
            "expandable_segments:true",
            "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'",
        ),
        ("max_split_size_mb:abc", "stoull"),
        ("garbage_collection_threshold:abc", "stod"),
        ("max_split_size_mb", "Index out of bounds in ConfigTokenizer"),
    ] {
        assert!(error(text).starts_with(message), "{text}: {}", error(text));
    }
}

/// [spec 15.2]
#[test]
fn separators_are_not_checked() {
    assert_eq!(parse("max_split_size_mb,100").max_split_size, Some(100 * MIB));
    assert_eq!(parse("max_split_size_mb:100,").max_split_size, Some(100 * MIB));
    assert_eq!(parse("max_split_size_mb:200mb").max_split_size, Some(200 * MIB));
    assert!(parse("max_split_size_mb:100:expandable_segments:True").expandable_segments);
    assert!(parse(" expandable_ segments : Tr ue ").expandable_segments);
    assert_eq!(
        parse("max_split_size_mb:-1").max_split_size,
        Some(u64::MAX - MIB + 1),
        "clamped to whole MiB"
    );
    assert_eq!(parse(""), Config::default());
}

// ---- gpucache's own --------------------------------------------------------------------------------------------

#[test]
fn defaults() {
    let config = Config::default();
    assert_eq!(config.max_split_bytes(), u64::MAX);
    assert_eq!(config.max_non_split_rounding_bytes(), 20 * MIB);
    assert_eq!(config.to_string(), "");
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(parse("large_segment_size_mb:64").max_non_split_rounding_bytes(), 64 * MIB);
}

#[test]
fn later_and_own_options() {
    let config = parse(
        "throw_on_cudamalloc_oom:True,pinned_free_catch_all:True,pinned_max_round_threshold_mb:64,\
         pinned_max_cached_size_mb:128,expandable_segments_reserve:0.5,fraction_of_process:True,\
         borrow_across_streams:True,release_idle_after_ms:2500,caching:False,backend:native",
    );
    assert!(config.throw_on_cudamalloc_oom && config.pinned.free_catch_all);
    assert_eq!(config.pinned.max_round_threshold, Some(64 * MIB));
    assert_eq!(config.pinned.max_cached_size, Some(128 * MIB));
    assert_eq!(config.expandable_segments_reserve, Some(ReserveSize::Fraction(0.5)));
    assert!(config.fraction_of_process && config.borrow_across_streams && !config.caching);
    assert_eq!(config.release_idle_after, Some(Duration::from_millis(2500)));
    assert_eq!(parse("release_idle_after_ms:none").release_idle_after, None);
    assert!(parse("mirror_defects:True").mirror_defects);
    let reserve =
        |text: &str| parse(&format!("expandable_segments_reserve:{text}")).expandable_segments_reserve;
    assert_eq!(reserve("64G"), Some(ReserveSize::Bytes(64 << 30)));
    assert_eq!(reserve("512MiB"), Some(ReserveSize::Bytes(512 << 20)));
    for bad in ["0", "-1", "inf", "nan", "0G", "7X"] {
        assert!(
            error(&format!("expandable_segments_reserve:{bad}")).contains("expandable_segments_reserve"),
            "{bad}"
        );
    }
}

#[test]
fn unknown_keys_name_the_nearest() {
    assert_eq!(
        error("max_split_size:100"),
        "Unrecognized key 'max_split_size' in allocator config. Did you mean 'max_split_size_mb'?"
    );
    assert_eq!(error("zzz:1"), "Unrecognized key 'zzz' in allocator config.");
    assert!(error("Expandable_Segments:True").contains("Did you mean 'expandable_segments'?"));
}

#[test]
fn the_asynchronous_backend_is_refused() {
    let error = Config::parse("backend:cudaMallocAsync").unwrap_err();
    assert!(matches!(error, ConfigError::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains("backend:cudaMallocAsync is not supported by gpucache"), "{error}");
}

#[test]
fn impossible_combinations() {
    for (text, second) in [
        ("mirror_defects:True,borrow_across_streams:True", "mirror_defects"),
        ("mirror_defects:True,fraction_of_process:True", "mirror_defects"),
        ("mirror_defects:True,release_idle_after_ms:5", "mirror_defects"),
        ("expandable_segments:True,large_segment_size_mb:25", "large_segment_size_mb"),
    ] {
        let error = Config::parse(text).unwrap_err();
        assert!(matches!(error, ConfigError::Conflict { second: s, .. } if s == second), "{text}: {error:?}");
    }
}

#[test]
fn configurations_of_the_recordings_are_accepted() {
    for text in [
        "expandable_segments:True",
        "expandable_segments:True,roundup_power2_divisions:4",
        "expandable_segments:True,garbage_collection_threshold:0.6",
        "max_split_size_mb:64,roundup_power2_divisions:4,garbage_collection_threshold:0.6",
        "max_split_size_mb:32,max_non_split_rounding_mb:40",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "large_segment_size_mb:64",
        "expandable_segments:True,max_split_size_mb:64,large_segment_size_mb:64,mirror_defects:True",
    ] {
        parse(text);
    }
}

#[test]
fn configurations_made_in_code_are_checked() {
    let broken: &[fn(&mut Config)] = &[
        |c| c.max_split_size = Some(MIB),
        |c| c.max_split_size = Some(64 * MIB + 1),
        |c| c.large_segment_size = 10 * MIB,
        |c| c.garbage_collection_threshold = f64::NAN,
        |c| c.per_process_memory_fraction = -0.5,
        |c| c.roundup_power2_divisions = Divisions::uniform(3),
        |c| c.pinned.num_register_threads = 0,
        |c| c.expandable_segments_reserve = Some(ReserveSize::Bytes(0)),
        |c| c.release_idle_after = Some(Duration::from_micros(1500)),
    ];
    for (index, change) in broken.iter().enumerate() {
        let mut config = Config::default();
        change(&mut config);
        assert!(matches!(config.validate(), Err(ConfigError::InvalidValue { .. })), "{index}");
    }
}

// ---- Settings calls --------------------------------------------------------------------------------------------

/// [spec 15.1]
#[test]
fn a_settings_call_resets_four_options() {
    let mut config = parse(
        "large_segment_size_mb:32,max_split_size_mb:100,max_non_split_rounding_mb:50,roundup_power2_divisions:4,\
         garbage_collection_threshold:0.5,expandable_segments:True,per_process_memory_fraction:0.5",
    );
    config.apply("release_lock_on_cudamalloc:True").unwrap();
    assert_eq!(config.max_split_size, None);
    assert_eq!(config.max_non_split_rounding_bytes(), 32 * MIB);
    assert_eq!(config.roundup_power2_divisions, Divisions::default());
    assert!(config.garbage_collection_threshold == 0.0);
    assert!(config.expandable_segments && config.release_lock_on_cudamalloc);
    assert_eq!(config.large_segment_size, 32 * MIB);
    assert_eq!(config.source, "release_lock_on_cudamalloc:True");
    // The bound is the segment size kept from before.
    assert!(config.apply("max_split_size_mb:30").is_err());
}

#[test]
fn a_failed_settings_call_changes_nothing() {
    let mut config = parse("max_split_size_mb:100");
    let before = config.clone();
    assert!(config.apply("expandable_segments:True,max_split_size_mb:19").is_err());
    assert_eq!(config, before);
}

#[test]
fn under_mirror_defects_values_before_the_mistake_stay() {
    let mut config = parse("max_split_size_mb:100,mirror_defects:True");
    assert!(config.apply("expandable_segments:True,max_split_size_mb:19").is_err());
    assert!(config.expandable_segments);
    assert_eq!(config.max_split_size, None);
    assert_eq!(config.source, "expandable_segments:True,max_split_size_mb:19");
}

// ---- Environment -----------------------------------------------------------------------------------------------

fn from(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_variables(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(*v)))
}

#[test]
fn precedence_of_the_variables() {
    let all = [
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:104"),
        ("PYTORCH_HIP_ALLOC_CONF", "max_split_size_mb:103"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:102"),
        ("GPUCACHE_ALLOC_CONF", "max_split_size_mb:101"),
    ];
    assert_eq!(from(&[]).unwrap(), Config::default());
    for count in 1..=all.len() {
        let expected = all[count - 1].1;
        assert_eq!(from(&all[..count]).unwrap().source, expected);
    }
    // Set but empty is set, as in PyTorch.
    let empty = [("PYTORCH_CUDA_ALLOC_CONF", ""), ("PYTORCH_ALLOC_CONF", "expandable_segments:True")];
    assert!(!from(&empty).unwrap().expandable_segments);
}

#[test]
fn variables_that_turn_caching_off() {
    for name in ["GPUCACHE_NO_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING"] {
        assert!(!from(&[(name, "1")]).unwrap().caching);
        for other in ["", "0", "2", "true"] {
            assert!(from(&[(name, other)]).unwrap().caching, "{name}={other}");
        }
    }
}

#[test]
fn mistakes_name_the_variable() {
    let error = from(&[("PYTORCH_ALLOC_CONF", "foo:1")]).unwrap_err().to_string();
    assert_eq!(error, "PYTORCH_ALLOC_CONF: Unrecognized key 'foo' in allocator config.");
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_text() {
    use std::os::unix::ffi::OsStringExt;
    let get = |name: &str| (name == "GPUCACHE_ALLOC_CONF").then(|| OsString::from_vec(vec![b'a', 0xff]));
    let error = Config::from_variables(get).unwrap_err().to_string();
    assert!(error.starts_with("GPUCACHE_ALLOC_CONF: the options are not valid UTF-8"), "{error}");
}

// ---- Round trips and robustness --------------------------------------------------------------------------------

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

// ---- The manual ------------------------------------------------------------------------------------------------

/// docs/configuration.md contains the table of options as the code has it. After a change:
/// `UPDATE_EXPECT=1 cargo test --test config` writes it.
#[test]
fn the_manual_has_every_option() {
    const BEGIN: &str = "<!-- options: written by tests/config.rs -->\n";
    const END: &str = "<!-- end of options -->\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let manual = std::fs::read_to_string(path).unwrap();
    let (before, rest) = manual.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();

    let mut table = String::from(
        "| option | default | values | meaning | interaction | what you gain | from |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for option in OPTIONS {
        let aliases: String = option.aliases.iter().flat_map(|alias| [" (also `", alias, "`)"]).collect();
        let row = format!(
            "| `{}`{aliases} | `{}` | {} | {} | {} | {} | {} |\n",
            option.name,
            option.default_value(),
            option.range,
            option.meaning,
            option.interaction,
            option.gain,
            option.origin
        );
        table.push_str(&row);
    }
    expect_test::expect_file![path].assert_eq(&format!("{before}{BEGIN}{table}{END}{after}"));
}

#[test]
fn options_are_found_by_every_name() {
    for option in OPTIONS {
        for name in std::iter::once(&option.name).chain(option.aliases) {
            assert_eq!(find_option(name).unwrap().name, option.name);
        }
    }
    assert!(find_option("nothing").is_none());
}
