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
pytest.importorskip("httpx2", reason="pip install 'autoresearchd[local]'")

from tests.chaos.learners import LIVE
from tests.e2e.conftest import Project, make_environment
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.timing import wait_until

ROOT = Path(__file__).parents[2]
WORSE = [turns.edits("train.py", "SCALE = 1.0", f"SCALE = {3 + n / 100}") for n in range(20_000)]


class Learners:
    """The program that kills them."""

    def __init__(self, folder: Path, seed: int, kills: int, environment: dict[str, str]) -> None:
        self._log = (folder / "learners.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.learners", str(folder), str(seed), str(kills)],
            cwd=ROOT,
            env={**environment, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def next(self) -> dict[str, Any]:
        """What it tells next."""
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise AssertionError(self._log.read()[-5000:])

        found: dict[str, Any] = json.loads(line)
        return found

    def begin(self) -> None:
        """Let it kill."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._log.close()


@pytest.fixture
def server_of_edits() -> Iterator[ScriptedServer]:
    """Its answers have no tokens that could be learned from: what the learners read stays the same."""
    with ScriptedServer(WORSE, model="m", lora=turns.loads(), ids=False, logprobs=False) as scripted:
        yield scripted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "pause"),
    [
        pytest.param(3, "never", marks=pytest.mark.timeout(600)),
        pytest.param(60, "never", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
        pytest.param(30, "auto", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
def test_killed_at_any_instant_a_learner_costs_neither_the_daemon_nor_the_version_in_use(
    kills: int, pause: str, server_of_edits: ScriptedServer, tmp_path: Path
) -> None:
    environment = make_environment(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"local: {{base_url: '{server_of_edits.url}'}}\nretries: 0\nlearn: {{model: '{tmp_path / 'model'}', "
        f"pause: {pause}}}\n"
    )
    environment["AUTORESEARCHD_CONFIG"] = str(config)
    learners, project = Learners(tmp_path, 7, kills, environment), Project(tmp_path / "project", environment)
    try:
        whole = learners.next()
        [good] = whole["listed"]
        project.done("adapters", "promote", good)
        with project.daemon("start", "--policy", "local:m", "--tag", LIVE, "--foreground") as daemon:
            wait_until(lambda: any(asked["model"] == good for asked in server_of_edits.questions))
            learners.begin()
            deaths = [learners.next() for _ in range(kills)]
            end = learners.next()
            assert daemon.poll() is None, "the daemon lives"
            listed = [record["version"] for record in project.json("adapters", "list", "--json")]
    finally:
        learners.close()
    assert [death["at"] for death in deaths if not death["died"] and death["code"] != 0] == []
    assert any(death["died"] for death in deaths), "none died, and the test shows nothing"
    for told in (*deaths, end):
        assert told["torn"] == [], f"what is listed is whole: {told}"
        assert told["in_use"] == [good], f"the last good version stays in use: {told}"
        assert told["by"] == good, f"the daemon goes on, by the version in use: {told}"
    assert sorted(listed) == sorted(end["listed"]) == end["folders"], "nothing half-written is listed, or lies about"
    assert end["left"] == [], "folders of the judging went with the next learner"
    assert set(end["runs"]) <= {"done", "failed"}
    assert end["runs"][-1] == "done"
    assert {asked["model"] for asked in server_of_edits.questions} == {good}
