"""The pictures of docs/web.md: a night on the live page from an empty repository to its end, as Chromium draws it.

    python benchmarks/screenshots.py [--to docs/images]

The session is a made one (tests/browser/demo.py), so that each run gives the same pictures but for the times in them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from autoresearchd.domain.labels import Label, Status
from autoresearchd.web.server import Server

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.browser.demo import Demo
from tests.browser.serving import chromium, serving
from tests.unit.learner.sessions import make_root

SIZE = {"width": 1180, "height": 820}


class Camera:
    """Takes pictures of pages into a folder, with few colours: they are in the repository."""

    def __init__(self, page: Any, server: Server, folder: Path) -> None:
        self._page, self._server, self._folder = page, server, folder

    def take(
        self, name: str, path: str, *, wait: str = "", height: int = SIZE["height"], top: str = "", unfold: str = ""
    ) -> None:
        """One page, once ``wait`` is there; top: what is to be at the top of it; unfold: what to click."""
        page = self._page
        page.set_viewport_size({**SIZE, "height": height})
        page.goto(self._server.address(path))
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector(".link-state.live")
        if wait:
            page.wait_for_selector(wait)
        page.evaluate("document.fonts.ready")
        if unfold:
            page.click(unfold)
        if top:
            page.locator(top).evaluate("(e) => window.scrollTo(0, e.getBoundingClientRect().top + scrollY - 16)")
        target = self._folder / f"web-{name}.png"
        page.screenshot(path=target)
        Image.open(target).convert("RGB").quantize(
            200, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        ).save(target, optimize=True)
        print(f"{target}: {target.stat().st_size / 1024:.0f} KiB")


def walk(camera: Camera, root: Path) -> None:
    """From nothing to the end."""
    camera.take("empty", "/", wait="text=No session yet", height=560)
    with Demo(root, seed=11) as demo:
        first = f"/s/{demo.tag}"
        demo.baseline()
        camera.take("baseline", first, wait="#progress svg", height=830)
        demo.night(44)
        kept = demo.experiment(
            "Squared ReLU in the MLP instead of GELU", Status.KEEP, values=[demo.level - 0.0031], gain=0.0022,
            role="architecture", hypothesis="Sparse activations leave more of the width to what is rare in the text.",
        )  # fmt: skip
        camera.take("kept", f"{first}/x/{kept}", wait=".panel canvas")
        number = demo.running("WARMDOWN_RATIO 0.5 → 0.65 and a floor of 10%", share=0.62)
        camera.take("live", first, wait=f"#run-{number} ~ .curves canvas", height=1340)
        tests = [one for one in demo.store.confirmations(demo.id) if one.confirmed and one.verdict]
        proven = max(tests, key=lambda one: one.verdict.gain if one.verdict and one.verdict.gain else 0.0).experiment
        camera.take("confirmed", f"{first}/x/{proven}", wait=".test svg", top="#h-diff", height=900)
        aborted = max(
            e.number for e in demo.store.experiments(demo.id) if e.decision and e.decision.label is Label.ABORTED_EARLY
        )
        camera.take("aborted", f"{first}/x/{aborted}", wait=".panel canvas", height=900, unfold="summary")
        demo.learn()
        camera.take("learner", f"{first}/learner", wait="text=promoted", height=760)
        camera.take("insights", f"{first}/insights", wait="#insights svg", height=900)
        camera.take("lineage", f"{first}/lineage", wait=".tree li", height=760)
        demo.end("46 experiments done, as asked")
        camera.take("finished", first, wait=".state.stopped", height=1040)


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "images")
    folder = parser.parse_args().to
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="walk-") as scratch, chromium() as browser:
        root = make_root(Path(scratch, "research"))
        with serving(root) as server:
            page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
            walk(Camera(page, server, folder), root)
            page.close()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
