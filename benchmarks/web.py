"""The live page over a store of many experiments: server time, time to interactive in Chromium, and how soon news come.

    python benchmarks/web.py [--experiments 10000] [--repeats 5]

A night of forty experiments is written through the store's own methods, then multiplied. Server time: from the request
to the last byte of the answer, on the loopback, once the server has made ready (it does so when it starts); the first
one of each page apart. To interactive: from the
navigation's start until the page's script has run (``data-ready``), in headless Chromium. News: from the commit of a
decision until the row is on the page. Beside each the processor time of the server's process, as the machine may be
busy with something else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from autoresearchd.domain.labels import Label, Status
from autoresearchd.web.server import Server

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.browser.demo import Demo, multiply
from tests.browser.serving import chromium, serving
from tests.timing import wait_until

PATHS = {"first page": "", "table": "/experiments", "table, by value": "/experiments?sort=metric&text=matrix",
         "lineage": "/lineage", "an experiment": "/x/77"}  # fmt: skip
BOUNDS = {"first page": 300.0, "interactive": 1500.0, "news": 1000.0}


def server_times(server: Server, tag: str, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """(wall, processor) milliseconds of each request; the first of each path is cold."""
    found: dict[str, list[tuple[float, float]]] = {}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as client:
        for name, path in PATHS.items():
            for _ in range(1 + repeats):
                wall, processor = time.perf_counter(), time.process_time()
                client.get(f"/s/{tag}{path}").raise_for_status()
                took = 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - processor)
                found.setdefault(name, []).append(took)
    return found


def interactive(page: Any, server: Server, tag: str, repeats: int) -> list[float]:
    """Milliseconds until the first page has been read, drawn and answers keys."""
    times = []
    for _ in range(repeats):
        page.goto(f"http://127.0.0.1:{server.port}/s/{tag}")
        page.wait_for_selector("body[data-ready]")
        times.append(page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"))
    return times


def news(page: Any, demo: Demo, repeats: int) -> list[float]:
    """Milliseconds from the commit of a decision until its row is on the page that is open."""
    page.wait_for_selector(".link-state.live")
    times = []
    for _ in range(repeats):
        number = demo.experiment("News", Status.DISCARD, Label.NO_GAIN, values=[1.01])
        begun = time.perf_counter()
        page.wait_for_selector(f"#row-{number} >> text=discarded")
        times.append(1000 * (time.perf_counter() - begun))
    return times


def main() -> int:
    """Print the table; 1 when a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="web-") as scratch, Demo(Path(scratch, "many")) as demo:
        demo.baseline()
        demo.night(40)
        multiply(demo, options.experiments)
        kept = len(demo.store.keeps(demo.id, 0))
        with serving(demo.root) as server:
            wait_until(lambda: server.site.warm)
            times = server_times(server, demo.tag, options.repeats)
            with chromium() as browser:
                page = browser.new_page()
                ready = interactive(page, server, demo.tag, options.repeats)
                heard = news(page, demo, options.repeats)
    print(
        f"{options.experiments:,} experiments, {kept:,} kept; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    print(f"{'ms':18}{'cold':>9}{'median':>9}{'cold cpu':>10}{'cpu':>8}")
    for name, (cold, *warm) in times.items():
        median, processor = (statistics.median(column) for column in zip(*warm, strict=True))
        print(f"{name:18}{cold[0]:9.0f}{median:9.0f}{cold[1]:10.0f}{processor:8.0f}")
    for name, values in (("interactive", ready), ("news", heard)):
        print(f"{name:18}{max(values):9.0f}{statistics.median(values):9.0f}   (worst, median)")
    figures = {"first page": times["first page"][0][0], "interactive": max(ready), "news": max(heard)}
    missed = [
        f"{name} {figures[name]:.0f} ms, bound {bound:.0f}" for name, bound in BOUNDS.items() if figures[name] > bound
    ]
    print("missed: " + "; ".join(missed) if missed else "all bounds hold")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
