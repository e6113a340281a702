"""What the page shows of a session at work: its runs as they come and go, and what it was told of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.app.project import Project
from autoresearchd.domain.experiment import Measurement
from autoresearchd.domain.labels import Label
from autoresearchd.web.curves import LiveCurves
from autoresearchd.web.source import Source
from tests.browser.demo import Demo


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    with Demo(tmp_path / "night") as found:
        found.baseline()
        yield found


@pytest.fixture
def source(demo: Demo) -> Iterator[Source]:
    found = Source(Project.at(demo.root))
    yield found
    found.close()


def end_run(demo: Demo, number: int) -> None:
    run = demo.store.experiment(demo.id, number).runs[-1]
    demo.store.close_run(run.id, Measurement(Label.NONE, 0.99), None, datetime.now(UTC), last=True)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted as Linux lists them")
def test_the_logs_of_runs_that_have_ended_are_let_go(demo: Demo, source: Source) -> None:
    curves, logs = LiveCurves(source), []
    for _ in range(3):
        number = demo.running("One after the other", share=0.3)
        assert len(curves.of(demo.tag, number)[0]["x"]) == 18
        logs = [link for link in map(target, Path("/proc/self/fd").iterdir()) if link.endswith("training.log")]
        end_run(demo, number)
    assert len(logs) <= 1, "only that of the run under way"
    curves.close()


def target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # that of the listing itself
        return ""
