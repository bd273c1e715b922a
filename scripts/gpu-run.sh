#!/usr/bin/env bash
# Everything that is run on a GPU machine, which needs neither Rust nor this checkout: binaries and recordings are
# carried there.
#   gpu-run.sh BINARIES RECORDINGS OUT [PEERS]
# BINARIES: a folder with gpu_suite, gpucache, quickstart, nvidia_smi, saxpy, cublas_gemm, streams, cuda_graph,
#   training, two_processes, nccl_all_reduce, contract (`gpu-run.sh --build DIR` makes it); what is missing is skipped.
# RECORDINGS: a folder with rules/, fuzz/ and real/ in it, or any of them.
# OUT: one text file for each step, and summary.md.
# PEERS: the folder with the peers' sources and build.sh; they are built there, into OUT/peers.
# SOAK (600) is the seconds of soak, LIMIT (900) the most seconds for a step, ONLY a pattern of step names.
set -u
usage() { sed -n '4,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

build() { # DIR: builds all of them here, in release mode
  cd "$(dirname "${BASH_SOURCE[0]}")/.." && mkdir -p "$1" || exit 1
  local features=cli,nvml,cuda-examples,cuda-nccl
  cargo build --release --features "$features" --bins --examples || exit 1
  local target=${CARGO_TARGET_DIR:-target}/release contract
  contract=$(cargo bench --bench contract --no-run --message-format json |
    sed -n 's/.*"executable":"\([^"]*contract[^"]*\)".*/\1/p' | tail -1)
  cp "$contract" "$1/contract" || exit 1
  for name in gpu_suite quickstart nvidia_smi saxpy cublas_gemm streams cuda_graph training two_processes \
    nccl_all_reduce; do cp "$target/examples/$name" "$1/" || echo "not built: $name"; done
  cp "$target/gpucache" "$1/"
  # Debugging information is most of their size.
  strip "$1"/* 2>/dev/null || true
}
if [ "${1:-}" = --build ]; then [ $# -eq 2 ] || usage; build "$2"; exit; fi
[ $# -ge 3 ] || usage

mkdir -p "$3"
bin=$(cd "$1" && pwd) recordings=$(cd "$2" && pwd) out=$(cd "$3" && pwd) peers=${4:-}
soak=${SOAK:-600} limit=${LIMIT:-900}
chmod +x "$bin"/* 2>/dev/null
summary=$out/summary.md

# The libraries that the examples load at run time, where only Python's wheels have them.
lib=$out/lib
mkdir -p "$lib"
if command -v python3 >/dev/null; then
  site=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  for folder in "$site"/nvidia/*/lib; do [ -d "$folder" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$folder; done
  nccl=$site/nvidia/nccl/lib/libnccl.so.2
  [ -f "$nccl" ] && ln -sf "$nccl" "$lib/libnccl.so"
fi
[ -d /usr/local/cuda/lib64 ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64
export LD_LIBRARY_PATH=$lib:${LD_LIBRARY_PATH:-}
# NVLink multicast can harm machines that are shared.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}

step() { # NAME SECONDS COMMAND...: OUT/NAME.txt; a step that fails or takes too long does not end the run
  local name=$1 seconds=$2 started=$SECONDS result
  shift 2
  # shellcheck disable=SC2254 # a pattern is what it is for
  case $name in ${ONLY:-*}) ;; *) return ;; esac
  [ "$seconds" -le "$limit" ] || seconds=$limit
  local word missing=
  for word in "$@"; do
    case $word in "$bin"/*) [ -x "$word" ] || missing=1 ;; esac
  done
  if [ -n "$missing" ]; then
    result="not there"
  else
    { echo "\$ $*"; timeout --kill-after=10 "$seconds" bash -c '"$@"' step "$@"; } >"$out/$name.txt" 2>&1
    case $? in 0) result=ok ;; 124 | 137) result="FAILED (over $seconds s)" ;; *) result=FAILED ;; esac
  fi
  echo "$name: $result, $((SECONDS - started)) s"
  echo "| $name | $result | $((SECONDS - started)) |" >>"$summary"
}

readings() { # COMMAND...: what nvidia-smi says ten times a second while it runs, and the highest figure
  local log=$out/.smi.csv smi code
  nvidia-smi --query-gpu=timestamp,memory.used,memory.reserved,memory.free --format=csv -lms 100 >"$log" 2>&1 &
  smi=$!
  sleep 1
  "$@"
  code=$?
  sleep 0.3
  kill "$smi" && wait "$smi" 2>/dev/null
  echo "--- nvidia-smi meanwhile: first, every change of memory.used, highest"
  awk -F', ' 'NR==1 || $2!=last {print} {last=$2} NR>1 && $2+0>top {top=$2+0} END {print "highest memory.used: " top " MiB"}' "$log"
  return "$code"
}
with_peers() { # builds them, and runs them and gpucache by turns
  local dir=$1 work=$out/peers
  mkdir -p "$work/real"
  bash "$dir/build.sh" "$work/bin" || return
  for case in default exp; do
    for file in "$recordings"/real/*."$case".req*; do
      # A cap would have to be set on both sides.
      case $file in *-cap*) ;; *) cp "$file" "$work/real/" ;; esac
    done
    local conf=
    [ "$case" = exp ] && conf=expandable_segments:True
    PYTORCH_CUDA_ALLOC_CONF=$conf LIMIT=60 PEERS="torch cub async rmm-pool" bash "$dir/run_all.sh" "$work/bin" \
      "$work/csv.$case" "$work/real" "gpucache=$bin/contract --device cuda:0${conf:+ --conf $conf}" -- --reps 5
    rm -f "$work"/real/*
  done
  python3 "$dir/summarize.py" "$work"/csv.*/*.csv
}

replays() { # the recorded models on the real driver, for time and peaks
  local file
  for file in "$recordings"/real/*.req*; do
    echo "--- $(basename "$file")"
    timeout 120 "$bin/gpucache" replay "$file" --device cuda:0 --repeat 3 || echo "FAILED $file"
  done
}

export -f readings with_peers replays
export bin recordings out

gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
{ date -u; nvidia-smi --query-gpu=name,driver_version,memory.total,memory.reserved --format=csv; uname -r; nproc; } >"$out/machine.txt" 2>&1
cat "$out/machine.txt"
printf '| step | result | seconds |\n|---|---|---:|\n' >"$summary"

# The quick ones first: they tell whether the rest is worth its time.
step nvidia_smi 120 "$bin/nvidia_smi"
step quickstart 120 readings "$bin/quickstart"
for example in saxpy cublas_gemm streams cuda_graph two_processes; do step "$example" 120 "$bin/$example"; done
for alloc in cuda cudarc gpucache; do
  step "training-$alloc" 300 readings "$bin/training" --alloc "$alloc"
done
step gpu_suite 600 "$bin/gpu_suite" --recordings "$recordings" --soak 15
if command -v compute-sanitizer >/dev/null; then
  step memcheck 600 compute-sanitizer --tool memcheck --leak-check full --error-exitcode 9 \
    "$bin/gpu_suite" --kernels-only --soak 15
  step memcheck-examples 300 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/saxpy"
fi
step replays 600 replays
[ -z "$peers" ] || step peers 900 with_peers "$peers"
[ "$gpus" -lt 2 ] || step nccl_all_reduce 180 "$bin/nccl_all_reduce"
step soak $((soak + 120)) "$bin/gpu_suite" --kernels-only --soak "$soak"
rm -f "$out/.smi.csv"
cat "$summary"
