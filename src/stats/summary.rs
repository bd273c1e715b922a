//! `memory_summary()` in PyTorch's layout [spec 10].
