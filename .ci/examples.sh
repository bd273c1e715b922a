#!/usr/bin/env bash
# Runs every example that works without a GPU, in release mode; one that fails ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --examples
for example in quickstart nvidia_smi training_stages fragmentation memory_cap diagnosis cuda_graph; do
    echo "--- $example"
    cargo run --quiet --release --example "$example"
done
