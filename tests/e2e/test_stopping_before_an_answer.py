"""A stop while a model is waited for: a server that is down or hangs keeps nobody, and nothing is lost."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.timing import wait_until

SOON_S = 200.0
"""Generous, for machines that are busy: it takes a second or two, and hours where the pauses are sat out."""
BETTER = turns.edits("train.py", "SCALE = 1.0", "SCALE = 2.0")


def configure(project: Project, folder: Path, url: str) -> None:
    """A user whose models are asked again and again, for hours."""
    config = folder / "config.yaml"
    config.write_text(f"local: {{base_url: '{url}'}}\nretries: 20\n")
    project.environment["AUTORESEARCHD_CONFIG"] = str(config)


@pytest.fixture
def closed() -> Iterator[str]:
    """An address where nobody listens, and nobody else will as long as the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def phase(project: Project) -> str:
    status = project.cli("status", "--json")
    current = project.json("status", "--json")["current"] if status.returncode == 0 else None
    return f"{current['experiment']} {current['phase']}" if current else ""


def test_one_signal_ends_the_waiting_for_a_server_that_is_down(project: Project, tmp_path: Path, closed: str) -> None:
    configure(project, tmp_path, closed)
    daemon = project.start_process("start", "--foreground", "--no-preflight", "--tag", "t", "--policy", "local:m")
    wait_until(lambda: project.latest_run() == 0 and phase(project) == "1 proposing")
    daemon.send_signal(signal.SIGTERM)
    daemon.communicate(timeout=SOON_S)
    assert daemon.returncode == 143
    assert project.json("status", "--json")["session"]["state"] == "stopped"


def test_an_answer_that_does_not_come_is_charged_and_the_experiment_goes_on_with_resume(
    project: Project, tmp_path: Path
) -> None:
    with ScriptedServer(after=turns.hang()) as hanging:
        configure(project, tmp_path, hanging.url)
        arguments = ("start", "--foreground", "--tag", "t", "--policy", "local:m", "--max-experiments", "1")
        daemon = project.start_process(*arguments)
        wait_until(lambda: hanging.questions)
        assert project.cli("stop").returncode == 0
        daemon.communicate(timeout=SOON_S)
        assert daemon.returncode == 0
    [answer] = project.json("show", "1", "--json")["answers"]
    assert "not waited for" in answer["error"]
    assert answer["cost_usd"] is None
    assert answer["tokens_in"] > 0
    with ScriptedServer([BETTER]) as answering:
        configure(project, tmp_path, answering.url)
        done = project.cli("resume", "t", "--foreground")
        assert done.returncode == 0, done.stderr
    assert [e["status"] for e in project.json("experiments", "--json")] == ["keep", "keep"]
