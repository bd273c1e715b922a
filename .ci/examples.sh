#!/usr/bin/env bash
# Runs every example that works without a GPU; one that fails ends the script.
# As `cargo test` has built them: optimised builds would take longer than they save.
set -euo pipefail
cd "$(dirname "$0")/.."

for example in quickstart nvidia_smi training_stages fragmentation memory_cap diagnosis cuda_graph; do
    echo "--- $example"
    cargo run --quiet --example "$example"
done
