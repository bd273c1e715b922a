"""The part of viewers.sh that runs PyTorch's tools.

    viewers.py same A B                          two pickles hold equal values
    viewers.py check FILE INSPECT JSON OUTDIR    FILE (pickle) passes every tool and agrees with the other two
"""
import json
import pickle
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
from torch.cuda import _memory_viz as viz  # noqa: E402


def load(path):
    with open(path, "rb") as f:
        return pickle.load(f)


def as_text(value):
    """Tuples are lists in JSON."""
    return json.loads(json.dumps(value))


def same(a, b):
    if load(a) != load(b):
        sys.exit(f"{a} and {b} differ")
    print(f"{Path(b).name}: equal to {Path(a).name}, value by value")


def check(file, inspect, as_json, out):
    data = load(file)
    if as_text(data) != json.loads(Path(as_json).read_text()):
        sys.exit(f"{file}: JSON and pickle differ")
    name = Path(file).stem
    run = {
        "stats": lambda: viz.segsum(data),
        "trace": lambda: viz.trace(data),
        # The pictures of these two need a Perl script from the network; their input is what counts here.
        "segments": lambda: viz.segments(data, format_flamegraph=str),
        "memory": lambda: viz.memory(data, format_flamegraph=str),
        "trace_plot": lambda: viz.trace_plot(data),
        "segment_plot": lambda: viz.segment_plot(data),
    }
    sizes = {}
    for command, tool in run.items():
        text = tool()
        sizes[command] = len(text)
        if not text:
            sys.exit(f"{file}: {command} says nothing")
        if command.endswith("_plot"):
            Path(out, f"{name}.{command}.html").write_text(text)
    agree(file, data, json.loads(Path(inspect).read_text()))
    events = sum(len(trace) for trace in data["device_traces"])
    blocks = sum(len(segment["blocks"]) for segment in data["segments"])
    print(f"{Path(file).name}: {len(data['segments'])} segments, {blocks} blocks, {events} events; "
          + ", ".join(f"{command} {size} characters" for command, size in sizes.items()))


def agree(file, data, inspected):
    """What gpucache counted is what PyTorch's structure holds."""
    for device in inspected:
        segments = [s for s in data["segments"] if s["device"] == device["device"]]
        blocks = [b for s in segments for b in s["blocks"]]
        active = [b for b in blocks if b["state"] != "inactive"]
        counted = {
            "segments": len(segments),
            "active_blocks": len(active),
            "inactive_blocks": len(blocks) - len(active),
            "reserved_bytes": sum(s["total_size"] for s in segments),
            "allocated_bytes": sum(s["allocated_size"] for s in segments),
            "active_bytes": sum(s["active_size"] for s in segments),
            "requested_bytes": sum(s["requested_size"] for s in segments),
        }
        for key, value in counted.items():
            if device[key] != value:
                sys.exit(f"{file}: {key} is {value}, but gpucache says {device[key]}")


if __name__ == "__main__":
    {"same": same, "check": check}[sys.argv[1]](*sys.argv[2:])
