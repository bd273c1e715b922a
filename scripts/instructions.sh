#!/usr/bin/env bash
# Instructions of one hot pair, counted by valgrind: the same on every run, whatever else the machine does.
#   scripts/instructions.sh            compares with benches/instructions.txt; fails beyond 5 % more or less
#   scripts/instructions.sh --update   writes that file
# Needs valgrind (Debian: apt-get install valgrind; done here when run as root, as CI is).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
figures=benches/instructions.txt
tolerance=5 # per cent
cases="small large small-raw large-raw recorded-raw churn locks"
few=1000 many=11000

if ! command -v valgrind >/dev/null; then
  [ "$(id -u)" = 0 ] || { echo "instructions: valgrind is missing; install it (apt-get install valgrind)" >&2; exit 2; }
  { apt-get update -q && apt-get install -qy --no-install-recommends valgrind; } >/dev/null
fi

# Valgrind knows no AVX-512, so the host's own target options are not taken.
binary=$(RUSTFLAGS= cargo bench --bench instructions --no-run --message-format json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*instructions[^"]*\)".*/\1/p' | tail -1)
[ -n "$binary" ] || { cargo bench --bench instructions --no-run; exit 1; }

total() { # case, pairs: instructions of the whole run
  local log
  log=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null "$binary" "$1" "$2" 2>&1) ||
    { echo "$log" >&2; return 1; }
  sed -n 's/.*Collected : \([0-9]*\).*/\1/p' <<<"$log"
}

measured=$(
  for case in $cases; do
    a=$(total "$case" $few) b=$(total "$case" $many)
    # What does not depend on the number of pairs cancels out.
    awk -v c="$case" -v a="$a" -v b="$b" -v n=$((many - few)) 'BEGIN { printf "%s %.1f\n", c, (b - a) / n }'
  done
)

if [ "${1:-}" = --update ]; then
  { sed -n '/^#/p' $figures; echo "$measured"; } >$figures.new && mv $figures.new $figures
  cat $figures
  exit
fi

awk -v tolerance=$tolerance '
  BEGIN { print "| case | instructions per pair | recorded | change |\n|---|--:|--:|--:|" }
  FNR == NR { if ($0 !~ /^#/ && NF) recorded[$1] = $2; next }
  !($1 in recorded) { printf "| %s | %s | - | no recorded figure: run with --update |\n", $1, $2; bad = 1; next }
  {
    change = 100 * ($2 / recorded[$1] - 1)
    off = change > tolerance || change < -tolerance
    printf "| %s | %s | %s | %+.1f %%%s |\n", $1, $2, recorded[$1], change, off ? " **beyond " tolerance " %**" : ""
    if (off) bad = 1
  }
  END { exit bad }
' $figures <(echo "$measured") || {
  echo "If the change is meant (also for the better), run scripts/instructions.sh --update and commit $figures." >&2
  exit 1
}
