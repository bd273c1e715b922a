#!/usr/bin/env bash
# Replays recordings of PyTorch's allocator; every address, driver call and statistic must be equal.
# The recordings in tests/data/golden always; those of ../shared/golden where that folder is there.
set -euo pipefail
cd "$(dirname "$0")/.."

folders=(tests/data/golden)
for folder in rules fuzz real; do
    if [ -d "../shared/golden/$folder" ]; then folders+=("../shared/golden/$folder"); fi
done
mapfile -t recordings < <(find "${folders[@]}" -name '*.req.zst' | sort)
# The program that the tests use: an optimised one would take longer to build than it saves.
cargo test --quiet --all-features --test replay --no-run
"${CARGO_TARGET_DIR:-target}/debug/gpucache" verify "${recordings[@]}"
