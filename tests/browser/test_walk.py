"""A new user's walk over the live page, from an empty repository to the end of a night, and its pictures.

Each station holds what a user must see there. ``make pictures`` leaves the pictures in docs/images (see docs/web.md);
else they go to a folder that is thrown away. The session is a made one (demo.py), so that they differ by their times
only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from autoresearchd.domain.labels import Label, Status
from autoresearchd.web.server import Server
from tests.browser.demo import Demo
from tests.browser.serving import chromium, needs_chromium, serving
from tests.browser.test_live_page import PATIENCE_MS, keeps
from tests.unit.learner.sessions import make_root

pytestmark = needs_chromium
WIDTH, PHONE = 1180, {"width": 390, "height": 844}
FEWEST_COLOURS, MOST_OF_ONE = 24, 0.97
"""Of a picture with something in it: what is drawn has edges, and its ground is not all there is."""


class Camera:
    """Goes to a station, lets the page come to rest and takes its picture."""

    def __init__(self, page: Any, server: Server, folder: Path) -> None:
        self.page, self._server, self._folder = page, server, folder

    def go(
        self, path: str, wait: str, *, size: dict[str, int] | None = None, height: int = 820, dark: bool = False
    ) -> str:
        """The words of the page, once ``wait`` is there and events arrive."""
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.set_viewport_size(size or {"width": WIDTH, "height": height})
        self.page.goto(self._server.address(path))
        # The token is taken out of the address, in an open tab, too. A function that polls would be against the policy.
        self.page.wait_for_url(lambda url: "#" not in url)
        assert not self.page.title()[:3].isdigit(), f"{path}: {self.page.title()}"
        for selector in ("body[data-ready]", ".link-state.live", wait):
            self.page.wait_for_selector(selector)
        self.page.evaluate("document.fonts.ready")
        return str(self.page.inner_text("body"))

    def take(self, name: str, *, top: str = "") -> None:
        """What is in the window; top: what is to be at its upper edge."""
        from PIL import Image

        if top:
            place = "(e) => window.scrollTo(0, e.getBoundingClientRect().top + scrollY - 16)"
            self.page.locator(top).evaluate(place)
        target = self._folder / f"web-{name}.png"
        self.page.screenshot(path=target)
        with Image.open(target) as taken:
            picture = taken.convert("RGB")
        colours = picture.getcolors(picture.width * picture.height) or []
        assert len(colours) >= FEWEST_COLOURS, f"{name} has {len(colours)} colours"
        assert max(count for count, _ in colours) < MOST_OF_ONE * picture.width * picture.height, f"{name} is blank"
        few_colours(picture).save(target, optimize=True)


def few_colours(picture: Any) -> Any:
    """A third of its size, for the repository. The commonest colours stay as they are: nothing plain is tinted."""
    import numpy as np
    from PIL import Image

    red, green, blue = np.moveaxis(np.asarray(picture).astype(int), 2, 0)
    packed, where, counts = np.unique((red << 16 | green << 8 | blue).ravel(), return_inverse=True, return_counts=True)
    known = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], 1)
    rare = picture.quantize(96, method=Image.Quantize.MAXCOVERAGE).getpalette()
    palette = np.concatenate([known[np.argsort(-counts)[:160]], np.reshape(rare, (-1, 3))[:96]])
    nearest = np.array([np.argmin(((palette - one) ** 2).sum(1)) for one in known], np.uint8)
    few = Image.fromarray(nearest[where].reshape(red.shape))
    few.putpalette(palette.astype(np.uint8).tobytes())
    return few


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wanted = os.environ.get("AUTORESEARCHD_PICTURES")
    folder = Path(wanted) if wanted else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def scratch() -> Iterator[Path]:
    """With a short name: it is on the page."""
    with TemporaryDirectory(prefix="night-") as folder:
        yield Path(folder)


@pytest.fixture
def page() -> Iterator[Any]:
    with chromium() as browser, browser.new_context(reduced_motion="reduce") as context:
        found = context.new_page()
        found.set_default_timeout(PATIENCE_MS)
        yield found


def test_a_new_user_sees_at_each_station_what_matters_there(page: Any, pictures: Path, scratch: Path) -> None:
    root = make_root(scratch / "research")
    with serving(root) as server:
        camera = Camera(page, server, pictures)
        words = camera.go("/", "text=No session yet", height=560)
        assert "autoresearchd start --task autoresearch" in words, "how to begin"
        camera.take("empty")
        with Demo(root, seed=11) as demo:
            night(camera, demo)


def night(camera: Camera, demo: Demo) -> None:
    page, first = camera.page, f"/s/{demo.tag}"
    demo.baseline()
    words = camera.go(first, "#progress svg", height=830)
    assert "the baseline; nothing better is confirmed yet" in words and "lower is better · σ" in words
    camera.take("baseline")

    demo.night(44)
    kept = demo.experiment(
        "Squared ReLU in the MLP instead of GELU", Status.KEEP, values=[demo.level - 0.0031], gain=0.0022,
        role="architecture", hypothesis="Sparse activations leave more of the width to what is rare in the text.",
    )  # fmt: skip
    words = camera.go(f"{first}/x/{kept}", ".panel canvas")
    assert "Sparse activations leave more" in words and "kept until a test of repeated runs says more" in words
    assert "not yet: only believed" in words
    camera.take("kept")

    number = demo.running("WARMDOWN_RATIO 0.5 → 0.65 and a floor of 10%", share=0.62)
    live = f"#run-{number} ~ .curves canvas"
    words = camera.go(first, live, height=1340)
    forecast = page.locator(f"#run-{number} ~ .curves [role=img]").nth(1).get_attribute("aria-label")
    assert "90% from" in forecast and "bar" in forecast
    camera.take("live")
    camera.go(first, live, height=1340, dark=True)
    camera.take("live-dark")
    camera.go(first, live, size=PHONE)
    page.wait_for_selector("#progress svg[viewBox^='0 0 400 ']")
    camera.take("phone")

    tests = [one for one in demo.store.confirmations(demo.id) if one.confirmed and one.verdict]
    proven = max(tests, key=lambda one: one.verdict.gain if one.verdict and one.verdict.gain else 0.0).experiment
    words = camera.go(f"{first}/x/{proven}", ".test svg", height=900)
    assert "the branch has it" in words and "Over 3 pairs of runs" in words and page.locator(".diff tr.add").count()
    camera.take("confirmed", top="#h-diff")
    camera.go(f"{first}/x/{proven}", ".test svg", height=900, dark=True)
    camera.take("confirmed-dark", top="#h-diff")

    aborted = max(
        e.number for e in demo.store.experiments(demo.id) if e.decision and e.decision.label is Label.ABORTED_EARLY
    )
    words = camera.go(f"{first}/x/{aborted}", ".panel canvas", height=900)
    page.click("summary")
    assert "the curve lies too high for a run that reaches the bar" in words
    assert "at 55% of the budget: forecast" in page.inner_text("main"), "the look that ended it"
    camera.take("aborted")

    demo.learn()
    words = camera.go(f"{first}/learner", "text=promoted", height=760)
    assert "34 of 60 held-out states better" in words and "not put to use" in words
    camera.take("learner")
    words = camera.go(f"{first}/insights", "#insights svg", height=900)
    assert "MATRIX_LR" in words and "Structure" in words
    camera.take("insights")
    camera.go(f"{first}/lineage", ".tree li", height=760)
    assert page.locator(".tree li").count() >= sum(1 for fate in keeps(demo).values() if fate), "nothing kept is lost"
    camera.take("lineage")

    demo.end("46 experiments done, as asked")
    words = camera.go(first, ".state.stopped", height=1040)
    assert "46 experiments done, as asked" in words and "confirmed in #" in words
    camera.take("finished")
    for tag, seed, count in (("nov22", 5, 30), ("nov23", 6, 60)):
        with Demo(demo.root, tag, seed=seed) as other:
            other.baseline()
            other.night(count)
            other.end("as asked")
    camera.go("/", "#h-together", height=900)
    told = page.locator("#together-d").text_content()
    assert all(tag in told for tag in ("nov21", "nov22", "nov23")) and "% after 60 experiments" in told
    camera.take("sessions")
