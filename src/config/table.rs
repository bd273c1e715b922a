//! The table of options.

use super::options::{ConfigOption, Parser};
use super::validate;
use super::values::{boolean, mib, read_backend, read_idle, reserve_size, show_idle, show_reserve_size};

/// Every option, in the order in which `Display` and `docs/configuration.md` show them.
pub static OPTIONS: &[ConfigOption] = &[
    ConfigOption {
        name: "large_segment_size_mb",
        aliases: &[],
        origin: "PyTorch",
        range: "integer > 10",
        meaning: "Segment that serves blocks above 1 MiB and below 10 MiB, and page size of large expandable \
            segments, in MiB.",
        interaction: "Lower bound of `max_split_size_mb` and `max_non_split_rounding_mb`, whose default it is. With \
            `expandable_segments` it must be even. Kept by later settings calls; read before all other \
            keys of a text.",
        gain: "Fewer driver calls for many middle-sized tensors; a smaller value wastes less on small models.",
        parser: Parser::Ahead,
        set: |c, v| {
            // An exbibyte is beyond every device and keeps sums of sizes far from overflow.
            c.large_segment_size = v.mib()?.min(1 << 60);
            validate::large_segment_size(c.large_segment_size)
        },
        show: |c| mib(c.large_segment_size),
    },
    ConfigOption {
        name: "max_split_size_mb",
        aliases: &[],
        origin: "PyTorch",
        range: "integer >= `large_segment_size_mb`",
        meaning: "Blocks of this many MiB or more (oversize) are not split.",
        interaction: "Reset by every settings call that does not name it. `max_non_split_rounding_mb` says how much \
            slack an oversize block may have. The statistic `max_split_size` shows the value the allocator \
            was made with.",
        gain: "Less fragmentation where sizes vary: big blocks stay whole and can be given back.",
        parser: Parser::Common,
        set: |c, v| {
            let bytes = v.mib()?;
            validate::split_limit(v.key(), bytes, c.large_segment_size)?;
            c.max_split_size = Some(bytes);
            Ok(())
        },
        show: |c| c.max_split_size.map_or_else(|| "unlimited".to_owned(), mib),
    },
    ConfigOption {
        name: "max_non_split_rounding_mb",
        aliases: &[],
        origin: "PyTorch",
        range: "integer >= `large_segment_size_mb`",
        meaning: "An oversize block serves a request only if it exceeds it by less than this many MiB.",
        interaction: "Only with `max_split_size_mb`. Default: the large segment size. Reset by every settings call \
            that does not name it.",
        gain: "Bounds what unsplit oversize blocks waste.",
        parser: Parser::Common,
        set: |c, v| {
            let bytes = v.mib()?;
            validate::split_limit(v.key(), bytes, c.large_segment_size)?;
            c.max_non_split_rounding = Some(bytes);
            Ok(())
        },
        show: |c| c.max_non_split_rounding.map_or_else(|| "large_segment_size_mb".to_owned(), mib),
    },
    ConfigOption {
        name: "roundup_power2_divisions",
        aliases: &[],
        origin: "PyTorch",
        range: "a power of two, or a list `[256:1,512:2,>:4]` of MiB:divisions; 0 in a list: off",
        meaning: "Rounds requests up to a power of two, or to one of this many equal steps between two powers of \
            two.",
        interaction: "Requests up to 512 bytes times the count keep 512-byte rounding. Slots that a list leaves out \
            stay off. Reset by every settings call that does not name it.",
        gain: "Varying sizes fall together and reuse each other's blocks.",
        parser: Parser::Common,
        set: |c, v| c.roundup_power2_divisions.read(v),
        show: |c| c.roundup_power2_divisions.to_string(),
    },
    ConfigOption {
        name: "garbage_collection_threshold",
        aliases: &[],
        origin: "PyTorch",
        range: "0 < x < 1",
        meaning: "Above this fraction of the cap, cached segments are given back, those unused longest first, \
            before the device is asked for more.",
        interaction: "Only with a memory fraction below 1; spares small, split, private and expandable memory. Reset \
            by every settings call that does not name it.",
        gain: "A growing program keeps below its cap without the price of releasing everything.",
        parser: Parser::Common,
        set: |c, v| {
            let x = v.real()?;
            validate::garbage_collection_threshold(x)?;
            c.garbage_collection_threshold = x;
            Ok(())
        },
        show: |c| c.garbage_collection_threshold.to_string(),
    },
    ConfigOption {
        name: "expandable_segments",
        aliases: &[],
        origin: "PyTorch",
        range: "`True`, `False`",
        meaning: "Segments are reserved address ranges that grow page by page.",
        interaction: "Applies to new segments. Where the device has no virtual memory: a notice, and ordinary \
            segments.",
        gain: "Nearly no fragmentation when sizes vary; unused pages can be given back from inside a segment.",
        parser: Parser::Common,
        set: |c, v| v.boolean().map(|on| c.expandable_segments = on),
        show: |c| boolean(c.expandable_segments),
    },
    ConfigOption {
        name: "expandable_segments_reserve",
        aliases: &[],
        origin: "PyTorch 2.15",
        range: "x > 0 (fraction of the device's memory), or a size such as `64G`",
        meaning: "Address space per expandable segment.",
        interaction: "Only with `expandable_segments`; never more than the default, 9/8 of the device's memory.",
        gain: "Room for many reservations where address space is short.",
        parser: Parser::Cuda,
        set: |c, v| {
            let size = reserve_size(v)?;
            validate::expandable_reserve(size)?;
            c.expandable_segments_reserve = Some(size);
            Ok(())
        },
        show: |c| show_reserve_size(c.expandable_segments_reserve),
    },
    ConfigOption {
        name: "per_process_memory_fraction",
        aliases: &[],
        origin: "PyTorch",
        range: "0 <= x <= 1",
        meaning: "The cap: this fraction of the device's memory, at most, is reserved. 1: no cap.",
        interaction: "`set_per_process_memory_fraction` changes it. Arms `garbage_collection_threshold` and \
            `throw_on_cudamalloc_oom`. See `fraction_of_process`.",
        gain: "Several processes share a device without taking each other's memory.",
        parser: Parser::Cuda,
        set: |c, v| {
            let x = v.real()?;
            validate::per_process_memory_fraction(x)?;
            // -0.0 is accepted, and is 0.
            c.per_process_memory_fraction = x.abs();
            Ok(())
        },
        show: |c| c.per_process_memory_fraction.to_string(),
    },
    ConfigOption {
        name: "throw_on_cudamalloc_oom",
        aliases: &[],
        origin: "PyTorch 2.12",
        range: "`True`, `False`",
        meaning: "A request that would exceed the cap is refused before anything is released or retried.",
        interaction: "Only with a memory fraction below 1. Counted in `num_oom_rejections`.",
        gain: "Servers that shed load get the answer at once and keep their cache.",
        parser: Parser::Cuda,
        set: |c, v| v.boolean().map(|on| c.throw_on_cudamalloc_oom = on),
        show: |c| boolean(c.throw_on_cudamalloc_oom),
    },
    ConfigOption {
        name: "release_lock_on_cudamalloc",
        aliases: &["release_lock_on_hipmalloc"],
        origin: "PyTorch",
        range: "`True`, `False`",
        meaning: "Accepted for compatibility.",
        interaction: "None: here no lock that a hit needs is ever held over a driver call.",
        gain: "Nothing to set: other threads' hits never wait for the driver.",
        parser: Parser::Cuda,
        set: |c, v| v.boolean().map(|on| c.release_lock_on_cudamalloc = on),
        show: |c| boolean(c.release_lock_on_cudamalloc),
    },
    ConfigOption {
        name: "graph_capture_record_stream_reuse",
        aliases: &[],
        origin: "PyTorch",
        range: "`True`, `False`",
        meaning: "During capture a freed block with recorded streams is reused once the graph itself orders the \
            uses.",
        interaction: "Only during graph capture.",
        gain: "Captured graphs that use several streams need less memory.",
        parser: Parser::Cuda,
        set: |c, v| v.boolean().map(|on| c.graph_capture_record_stream_reuse = on),
        show: |c| boolean(c.graph_capture_record_stream_reuse),
    },
    ConfigOption {
        name: "backend",
        aliases: &[],
        origin: "PyTorch",
        range: "`native`",
        meaning: "Accepted for compatibility.",
        interaction: "`cudaMallocAsync` is refused with an error.",
        gain: "Texts that name the default backend work as they are.",
        parser: Parser::Cuda,
        set: read_backend,
        show: |_| "native".to_owned(),
    },
    ConfigOption {
        name: "pinned_use_cuda_host_register",
        aliases: &["pinned_use_hip_host_register"],
        origin: "PyTorch",
        range: "`True`, `False`",
        meaning: "Pinned host memory is allocated, touched and then registered, instead of allocated by the \
            driver.",
        interaction: "`pinned_num_register_threads` says how many threads touch it.",
        gain: "Large pinned buffers come faster.",
        parser: Parser::Cuda,
        set: |c, v| v.boolean().map(|on| c.pinned.use_host_register = on),
        show: |c| boolean(c.pinned.use_host_register),
    },
    ConfigOption {
        name: "pinned_num_register_threads",
        aliases: &[],
        origin: "PyTorch",
        range: "a power of two, 1 to 128",
        meaning: "Threads that touch the pages of a pinned buffer before it is registered.",
        interaction: "Only with `pinned_use_cuda_host_register`.",
        gain: "Large pinned buffers come faster.",
        parser: Parser::Cuda,
        set: |c, v| {
            let threads = v.whole()?;
            validate::register_threads(threads)?;
            c.pinned.num_register_threads = threads as u32;
            Ok(())
        },
        show: |c| c.pinned.num_register_threads.to_string(),
    },
    ConfigOption {
        name: "pinned_reserve_segment_size_mb",
        aliases: &[],
        origin: "PyTorch",
        range: "integer > 0",
        meaning: "One pinned segment of this many MiB from which pinned blocks are cut until it is used up. 0 \
            (default): none.",
        interaction: "Read when the first block is needed. Blocks cut from it return to the cache, never to the \
            system; after `host_empty_cache` it is cut anew once all of them are free. If the system refuses it, \
            a notice says so and blocks come without it.",
        gain: "One slow driver call at the start instead of many later.",
        parser: Parser::Cuda,
        set: |c, v| {
            let bytes = v.mib()?;
            validate::pinned_reserve(bytes)?;
            c.pinned.reserve_segment_size = bytes;
            Ok(())
        },
        show: |c| mib(c.pinned.reserve_segment_size),
    },
    ConfigOption {
        name: "pinned_use_background_threads",
        aliases: &[],
        origin: "PyTorch",
        range: "`True`, `False`",
        meaning: "A thread looks for finished events of pinned blocks, so that allocation need not.",
        interaction: "Default pool only.",
        gain: "Shorter pinned allocations where many copies are under way.",
        parser: Parser::Common,
        set: |c, v| v.boolean().map(|on| c.pinned.use_background_threads = on),
        show: |c| boolean(c.pinned.use_background_threads),
    },
    ConfigOption {
        name: "pinned_max_round_threshold_mb",
        aliases: &[],
        origin: "PyTorch 2.13",
        range: "integer",
        meaning: "Pinned requests above this many MiB are not rounded to a power of two.",
        interaction: "`pinned_max_cached_size_mb` has this effect too.",
        gain: "No doubling of large pinned buffers.",
        parser: Parser::Cuda,
        set: |c, v| {
            c.pinned.max_round_threshold = Some(v.mib()?);
            Ok(())
        },
        show: |c| c.pinned.max_round_threshold.map_or_else(|| "none".to_owned(), mib),
    },
    ConfigOption {
        name: "pinned_max_cached_size_mb",
        aliases: &[],
        origin: "PyTorch 2.13",
        range: "integer",
        meaning: "Pinned blocks above this many MiB are released instead of cached, and not rounded to a power \
            of two.",
        interaction: "Not for blocks of the reserve segment.",
        gain: "Rare large buffers do not stay pinned.",
        parser: Parser::Cuda,
        set: |c, v| {
            c.pinned.max_cached_size = Some(v.mib()?);
            Ok(())
        },
        show: |c| c.pinned.max_cached_size.map_or_else(|| "none".to_owned(), mib),
    },
    ConfigOption {
        name: "pinned_free_catch_all",
        aliases: &[],
        origin: "PyTorch 2.12",
        range: "`True`, `False`",
        meaning: "Errors while pinned memory is given back are reported (on standard error) and swallowed.",
        interaction: "The memory is kept for another try in any case.",
        gain: "A program that shuts down does not fail over memory it no longer needs.",
        parser: Parser::Cuda,
        set: |c, v| v.boolean().map(|on| c.pinned.free_catch_all = on),
        show: |c| boolean(c.pinned.free_catch_all),
    },
    ConfigOption {
        name: "caching",
        aliases: &[],
        origin: "gpucache",
        range: "`True`, `False`",
        meaning: "Whether freed memory is kept. `False`: every request goes to the driver, and nothing is \
            counted.",
        interaction: "`GPUCACHE_NO_CACHING=1` and `PYTORCH_NO_CUDA_MEMORY_CACHING=1` turn it off. The options of the \
            cache then have no effect.",
        gain: "Memory checkers see every allocation.",
        parser: Parser::Cuda,
        set: |c, v| v.boolean().map(|on| c.caching = on),
        show: |c| boolean(c.caching),
    },
    ConfigOption {
        name: "fraction_of_process",
        aliases: &[],
        origin: "gpucache",
        range: "`True`, `False`",
        meaning: "The cap counts the CUDA context and other libraries' memory of this process too.",
        interaction: "Only with a memory fraction below 1, and where the device tells what the process holds (NVML). \
            Not with `mirror_defects`.",
        gain: "The cap is what the process really takes, as `nvidia-smi` shows it.",
        parser: Parser::Cuda,
        set: |c, v| v.boolean().map(|on| c.fraction_of_process = on),
        show: |c| boolean(c.fraction_of_process),
    },
    ConfigOption {
        name: "borrow_across_streams",
        aliases: &[],
        origin: "gpucache",
        range: "`True`, `False`",
        meaning: "Before the device is asked for more, an idle block of another stream is taken, ordered behind \
            that stream by an event.",
        interaction: "Whole ordinary segments of the default pools only. Every stream that memory was allocated \
            on must stay alive. Not with `mirror_defects`.",
        gain: "Programs with many streams reserve less.",
        parser: Parser::Cuda,
        set: |c, v| v.boolean().map(|on| c.borrow_across_streams = on),
        show: |c| boolean(c.borrow_across_streams),
    },
    ConfigOption {
        name: "release_idle_after_ms",
        aliases: &[],
        origin: "gpucache",
        range: "integer (milliseconds), or `none`",
        meaning: "Cached segments that were idle this long are given back: when a request misses the cache, and by \
            `release_idle()`.",
        interaction: "Default pools only. Not with `mirror_defects`.",
        gain: "A peak does not keep memory from other processes for ever.",
        parser: Parser::Cuda,
        set: read_idle,
        show: show_idle,
    },
    ConfigOption {
        name: "mirror_defects",
        aliases: &[],
        origin: "gpucache",
        range: "`True`, `False`",
        meaning: "Reproduces the defects of PyTorch 2.11, except those that return live memory to the driver.",
        interaction: "Not with `fraction_of_process`, `borrow_across_streams` or `release_idle_after_ms`.",
        gain: "Replays of recordings agree even where PyTorch is wrong. For nothing else.",
        parser: Parser::Cuda,
        set: |c, v| v.boolean().map(|on| c.mirror_defects = on),
        show: |c| boolean(c.mirror_defects),
    },
];
