"""Opens snapshots in PyTorch's web viewer, in a headless Chromium, and compares what it draws with `gpucache inspect`.

    web_viewer.py VIEWER_JS OUTDIR SNAPSHOT INSPECT_JSON

VIEWER_JS is torch/utils/viz/MemoryViz.js of PyTorch's repository (it is not in the wheel). Leaves one screenshot per
view in OUTDIR. Needs npm (d3 comes from its registry, in the major version that the script asks for) and Chromium
($CHROMIUM, else `chromium` in the PATH). docs/measurements/viewers.md has the steps.
"""
import functools
import http.server
import itertools
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlencode

# The timelines draw this many of the largest allocations one by one and sum up the others.
DRAWN = 15_000
TIMELINE, STATE, SEGMENTS = "Active Memory Timeline", "Allocator State History", "Active Cached Segment Timeline"


def prepare(viewer_js, web):
    """A folder with the unchanged script, d3, and a page whose import map leads the script's CDN addresses to d3."""
    script = Path(viewer_js).read_text()
    (web / "MemoryViz.js").write_text(script)
    for neighbour in re.findall(r'from "\./([\w.]+\.js)"', script):
        shutil.copy(Path(viewer_js).parent / neighbour, web)
    wanted = re.findall(r'"(https://[^"]*/(d3[a-z-]*)@(\d+)[^"]*)"', script)
    major = next((version for _, name, version in wanted if name == "d3"), None)
    if major is None:
        sys.exit(f"{viewer_js} imports no d3: is it MemoryViz.js?")
    (web / "package.json").write_text("{}")
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", f"d3@{major}"], cwd=web, check=True)
    modules = {}
    for package in (web / "node_modules").glob("*/package.json"):
        about = json.loads(package.read_text())
        if "module" in about:
            modules[about["name"]] = f"./node_modules/{about['name']}/{about['module']}"
    imports = modules | {address: modules[name] for address, name, _ in wanted}
    page = Path(__file__).with_suffix(".html").read_text()
    (web / "index.html").write_text(page.replace("IMPORT_MAP", json.dumps({"imports": imports})))
    return json.loads((web / "node_modules/d3/package.json").read_text())["version"]


def serve(web):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path):
            """Modules of d3 leave out the ending of those they import."""
            file = super().translate_path(path)
            return file if os.path.exists(file) else file + ".js"

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=web))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def draw(chromium, address, file, view, *options, **query):
    """What the page reports. An error in the page or on the console ends the program."""
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                   f"--user-data-dir={profile}", "--enable-logging=stderr", "--window-size=1400,1000",
                   "--virtual-time-budget=60000", "--dump-dom", *options,
                   f"{address}/?{urlencode({'file': file, 'view': view, **query})}"]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300)
    console = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<script id="report" type="application/json">(.*?)</script>', run.stdout, re.S)
    if not found:
        sys.exit(f"{file}, {view}: nothing was drawn\n" + "\n".join(console or run.stderr.splitlines()[-20:]))
    report = json.loads(found[1])
    if errors := report["errors"] + [line for line in console if "Uncaught" in line or "ERROR" in line]:
        sys.exit(f"{file}, {view}: " + "\n".join(errors))
    return report


def load(path):
    data = Path(path).read_bytes()
    return json.loads(data) if data[:1] == b"{" else pickle.loads(data)


def expected_events(trace):
    """The viewer shows a request to free and its completion as one event if nothing lies between them."""
    pairs = sum(a["action"] == "free_requested" and b["action"] == "free_completed" and a["addr"] == b["addr"]
                for a, b in itertools.pairwise(trace))
    return len(trace) - pairs


def expected_timeline(trace, begin, end, now):
    """Polygons: what begins or ends in the trace, and what there is now (addresses) and began before it."""
    live, count = set(), 0
    for event in trace:
        if event["action"] == begin:
            live.add(event["addr"])
            count += 1
        elif event["action"] == end:
            count += event["addr"] not in live
            live.discard(event["addr"])
    return min(count + len(now - live), DRAWN)


def addresses(segment):
    """Of the blocks in use; the viewer, too, counts sizes up."""
    starts = itertools.accumulate((b["size"] for b in segment["blocks"]), initial=segment["address"])
    return {start for start, b in zip(starts, segment["blocks"]) if b["state"] == "active_allocated"}


def agree(snapshot, inspected, drawn):
    data = load(snapshot)
    number = inspected["device"]
    trace = data["device_traces"][number]
    segments = [s for s in data["segments"] if s["device"] == number]
    blocks = set().union(*map(addresses, segments))
    state = drawn[STATE]
    header = re.match(r"\(\S+ \((\d+) bytes\) allocated / \S+ \((\d+) bytes\) reserved\)", state["selected"])
    for what, seen, expected in [
        ("segments", state["segments"], inspected["segments"]),
        ("blocks", state["blocks"], inspected["active_blocks"]),
        ("bytes allocated", header and int(header[1]), inspected["requested_bytes"]),
        ("bytes reserved", header and int(header[2]), inspected["reserved_bytes"]),
        ("events", state["events"], expected_events(trace)),
        ("allocations over time", drawn[TIMELINE]["allocations"],
         expected_timeline(trace, "alloc", "free_completed", blocks)),
        ("segments over time", drawn[SEGMENTS]["allocations"],
         expected_timeline(trace, "segment_alloc", "segment_free", {s["address"] for s in segments})),
    ]:
        if seen != expected:
            sys.exit(f"{snapshot.name}: the viewer shows {seen} {what}, expected {expected}")
        print(f"  {what:24}{seen:>14}")


def check(viewer_js, out, snapshot, inspect):
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or sys.exit("no chromium: set CHROMIUM")
    out, snapshot = Path(out), Path(snapshot)
    web = out / "web"
    web.mkdir(parents=True, exist_ok=True)
    d3 = prepare(viewer_js, web)
    shutil.copy(snapshot, web / snapshot.name)
    address = serve(web)
    drawn = {}
    for view in (TIMELINE, STATE, SEGMENTS):
        picture = out / f"{snapshot.name}.{view.replace(' ', '-').lower()}.png"
        drawn[view] = draw(chromium, address, snapshot.name, view, f"--screenshot={picture}")
    # Apart from the picture: it makes the viewer forget which blocks wait for other streams.
    first = draw(chromium, address, snapshot.name, STATE, select="first")["selected"]
    print(f"{snapshot.name} in the web viewer, d3 {d3}: no error on the console, and")
    agree(snapshot, json.loads(Path(inspect).read_text())[0], drawn)
    print(f"  played back to the first event: {' '.join(first.split())}")
    print(f"  largest allocation: {' '.join(drawn[TIMELINE]['largest'].split())}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    check(*sys.argv[1:])
