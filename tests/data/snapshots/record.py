"""Records pytorch-2.11.pickle: a few training-like steps on PyTorch's own allocator, without a GPU.

Needs the oracle (../shared/oracle, see its README): ORACLE_VENV=... PYTHONPATH=.../oracle python record.py OUT
"""
import os
import pickle
import sys

import standin

standin.enter()
standin.configure(total=4 << 30, conf="roundup_power2_divisions:4,max_split_size_mb:200")
import torch  # noqa: E402

MIB = 1 << 20


def tensor(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def weights():
    return [tensor(n * MIB + 1000) for n in (8, 3, 24)]


def forward(params, step):
    return [tensor(p.numel() // 2 + 4096 * step) for p in params] + [tensor(700 * (i + 1)) for i in range(6)]


def backward(activations):
    grads = []
    while activations:
        grads.append(tensor(activations[-1].numel()))
        activations.pop()
    return grads


def dump(out):
    """As _dump_snapshot, with the directories of this machine left out of the frames."""
    snapshot = torch.cuda.memory._snapshot()
    entries = [e for trace in snapshot["device_traces"] for e in trace]
    blocks = [b for segment in snapshot["segments"] for b in segment["blocks"]]
    for holder in entries + blocks + snapshot["segments"]:
        for frame in holder.get("frames", []):
            frame["filename"] = os.path.basename(frame["filename"])
    with open(out, "wb") as f:
        pickle.dump(snapshot, f)


def main(out):
    rt = standin.runtime()
    before = tensor(5 * MIB)  # lives before the recording starts
    dropped_later = tensor(900)
    torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python")
    params = weights()
    side = torch.cuda.Stream()
    for step in range(4):
        acts = forward(params, step)
        grads = backward(acts)
        copy = grads[0]
        copy.record_stream(side)
        rt.oracle_hold(side.cuda_stream)
        del copy, grads
        if step == 1:
            del dropped_later
        rt.oracle_release(side.cuda_stream)
        if step == 2:
            torch.cuda.empty_cache()
    try:
        tensor(5 << 30)
    except torch.OutOfMemoryError:
        pass
    last = forward(params, 9)
    pending = tensor(3 * MIB)
    pending.record_stream(side)
    rt.oracle_hold(side.cuda_stream)
    del pending
    dump(out)
    stats = torch.cuda.memory_stats()
    for key in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"):
        print(key, stats[key + ".all.current"])
    print("segments", stats["segment.all.current"], "blocks", stats["active.all.current"])
    del last, before


main(sys.argv[1])
