"""A real server of the page in this process, and the system's Chromium, which nothing but the tests talk to."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.app.project import Project
from autoresearchd.web.server import Server
from tests.timing import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
needs_chromium = pytest.mark.skipif(
    (not CHROMIUM or find_spec("playwright") is None) and "AUTORESEARCHD_TESTS_NEED_CHROMIUM" not in os.environ,
    reason="Chromium or playwright is not installed (apt install chromium; pip install playwright)",
)
ARGUMENTS = (
    "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-sync", "--no-first-run", "--disable-dev-shm-usage", "--disable-gpu",
)  # fmt: skip


@contextmanager
def serving(root: Path) -> Iterator[Server]:
    """The page of a repository at some free port."""
    server = Server(Project.at(root), 0)
    thread = threading.Thread(target=server.serve_on)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of its own."""
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "Chromium is missing: apt install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
