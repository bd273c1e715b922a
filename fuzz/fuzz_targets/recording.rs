#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gpucache_fuzz::recording(bytes));
