#!/usr/bin/env bash
# Tests with all features, as far as features matter: the library, the programs, the documentation, and the
# integration tests that name a feature. The others have run with `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t tests < <(grep -rlE '\bfeature *= *"' tests --include='*.rs' | sed -E 's|^tests/([^/]+).*|\1|; s|\.rs$||' | sort -u)
cargo test --workspace --all-features --lib --bins "${tests[@]/#/--test=}"
cargo test --all-features --doc
