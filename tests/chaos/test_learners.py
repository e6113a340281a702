"""A real learner that is killed beside a daemon costs nothing: research goes on, by the version that was in use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="pip install 'autoresearchd[learn]'")
pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")

from tests.chaos.learners import LIVE
from tests.e2e.conftest import Project, make_environment
from tests.e2e.test_models import configure
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.timing import wait_until

ROOT = Path(__file__).parents[2]
WORSE = [turns.edits("train.py", "SCALE = 1.0", f"SCALE = {3 + n / 100}") for n in range(20_000)]


@pytest.fixture
def server_of_edits() -> Iterator[ScriptedServer]:
    """Its answers have no tokens that could be learned from: what the learners read stays the same."""
    with ScriptedServer(WORSE, model="m", lora=turns.loads(), tokens=False) as scripted:
        yield scripted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "pause"),
    [
        pytest.param(2, "never", marks=pytest.mark.timeout(600)),
        pytest.param(60, "never", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
        pytest.param(30, "auto", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
def test_a_killed_learner_costs_nothing(
    kills: int, pause: str, server_of_edits: ScriptedServer, tmp_path: Path
) -> None:
    environment, log = make_environment(tmp_path), tmp_path / "learners.log"
    settings = f"learn: {{model: '{tmp_path / 'model'}', pause: {pause}}}\n"
    project = Project(tmp_path / "project", environment)
    configure(project, server_of_edits.url, settings)
    with log.open("w") as errors:
        learners = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.learners", str(tmp_path), "7", str(kills)],
            cwd=ROOT,
            env={**environment, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )

    def told() -> dict[str, Any]:
        line = learners.stdout.readline()
        assert line, log.read_text()[-5000:]
        return dict(json.loads(line))

    try:
        [good] = told()["listed"]
        project.done("adapters", "promote", good)
        with project.daemon("start", "--policy", "local:m", "--tag", LIVE, "--foreground") as daemon:
            wait_until(lambda: any(asked["model"] == good for asked in server_of_edits.questions))
            learners.stdin.write(b"\n")  # now it kills
            learners.stdin.flush()
            deaths = [told() for _ in range(kills)]
            end = told()
            assert daemon.poll() is None, "the daemon lives"
            listed = [record["version"] for record in project.json("adapters", "list", "--json")]
    finally:
        learners.kill()
        learners.communicate()
    assert [death["at"] for death in deaths if not death["died"] and death["code"] != 0] == []
    assert any(death["died"] for death in deaths), "none died, and the test shows nothing"
    for left in (*deaths, end):
        assert left["torn"] == [], f"what is listed is whole: {left}"
        assert left["in_use"] == [good], f"the last good version stays in use: {left}"
        assert left["by"] == good, f"the daemon goes on, by the version in use: {left}"
    assert sorted(listed) == sorted(end["listed"]) == end["folders"], "nothing half-written is listed, or lies about"
    assert end["left"] == [], "folders of the judging went with the next learner"
    assert set(end["runs"]) <= {"done", "failed"}
    assert end["runs"][-1] == "done"
    assert {asked["model"] for asked in server_of_edits.questions} == {good}
