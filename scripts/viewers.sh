#!/bin/sh
# Shows that PyTorch's own tools read gpucache's snapshots: every command of `python -m torch.cuda._memory_viz`, and
# counts that agree with `gpucache inspect`. Needs a Python with PyTorch 2.11 (no GPU).
#
#   ORACLE_VENV=DIR scripts/viewers.sh           a snapshot by examples/training_stages, and the recorded one of the
#                                                tests, read and written again
#   PYTHON=python3 scripts/viewers.sh FILE ...   these snapshots (pickles)
#
# The HTML pages for the web viewer are left in $OUT, if that is set.
#
#   VIEWER_JS=MemoryViz.js scripts/viewers.sh    also draws them in PyTorch's web viewer, in a headless Chromium, and
#                                                compares; screenshots in $OUT. docs/measurements/viewers.md says where
#                                                the script (torch/utils/viz/MemoryViz.js) comes from and what it needs.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-${ORACLE_VENV:+$ORACLE_VENV/bin/python}}
python=${python:-python3}
"$python" -c 'import torch' 2>/dev/null || {
    echo "$python has no PyTorch: set PYTHON to one that has, or ORACLE_VENV to the oracle's environment" >&2
    exit 2
}

out=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$out"' EXIT
mkdir -p "$out"
gpucache() { cargo run --quiet --features cli --bin gpucache -- "$@"; }

if [ $# -eq 0 ]; then
    cargo run --quiet --example training_stages -- "$out/training_stages.pickle" >/dev/null
    gpucache import tests/data/snapshots/pytorch-2.11.pickle -o "$out/again.pickle" >/dev/null
    set -- "$out/training_stages.pickle" "$out/again.pickle"
    "$python" scripts/viewers.py same tests/data/snapshots/pytorch-2.11.pickle "$out/again.pickle"
fi
for file; do
    gpucache inspect --json "$file" > "$out/inspect.json"
    gpucache import "$file" -o "$out/snapshot.json" >/dev/null
    "$python" scripts/viewers.py check "$file" "$out/inspect.json" "$out/snapshot.json" "$out"
    [ -n "${VIEWER_JS:-}" ] || continue
    python3 scripts/web_viewer.py "$VIEWER_JS" "$out" "$file" "$out/inspect.json"
    # Scripts of PyTorch 2.6 and before read pickles only.
    if grep -q JSON.parse "$VIEWER_JS"; then
        cp "$out/snapshot.json" "$out/$(basename "$file").json"
        python3 scripts/web_viewer.py "$VIEWER_JS" "$out" "$out/$(basename "$file").json" "$out/inspect.json"
    fi
done
