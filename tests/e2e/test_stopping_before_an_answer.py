"""A stop while a model is waited for: a server that is down or hangs keeps nobody, and nothing is lost."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Project
from tests.e2e.test_models import BETTER, configure
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.timing import wait_until


@pytest.fixture
def closed() -> Iterator[str]:
    """An address where nobody listens, and nobody else will as long as the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def test_one_signal_ends_the_waiting_for_a_server_that_is_down(project: Project, closed: str) -> None:
    configure(project, closed, retries=20)
    with project.daemon("start", "--foreground", "--no-preflight", "--tag", "t", "--policy", "local:m") as daemon:
        wait_until(lambda: project.proposing("t"))
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait() == 143
    assert project.status()["session"]["state"] == "stopped"


def test_an_answer_that_does_not_come_is_counted_and_the_experiment_goes_on_with_resume(project: Project) -> None:
    with ScriptedServer(after=turns.hang()) as hanging:
        configure(project, hanging.url, retries=20)
        start = ("start", "--foreground", "--tag", "t", "--policy", "local:m", "--max-experiments", "1")
        with project.daemon(*start) as daemon:
            wait_until(lambda: hanging.questions)
            project.done("stop")
            assert daemon.wait() == 0
    [answer] = project.json("show", "1", "--json")["answers"]
    assert "not waited for" in answer["error"]
    assert answer["cost_usd"] == 0.0, "a local model without a price has none to be unknown"
    assert answer["tokens_in"] > 0
    with ScriptedServer([BETTER]) as answering:
        configure(project, answering.url, retries=20)
        project.done("resume", "t", "--foreground")
    assert [e["status"] for e in project.experiments()] == ["keep", "keep"]
