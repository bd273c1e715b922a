#!/usr/bin/env bash
# Compares gpucache with PyTorch's own allocator on fresh random request streams. Not part of CI.
#
#   scripts/oracle-fuzz.sh [--oracle DIR] [--from SEED] [--seeds N] [--configs "A B ..."] [--keep DIR] [-- ORACLE OPTION...]
#
# DIR is the folder of oracle.py (default: ../shared/oracle), already set up with its setup.sh; ORACLE_VENV names its
# environment if that lies elsewhere. Configurations are names of the recorder or texts in the syntax of
# PYTORCH_CUDA_ALLOC_CONF. Options behind -- go to oracle.py, for example: -- --ops 5000 --dist edge --streams 3
# Exit status 1 if anything diverges; the recordings then stay.
set -euo pipefail
cd "$(dirname "$0")/.."

oracle=../shared/oracle
from=100000
seeds=5
configs="default exp mss64 gc06 ru4 mss64_gc06 exp_ru4 exp_gc06 mss64_ru4_gc06"
keep=
while [ $# -gt 0 ]; do
  case $1 in
    --oracle) oracle=$2; shift 2 ;;
    --from) from=$2; shift 2 ;;
    --seeds) seeds=$2; shift 2 ;;
    --configs) configs=$2; shift 2 ;;
    --keep) keep=$2; shift 2 ;;
    --) shift; break ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

if [ ! -f "$oracle/oracle.py" ]; then
  echo "no oracle.py in '$oracle': give its folder with --oracle DIR" >&2
  exit 2
fi
if ! command -v zstd >/dev/null; then
  echo "zstd is needed: oracle.py writes its recordings with it" >&2
  exit 2
fi
out=${keep:-$(mktemp -d)}
mkdir -p "$out"

cargo build --release --quiet --features cli
gpucache=${CARGO_TARGET_DIR:-target}/release/gpucache
number=0
for config in $configs; do
  # A folder each: configurations without a name of their own are all called "custom".
  number=$((number + 1))
  python3 "$oracle/oracle.py" --config "$config" --seed "$from" --seeds "$seeds" --out "$out/$number" "$@"
done

status=0
"$gpucache" verify --quiet "$out" || status=$?
if [ "$status" -eq 0 ] && [ -z "$keep" ]; then
  rm -rf "$out"
else
  echo "recordings: $out"
fi
exit "$status"
