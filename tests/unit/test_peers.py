"""benchmarks/public/peers.py: what another program did is counted as it happened, and nothing of it goes on."""

from __future__ import annotations

import json
import os
import re
import select
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, UsageError
from tests.fakes.model_server import ScriptedServer
from tests.fakes.model_turns import Turn, fails
from tests.templates.programs import load_program

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROBLEM = BENCHMARKS / "tasks" / "quadratic"  # its loss is to be low
peers = load_program(BENCHMARKS / "public", "peers")

USUAL = """
import json, os, subprocess, sys, urllib.request
from evaluator import ask

def think():
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "a b c"}]}).encode()
    with urllib.request.urlopen(sys.argv[1] + "/chat/completions", body) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

def evaluate(text):
    open("next.py", "w").write(text)
    found = ask("next.py")
    print(json.dumps(found), flush=True)
    return found
"""
WORKS = """
print(json.dumps(sorted(os.environ)), flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
evaluate(open("program.py").read())
while True:
    if text := think():
        evaluate(text)
"""


@dataclass(frozen=True)
class Scored:
    score: float | None
    error: str = ""


def score(program: str, problem: Path, seed: int) -> Scored:
    assert (problem, seed) == (PROBLEM, 7)
    if "full disk" in program:
        raise EnvironmentFailure("the disk is full")
    return Scored(None, "it crashed") if "bad" in program else Scored(float(len(program)))


class Bench:
    """One run of a made-up peer."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.venvs = tmp_path / "run", tmp_path / "venvs"
        (self.venvs / "made-up").mkdir(parents=True)
        (self.venvs / "made-up" / "installed").touch()

    def run(self, script: str, turns: Sequence[Turn], evaluations: int = 4, **more: Any) -> Any:
        peer = peers.Peer((), lambda order: [sys.executable, "-c", USUAL + script, order.url])
        with ScriptedServer(turns, after=Turn("x" * 9)) as server:
            asked = "made-up", PROBLEM, evaluations, 7, server.url, "the-model", self.folder, 100
            course = peers.run(*asked, venvs=self.venvs, peers={"made-up": peer}, score=score, **more)
            self.questions = server.questions
        return course

    @property
    def log(self) -> list[Any]:
        lines = (self.folder / "peer" / "peer.log").read_text().splitlines()
        # Between the last evaluation and its end a peer may notice that nobody answers any more.
        return [json.loads(line) for line in takewhile(lambda line: not line.startswith("Traceback"), lines)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def ends(pid: int) -> bool:
    """Whether a process has ended, or does so before long."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(handle, "rb"):
        return bool(select.select([handle], [], [], 60)[0])


def test_a_run_ends_with_its_last_evaluation_and_takes_with_it_what_it_started(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of ours")
    course = bench.run(WORKS, [Turn("bad"), Turn(""), Turn("better")])
    first = (PROBLEM / "train.py").read_text()
    assert [e.score for e in course.evaluations] == [len(first) + 40.0, None, 6.0, 9.0]
    assert first in course.evaluations[0].program and course.evaluations[1].error == "it crashed"
    assert (course.answers, course.tokens_in, course.ended) == (4, 12, "")
    assert course.tokens_out == 3  # an empty answer has none
    assert json.loads((bench.folder / "course.json").read_text())["evaluations"][3]["program"] == "x" * 9
    assert {q["model"] for q in bench.questions} == {"the-model"}
    assert len({q["seed"] for q in bench.questions}) == 4
    names, child, *told = bench.log
    assert "A_SECRET" not in names and "no_proxy" in names
    assert ends(child)
    # Higher is better to a peer; what fails is as bad as the worst, and says why.
    assert told[:2] == [
        {"fitness": -len(first) - 40.0, "error": ""}, {"fitness": -len(first) - 40.0, "error": "it crashed"}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "turns", "count", "words"),
    [
        pytest.param("evaluate('one'); evaluate('two'); sys.exit(3)", [], 2, "exit code 3", id="it crashes"),
        pytest.param("sys.exit(0)", [], 0, "exit code 0", id="it does nothing"),
        pytest.param(
            "evaluate('one'); evaluate('full disk')", [], 1, "scored: the disk is full", id="the scorer fails"
        ),
        pytest.param("evaluate('one')\nwhile True: think()", [], 1, "4 answers", id="no answer is a program"),
        pytest.param(
            WORKS, [fails(503, "too busy", None, "server_error")], 1, "answered 503: .*too busy", id="the model fails"
        ),
        pytest.param(WORKS, [Turn(fault="drop")], 1, "gave no answer", id="the model is gone"),
        pytest.param(WORKS, [Turn(raw=b"[half")], 1, "gave no answer", id="the model talks nonsense"),
    ],
)
def test_a_run_that_ends_early_keeps_what_it_has_and_says_why(
    bench: Bench, script: str, turns: list[Turn], count: int, words: str
) -> None:
    course = bench.run(script, turns)
    assert len(course.evaluations) == count
    assert re.search(words, course.ended), course.ended
    assert len(json.loads((bench.folder / "course.json").read_text())["evaluations"]) == count


def test_a_prompt_that_is_too_long_for_the_model_is_an_answer_without_words(bench: Bench) -> None:
    overflow = fails(400, "the request exceeds the available context size", "exceed_context_size_error", "invalid")
    course = bench.run(WORKS, [overflow], evaluations=2)
    assert (course.no_room, course.answers, len(course.evaluations), course.ended) == (1, 2, 2, "")


def test_a_run_that_takes_too_long_is_ended(bench: Bench) -> None:
    course = bench.run("evaluate('one'); think()", [Turn(fault="hang")], hours=1e-3)
    assert (course.ended, course.answers) == ("0.001 hours", 0)


def test_what_cannot_be_run_is_said_before_anything_is_written(bench: Bench, tmp_path: Path) -> None:
    rest = PROBLEM, 4, 7, "http://127.0.0.1:9/v1", "m", bench.folder, 100
    with pytest.raises(MissingCapability, match="install --dir"):
        peers.run("openevolve", *rest, venvs=bench.venvs)
    with pytest.raises(UsageError, match="openevolve, shinka"):
        peers.run("made-up", *rest, venvs=bench.venvs)
    with pytest.raises(UsageError, match="new or empty"):
        bench.folder = tmp_path
        bench.run("", [])
    with pytest.raises(UsageError, match="the first program's is one"):
        bench.run("", [], evaluations=0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("peer", ["openevolve", "shinka"])
def test_the_peers_themselves_are_counted(tmp_path: Path, peer: str) -> None:
    venvs = os.environ.get("AUTORESEARCHD_TESTS_PEERS", "")
    if not venvs:
        pytest.skip("AUTORESEARCHD_TESTS_PEERS names no folder where `peers.py install` has put them")
    edit = "<<<<<<< SEARCH\nDEPTH = 4\n=======\nDEPTH = 5\n>>>>>>> REPLACE\n"
    rewrite = f"# EVOLVE-BLOCK-START\n{(PROBLEM / 'train.py').read_text()}# EVOLVE-BLOCK-END\n"
    either = Turn(f"<NAME>a</NAME>\n<DIFF>\n{edit}</DIFF>\n<CODE>\n```python\n{rewrite}```\n</CODE>")
    with ScriptedServer([Turn("prose"), either, either]) as server:
        asked = peer, PROBLEM, 3, 7, server.url, "the-model", tmp_path / "run", 100
        course = peers.run(*asked, venvs=Path(venvs), score=score)
    assert (course.ended, len(course.evaluations)) == ("", 3)
    assert {q["max_tokens"] for q in server.questions} == {100}
    assert course.answers >= 3  # prose leads to no program
