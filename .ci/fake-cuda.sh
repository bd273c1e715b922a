#!/bin/sh
# Builds the fake driver and runs the tests that need it. Arguments go to `cargo test`; without any, the whole CUDA
# suite runs. `.ci/fake-cuda.sh --print-env` only builds and prints the environment, for other test runs.
set -eu
cd "$(dirname "$0")/.."

cargo build --quiet -p fake-cuda
target=${CARGO_TARGET_DIR:-$PWD/target}
dir=$target/fake-cuda
mkdir -p "$dir"
cp "$target/debug/libcuda.so" "$dir/libcuda.so.new"
mv "$dir/libcuda.so.new" "$dir/libcuda.so"
# Both names, so that a real driver on the machine is never loaded beside it.
ln -sf libcuda.so "$dir/libcuda.so.1"

if [ "${1:-}" = --print-env ]; then
    echo "export GPUCACHE_FAKE_CUDA_DIR='$dir' LD_LIBRARY_PATH='$dir' FAKE_CUDA_DEVICES=2 FAKE_CUDA_MEMORY=1073741824"
    exit
fi

export GPUCACHE_FAKE_CUDA_DIR="$dir"
export FAKE_CUDA_DEVICES=2 FAKE_CUDA_MEMORY=1073741824 FAKE_CUDA_STRICT=1
# cargo itself runs without it: only the tests are to find the library.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="env LD_LIBRARY_PATH=$dir"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="env LD_LIBRARY_PATH=$dir"
if [ $# -eq 0 ]; then
    set -- --test cross_stream --test fork --test ipc --test cuda_allocator --test cuda_pinned --test cuda_several --test cuda_driver --test cuda_fake --test cuda_sweep
fi
exec cargo test "$@"
