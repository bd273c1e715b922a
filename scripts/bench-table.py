#!/usr/bin/env python3
"""One markdown table from the CSV files of the contract: medians [minima], ratios, and the speed targets judged.

usage: bench-table.py FILE.csv ...
"""
import collections
import csv
import datetime
import os
import statistics
import sys

# Who is compared with whom.
RIVALS = {"gpucache": "torch", "gpucache-exp": "torch-exp"}
ORDER = ["gpucache", "gpucache-raw", "torch", "gpucache-exp", "torch-exp"]
UNITS = {
    "ns_per_pair": "ns per pair",
    "ns_per_op": "ns per request",
    "pairs_per_s": "million pairs per second, all threads",
}
SIZES = ["512", "4096", "65536", "1048576", "4194304", "20971520", "67108864"]


class Results:
    """Values of all repetitions of all rounds by (scenario, case, threads, implementation)."""

    def __init__(self, files):
        self.values = collections.defaultdict(list)
        self.units = {}
        for name in files:
            with open(name, newline="") as file:
                for row in csv.DictReader(file):
                    if row["metric"] not in UNITS:
                        continue
                    key = (row["scenario"], row["case"], int(row["threads"]), row["impl"])
                    self.values[key].append(float(row["value"]))
                    self.units[row["scenario"]] = row["metric"]

    def median(self, scenario, case, impl="gpucache", threads=1):
        values = self.values.get((scenario, case, threads, impl))
        return statistics.median(values) if values else None

    def cases(self, scenario, impl):
        return [(c, t) for s, c, t, i in self.values if s == scenario and i == impl]


def ratio(above, below):
    return above / below if above and below else None


def speedups(results, scenario, impl="gpucache", cases=None):
    """How many times faster than its rival, for each case."""
    found = {}
    for case, threads in results.cases(scenario, impl):
        if cases is None or case in cases:
            found[case] = ratio(
                results.median(scenario, case, RIVALS[impl], threads), results.median(scenario, case, impl, threads)
            )
    return found


def least(ratios):
    """The worst of some ratios, with its case."""
    known = {case: value for case, value in ratios.items() if value}
    if not known:
        return None, ""
    case = min(known, key=known.get)
    return known[case], f" (least: {case})" if len(known) > 1 else ""


def targets(results):
    """(what, comparison, limit, value, note) of every target that a CPU can judge."""
    median = results.median
    locks = median("locks", "two_parking_lot")
    hot = {size: median("pair", size) for size in SIZES}
    yield "hot pair, times faster than PyTorch", ">=", 7, *least(speedups(results, "pair"))
    worst = max((v for v in hot.values() if v), default=None)
    yield "hot pair against two uncontended locks, worst size", "<=", 2.5, ratio(worst, locks), ""
    small = [ratio(median("pair", s, "gpucache-raw"), hot[s]) for s in SIZES]
    yield "raw-address pair against handle pair, worst size", "<=", 1.6, max(filter(None, small), default=None), ""
    yield "churn, 4,096 live, against the hot pair of 64 KiB", "<=", 3, ratio(median("churn", "4096"), hot["65536"]), ""
    yield "churn, 4,096 live, times faster than PyTorch", ">=", 8, *least(speedups(results, "churn", cases={"4096"}))
    for pool in ("small", "large"):
        for sizes in ("same", "varied"):
            case = f"{pool}_{sizes}_"
            growth = ratio(median("free_blocks", case + "32768"), median("free_blocks", case + "64"))
            yield f"32,768 free blocks against 64: {pool} pool, {sizes} size", "<=", 1.5, growth, ""
    yield from thread_targets(results)
    replays = speedups(results, "replay") | speedups(results, "replay", "gpucache-exp")
    yield "replay, times faster than PyTorch, every recording", ">=", 8, *least(replays)
    pair, driver = median("record_stream", "pair"), median("record_stream", "driver_event")
    yield "record_stream pair against the driver's event calls (simulated: not a fair yardstick)", "<=", 1.3, ratio(pair, driver), ""


def thread_targets(results):
    cores = os.cpu_count() or 1

    def total(case, threads, impl="gpucache"):
        return results.median("threads", case, impl, threads)

    for threads, needed in ((8, 6), (16, 11)):
        note = "" if cores >= threads else f" ({cores} cores: can't be judged here)"
        scale = ratio(total("own_stream_pair", threads), total("own_stream_pair", 1))
        yield f"{threads} threads, own streams, against one thread", ">=", needed, scale, note
        rival = ratio(total("own_stream_pair", threads), total("own_stream_pair", threads, "torch"))
        yield f"{threads} threads, own streams, times PyTorch's total", ">=", 100, rival, note
    note = "" if cores >= 8 else f" ({cores} cores)"
    kept = ratio(total("one_stream_pair", 8), total("one_stream_pair", 1))
    yield "8 threads, one stream, against one thread", ">=", 0.5, kept, note
    rival = ratio(total("one_stream_pair", 8), total("one_stream_pair", 8, "torch"))
    yield "8 threads, one stream, times PyTorch's total", ">=", 10, rival, note


def print_targets(results):
    print("## Targets (medians)\n\n| target | needed | measured | |\n|---|--:|--:|---|")
    for what, comparison, limit, value, note in targets(results):
        if value is None:
            verdict, shown = "not measured", "-"
        else:
            met = value >= limit if comparison == ">=" else value <= limit
            verdict, shown = "met" if met else "**missed**", f"{value:.2f}"
            if "can't be judged" in note:
                verdict = "-"
        print(f"| {what}{note} | {'≥' if comparison == '>=' else '≤'} {limit} | {shown} | {verdict} |")
    print(
        "\nHeap and driver calls on a hit: `cargo test --release --test no_heap`. "
        "Instructions per pair: `scripts/instructions.sh`."
    )


def number(value, metric):
    if metric == "pairs_per_s":
        return f"{value / 1e6:.2f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def print_scenario(results, scenario):
    metric = results.units[scenario]
    impls = [i for i in ORDER if results.cases(scenario, i)]
    impls += sorted({k[3] for k in results.values if k[0] == scenario} - set(impls))
    rivals = [(i, RIVALS[i]) for i in impls if RIVALS.get(i) in impls]
    threaded = metric == "pairs_per_s"
    head = ["case"] + ["threads"] * threaded + impls + [f"{i} faster than {r}" for i, r in rivals]
    print(f"\n## {scenario}: {UNITS[metric]}\n\n| {' | '.join(head)} |\n|---{'|--:' * (len(head) - 1)}|")
    for case, threads in dict.fromkeys((c, t) for s, c, t, _ in results.values if s == scenario):
        cells = [case] + [str(threads)] * threaded
        for impl in impls:
            values = results.values.get((scenario, case, threads, impl))
            best = max if threaded else min
            cells.append(
                f"{number(statistics.median(values), metric)} [{number(best(values), metric)}]" if values else "-"
            )
        for impl, rival in rivals:
            mine, theirs = (results.median(scenario, case, i, threads) for i in (impl, rival))
            factor = ratio(mine, theirs) if threaded else ratio(theirs, mine)
            cells.append(f"{factor:.1f} x" if factor else "-")
        print(f"| {' | '.join(cells)} |")


def machine():
    try:
        with open("/proc/cpuinfo") as info:
            model = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        model = "unknown CPU"
    return f"{model}, {os.cpu_count()} cores, {datetime.date.today()}"


def main():
    results = Results(sys.argv[1:])
    if not results.values:
        sys.exit("bench-table: no values in these files")
    print(f"{machine()}. Median of all repetitions of all rounds [best one]; the programs ran alternately.\n")
    print_targets(results)
    for scenario in results.units:
        print_scenario(results, scenario)


if __name__ == "__main__":
    main()
