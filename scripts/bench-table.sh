#!/usr/bin/env bash
# The CPU table: gpucache on its simulated device and, where the oracle is set up, PyTorch's own allocator, run
# alternately on this machine; one markdown table of medians, minima and ratios, with the targets judged.
#   scripts/bench-table.sh [--out DIR] [--rounds N] [--quick]
# Writes DIR (default target/bench-table): the CSV files and table.md. About ten minutes; --quick: two.
# PyTorch's column needs ../shared (or ORACLE=DIR, PEERS=DIR) and its environment (ORACLE_VENV=DIR), g++ and zstd.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${CARGO_TARGET_DIR:-target}/bench-table rounds=3
length=(--reps 5) scenarios=pair,depth,live,threads,replay
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --quick) rounds=2 length=(--reps 3 --thread-ms 40) scenarios=pair,depth,threads; shift ;;
    *) sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
oracle=${ORACLE:-../shared/oracle} peers=${PEERS:-../shared/peers} golden=${GOLDEN:-../shared/golden/real}
venv=${ORACLE_VENV:-$oracle/.oracle-venv}
export ORACLE_TOTAL=150109880320 # bytes; gpucache's simulated device has as many
rm -rf "$out"; mkdir -p "$out/req"

echo "building gpucache's side" >&2
contract=$(cargo bench --bench contract --no-run --message-format json 2>"$out/build.log" |
  sed -n 's/.*"executable":"\([^"]*contract[^"]*\)".*/\1/p' | tail -1)
[ -n "$contract" ] || { cat "$out/build.log" >&2; exit 1; }

torch=
if [ -x "$venv/bin/python" ] && [ -f "$peers/peer_torch.cpp" ]; then
  echo "building PyTorch's side" >&2
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  lib=$site/nvidia/cu13/lib torch=$out/torch_peer
  "${CXX:-g++}" -O3 -march=x86-64-v2 -std=c++20 -pthread -w -I "$peers" \
    -isystem "$venv/cuda/nvidia/cu13/include" -isystem "$site/torch/include" scripts/torch_peer.cpp -o "$torch" \
    -L"$site/torch/lib" -Wl,--no-as-needed -lc10_cuda -lc10 -Wl,-rpath,"$site/torch/lib" \
    "$lib/libcudart.so.13" -Wl,-rpath,"$lib"
else
  echo "no PyTorch column: no environment at $venv (set it up with $oracle/setup.sh, name it in ORACLE_VENV)" >&2
fi

# The uncapped recordings: a cap would have to be set on both sides.
for f in "$golden"/*.default.req.zst "$golden"/*.exp.req.zst; do
  case $f in *-cap*) continue ;; esac
  [ ! -f "$f" ] || zstd -qdcf "$f" >"$out/req/$(basename "$f" .zst)"
done
shopt -s nullglob
plain=("$out"/req/*.default.req) expandable=("$out"/req/*.exp.req)

bench() { # name, kind of run, command...
  local name=$1 kind=$2
  shift 2
  "$@" --impl "$name" "${length[@]}" --out "$out/$name.$kind.$round.csv" 2>>"$out/run.log" ||
    { tail -3 "$out/run.log" >&2; echo "$name: failed" >&2; exit 1; }
}

uptime >"$out/load.txt"
for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  reqs=(${plain[@]+--req "${plain[@]}"})
  bench gpucache contract "$contract" --scen $scenarios "${reqs[@]}"
  [ -z "$torch" ] || PYTORCH_CUDA_ALLOC_CONF='' bench torch contract "$torch" --scen $scenarios "${reqs[@]}"
  bench gpucache own "$contract" --memory $((1 << 40)) --scen locks,churn,free_blocks,record_stream,free_elsewhere
  [ -z "$torch" ] || PYTORCH_CUDA_ALLOC_CONF='' bench torch own "$torch" --scen churn
  bench gpucache-raw contract "$contract" --api raw --scen pair
  reqs=(${expandable[@]+--req "${expandable[@]}"})
  bench gpucache-exp contract "$contract" --conf expandable_segments:True --scen pair,replay "${reqs[@]}"
  [ -z "$torch" ] || PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
    bench torch-exp contract "$torch" --scen pair,replay "${reqs[@]}"
done
uptime >>"$out/load.txt"
python3 scripts/bench-table.py "$out"/*.csv | tee "$out/table.md"
