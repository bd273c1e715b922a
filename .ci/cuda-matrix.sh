#!/bin/sh
# Checks that the crate compiles whatever CUDA version and link mode its user chooses for cudarc.
#
#   .ci/cuda-matrix.sh            five versions, and dynamic linking
#   .ci/cuda-matrix.sh 12060 ...  these versions
#
# One target folder serves all: only cudarc and this crate are checked again for each version.
set -eu
cd "$(dirname "$0")/.."
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/matrix
export CARGO_TARGET_DIR

versions=${*:-11040 12000 12040 12080 13000}
for version in $versions; do
    echo "== CUDA $version, loaded at run time"
    CUDARC_CUDA_VERSION=$version cargo check --quiet --lib --features nvml
done

# A user crate that links the driver and names a version by feature, as candle does. Features of one cudarc are
# merged, so this is what the crate then gets. Checking links nothing, so no toolkit is needed.
user=$CARGO_TARGET_DIR/linked-user
mkdir -p "$user/src"
cat > "$user/Cargo.toml" <<TOML
[package]
name = "linked-user"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
gpucache = { path = "$PWD" }
cudarc = { version = "0.19", default-features = false, features = ["std", "driver", "dynamic-linking", "cuda-12080"] }
TOML
echo 'pub use gpucache::device::cuda::CudaDevice; pub use cudarc::driver::CudaContext;' > "$user/src/lib.rs"
cp Cargo.lock "$user/Cargo.lock"
echo "== CUDA 12080, linked"
cargo check --quiet --manifest-path "$user/Cargo.toml"
echo "all compile"
