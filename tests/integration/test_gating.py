"""The gate asks about what it can, says before the training what it cannot, and takes nothing back afterwards."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.domain.ports import RunRequest
from autoresearchd.learner.algorithms.learnable import Who
from autoresearchd.learner.data.read_sessions import TRAINED, Seen
from autoresearchd.learner.gate.compare_policies import GateOptions
from autoresearchd.learner.gate.gate import Gate, LearnerJobs
from autoresearchd.learner.gate.promotion_needs import GateSettings
from tests.fakes.executors import FakeExecutor, Script, prints
from tests.fakes.samplers import ScriptedSampler
from tests.integration.bench import Bench, job
from tests.integration.held_out import block, session, trajectory

SETTINGS = GateSettings(count=1)
OPTIONS = GateOptions(least=2, resamples=100)


def speaker(context: int = 1000) -> ScriptedSampler:
    """The new policy sets SCALE to 2, the best there is; the old one writes no edit."""
    better, worse = block("SCALE = 1.0", "SCALE = 2.0"), "I would lower the rate."
    return ScriptedSampler(lambda who, *_: better if who is Who.POLICY else worse, context=context)


class Court:
    """Judges with programs that take no time. broken: programs fail in folders with that in their path."""

    def __init__(self, *, run_foreign: bool = False) -> None:
        self.executors: list[FakeExecutor] = []
        self.broken = ""
        self.told: list[str] = []
        self.jobs = LearnerJobs(self.executor, None, threading.Event(), self.told.append, run_foreign=run_foreign)

    def executor(self, spec: str) -> FakeExecutor:
        def answer(request: RunRequest) -> Script | str:
            if self.broken and self.broken in str(request.workspace):
                return prints("no such device", outcome="failed", exit_code=1)
            return job(request)

        self.executors.append(FakeExecutor(answer))
        return self.executors[-1]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Nothing is kept after the baseline: all states are at SCALE 1."""
    found = Bench(tmp_path_factory.mktemp("gating"))
    found.policy.values = (1.0, 4.0, 5.0, 6.0)
    found.run(3)
    yield found
    found.close()


@pytest.fixture
def copy(bench: Bench, tmp_path: Path) -> Path:
    shutil.copytree(bench.root, tmp_path / "copy", ignore=shutil.ignore_patterns("judging"))
    return tmp_path / "copy"


def gate(
    court: Court,
    roots: Mapping[str, Path],
    *,
    settings: GateSettings = SETTINGS,
    foreign: Collection[str] = (),
    **given: Any,
) -> Gate:
    sessions = [session(name, root, foreign=name in foreign) for name, root in roots.items()]
    held_out = [trajectory(n, name) for name in roots for n in (1, 2, 3)]
    cancel = threading.Event()
    return Gate(court.jobs, sessions, held_out, settings, court.told.append, cancel, options=OPTIONS, **given)


def test_what_is_whole_is_said_to_be_enough_and_the_better_policy_passes(bench: Bench) -> None:
    court = Court()
    one = gate(court, {"t": bench.root}, settings=replace(SETTINGS, judge="real"))
    assert one.rehearse() == 3
    assert court.told == [], "nothing speaks against it"
    assert len(court.executors[0].requests) == 1, "the best of the session runs here"
    verdict = one.verdict(speaker(), Who.BASE, Who.POLICY, 10)
    assert verdict.figures["states"] == 3
    assert verdict.figures["valid_new"] == 1.0
    assert verdict.figures["not_asked"] == 0


@pytest.mark.parametrize("early", [True, False])
def test_a_session_that_is_gone_is_said_before_the_training_and_the_rest_is_judged(
    bench: Bench, copy: Path, early: bool
) -> None:
    court = Court()
    one = gate(court, {"here": bench.root, "there": copy})
    if early:
        shutil.rmtree(copy / ".git")
    assert one.rehearse() == (3 if early else 6)
    words = ["3 held-out states are not asked about: its session there cannot be used"] if early else []
    assert [line.rpartition(": ")[0] for line in court.told] == words
    if not early:
        shutil.rmtree(copy)
    verdict = one.verdict(speaker(), Who.BASE, Who.POLICY, 10)
    assert (verdict.figures["states"], verdict.figures["not_asked"]) == (3, 3)
    assert "held-out states that were not compared: 3 (its session there" in "\n".join(verdict.reasons)


def test_a_task_that_does_not_run_here_is_said_before_the_training(bench: Bench, copy: Path) -> None:
    court = Court()
    court.broken = str(copy)
    one = gate(court, {"here": bench.root, "there": copy}, settings=replace(SETTINGS, judge="real"))
    assert one.rehearse() == 3
    assert "the best of it does not run here (error)" in court.told[0]
    verdict = one.verdict(speaker(), Who.BASE, Who.POLICY, 10)
    assert all(str(copy) not in str(request.workspace) for request in court.executors[-1].requests)
    assert verdict.figures["states"] == 3


@pytest.mark.parametrize("judge", ["auto", "real"])
def test_no_command_of_another_repository_is_run_unless_somebody_says_so(bench: Bench, copy: Path, judge: str) -> None:
    court = Court()
    settings = replace(SETTINGS, judge=judge)
    one = gate(court, {"here": bench.root, "there": copy}, settings=settings, foreign=["there"])
    one.rehearse()
    one.verdict(speaker(), Who.BASE, Who.POLICY, 10)
    asked = [request for executor in court.executors for request in executor.requests]
    assert all(str(copy) not in str(request.workspace) for request in asked)
    assert not (copy / ".git/autoresearchd/judging").exists(), "nothing is made there"
    if judge == "real":
        assert asked, "the user's own session is judged by experiments"
        assert any("of another repository" in line and "run_foreign" in line for line in court.told)


def test_a_foreign_session_is_judged_by_experiments_where_somebody_says_so(copy: Path) -> None:
    court = Court(run_foreign=True)
    settings = replace(SETTINGS, judge="auto", run_foreign=True)
    one = gate(court, {"there": copy}, settings=settings, foreign=["there"])
    assert one.rehearse() == 3
    assert [str(copy) in str(request.workspace) for request in court.executors[0].requests] == [True]


def test_where_nothing_is_left_it_is_said_beforehand_and_the_version_is_refused_with_the_reason(copy: Path) -> None:
    shutil.rmtree(copy / ".git")
    court = Court()
    one = gate(court, {"there": copy})
    assert one.rehearse() == 0
    assert court.told[-1].startswith("no held-out states can be asked about, and a promotion takes at least 2")
    verdict = one.verdict(speaker(), Who.BASE, Who.POLICY, 10)
    assert not verdict.promote
    assert verdict.reasons[0].startswith("too few held-out states: 0")
    assert "its session there cannot be used" in verdict.reasons[1]


def test_what_the_parents_learned_from_is_not_asked_about(bench: Bench, copy: Path) -> None:
    court = Court()
    one = gate(court, {"here": bench.root, "there": copy}, seen=Seen({"here": 2, "there": None}))
    assert one.rehearse() == 1, "the third experiment of one session came after what they have seen"
    assert court.told[0] == f"5 held-out states are not asked about: {TRAINED}"
    verdict = one.verdict(speaker(), Who.BASE, Who.POLICY, 10)
    assert f"held-out states that were not compared: 5 ({TRAINED})" in verdict.reasons


def test_a_session_whose_judging_fails_takes_no_other_with_it(bench: Bench, copy: Path) -> None:
    class Failing(Court):
        def executor(self, spec: str) -> FakeExecutor:
            if self.executors:  # the data went while the model learned
                shutil.rmtree(copy / ".git/objects")
            return super().executor(spec)

    court = Failing()
    one = gate(court, {"here": bench.root, "there": copy}, settings=replace(SETTINGS, judge="real"))
    assert one.rehearse() == 6
    verdict = one.verdict(speaker(), Who.BASE, Who.POLICY, 10)
    assert verdict.figures["states"] == 3
    assert any("its session there cannot be used" in reason for reason in verdict.reasons)


# ---------------------------------------------------------------------- limits
MOST = 2**40
SAY_LIMIT = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])"


@pytest.fixture
def limited() -> Iterator[None]:
    """A limit on the memory of this process, which it does not reach."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.usefixtures("limited")
def test_jobs_do_not_inherit_the_memory_limit_of_the_learner_which_keeps_it(bench: Bench) -> None:
    limits: list[int] = []

    def say(*_: object) -> None:
        done = subprocess.run([sys.executable, "-I", "-c", SAY_LIMIT], capture_output=True, text=True, check=True)
        limits.append(int(done.stdout))

    class Saying(FakeExecutor):
        def setup(self, *given: object) -> None:
            say()

    class Limited(Court):
        def executor(self, spec: str) -> FakeExecutor:
            return Saying(lambda request: say() or job(request))

    court, hard = Limited(), resource.getrlimit(resource.RLIMIT_DATA)[1]
    assert gate(court, {"t": bench.root}, settings=replace(SETTINGS, judge="real")).rehearse() == 3
    assert limits == [hard, hard]
    assert resource.getrlimit(resource.RLIMIT_DATA) == (MOST, hard)
