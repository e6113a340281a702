"""A daemon that dies at any instant loses nothing, repeats nothing and leaves nothing unconfirmed on the branch.

The daemon is made to die before and after every call that it makes to the store, to git and to the executor: at each
such instant a BaseException ends it, a new one is composed over the same store and repository, and the session must end
as if nothing had happened.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, RepositoryError
from autoresearchd.domain.labels import Outcome, Phase
from autoresearchd.domain.ports import RunRequest
from autoresearchd.domain.randomness import derive_seed
from tests.fakes.bench import TASK, Doom, Killed, job, program_of, run_until_killed
from tests.fakes.executors import Script
from tests.integration.bench import Bench

EXPERIMENTS = 3


def check(bench: Bench) -> None:
    found = bench.experiments()
    assert [e.number for e in found] == list(range(EXPERIMENTS + 1)), "no gap, no double"
    assert all(e.phase is Phase.DECIDED and e.decision is not None for e in found)
    session, workspace = bench.store.session("t"), bench.workspace()
    for there, said in ((workspace.tip(), session.incumbent), (workspace.confirmed(), session.confirmed)):
        assert not workspace.diff(there, said), "git follows the journal"
    past = bench.store.confirmations(session.id)
    assert [c.verdict and c.verdict.outcome for c in past] == [Outcome.FELL, Outcome.CONFIRMED]
    if bench.task.history == "refs":
        assert bench.line()[1:] == [e.commit for e in found if e.confirmed and e.number], "confirmed commits only"
    for e in found:
        assert len(e.good_runs) == (3 if e.number == 0 else 1), "measured once"
        assert len({(run.seed, run.of, run.attempt) for run in e.runs if run.good}) == sum(run.good for run in e.runs)
        if e.commit and bench.task.history == "refs":
            assert bench.git("rev-parse", f"refs/autoresearch/t/{e.number}") == e.commit
    assert bench.git("status", "--porcelain") == ""
    assert bench.git("rev-parse", "--abbrev-ref", "HEAD") == "main"


class LuckyBench(Bench):
    """A session in which experiment 2 is kept for its luck on the seed of experiments, and falls."""

    def __init__(self, folder: Path, task: str) -> None:
        super().__init__(folder, task)
        self.job = lucky


def lucky(request: RunRequest) -> Script | str:
    unlucky = request.seed != derive_seed(7, 0, "run", 0)
    return "score: 1.5\n" if unlucky and "SCALE = 2.5" in program_of(request) else job(request)


def check_branch(bench: Bench) -> None:
    """At the very instant of a death the branch has a program that was confirmed."""
    at, workspace = bench.workspace().confirmed(), bench.workspace()
    confirmed = [e.commit for e in bench.experiments() if e.confirmed and e.commit] + [bench.session.base_commit]
    assert any(not workspace.diff(commit, at) for commit in confirmed)


def outcome(bench: Bench) -> list[tuple[Any, ...]]:
    """What must not depend on where the daemon died."""
    decided = [(e.number, e.decision.status, e.decision.value, e.confirmed) for e in bench.experiments() if e.decision]
    past = bench.store.confirmations(bench.session.id)
    runs = [[(r.seed, r.of, r.value) for r in c.runs if r.counts] for c in past]
    return [*decided, *((c.experiment, c.after, c.verdict, r) for c, r in zip(past, runs, strict=True))]


@pytest.fixture(params=["refs", "revert"])
def task(request: pytest.FixtureRequest) -> str:
    """A task whose keeps are confirmed at once, and whose noise makes some of them fall."""
    return TASK.replace("train.py}", f"train.py}}\nhistory: {request.param}").replace(
        "stdout}", "stdout, confirm_every: 0}"
    )


# An odd number, so that each part has instants before and after calls.
PARTS = [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, 93))]


# By day deaths are tried with one history, and failures with the other.
@pytest.mark.parametrize("task", [pytest.param("refs", marks=pytest.mark.nightly), "revert"], indirect=True)
@pytest.mark.parametrize("part", PARTS)
def test_death_at_any_instant_changes_nothing(tmp_path: Path, task: str, part: int) -> None:
    count = Doom(at=-1)
    reference = LuckyBench(tmp_path / "reference", task)
    run_until_killed(reference, count, EXPERIMENTS)
    check(reference)
    for at in range(1 + part, count.count + 1, len(PARTS)):
        bench = LuckyBench(tmp_path / str(at), task)
        assert run_until_killed(bench, Doom(at=at), EXPERIMENTS), f"instant {at}"
        check_branch(bench)
        run_until_killed(bench, Doom(at=-1), EXPERIMENTS)
        check(bench)
        assert outcome(bench) == outcome(reference), f"instant {at}"
        bench.close()
    reference.close()


class Hiccup(Doom):
    """A failure of the surroundings, at one call."""

    def instant(self, call: str, moment: str) -> None:
        try:
            super().instant(call, moment)
        except Killed:
            raise EnvironmentFailure(f"{moment} {call}: git is locked", hint="it passes") from None


@pytest.mark.parametrize("task", ["refs", pytest.param("revert", marks=pytest.mark.nightly)], indirect=True)
@pytest.mark.parametrize("part", PARTS)
def test_a_failure_of_disk_or_git_at_any_instant_changes_nothing(tmp_path: Path, task: str, part: int) -> None:
    count = Doom(at=-1)
    reference = LuckyBench(tmp_path / "reference", task)
    run_until_killed(reference, count, EXPERIMENTS)
    for at in range(1 + part, count.count + 1, len(PARTS)):
        bench = LuckyBench(tmp_path / str(at), task)
        with suppress(EnvironmentFailure):  # before the loop begins to wait such a thing out, the daemon ends
            run_until_killed(bench, Hiccup(at=at), EXPERIMENTS)
        run_until_killed(bench, Doom(at=-1), EXPERIMENTS)
        check(bench)
        assert outcome(bench) == outcome(reference), f"instant {at}"
        bench.close()
    reference.close()


class FirstAfter(Hiccup):
    """A failure of the first call of one kind after a call of another."""

    def __init__(self, first: str, then: str) -> None:
        super().__init__(at=1)
        self.first, self.then, self.seen = first, then, False

    def instant(self, call: str, moment: str) -> None:
        if self.seen and call == self.then:
            super().instant(call, moment)
        self.seen = self.seen or (call, moment) == (self.first, "after")


@pytest.mark.parametrize(("first", "then"), [(".record_decision", ".readings"), (".decide_confirmation", ".describe")])
def test_what_is_decided_and_not_taken_in_is_taken_from_the_journal(
    tmp_path: Path, task: str, first: str, then: str
) -> None:
    """Else a failure between the two makes a second baseline, or a session that does not end."""
    reference, bench = LuckyBench(tmp_path / "reference", task), LuckyBench(tmp_path / "failing", task)
    reference.run(EXPERIMENTS)
    run_until_killed(bench, failure := FirstAfter(first, then), EXPERIMENTS)
    assert failure.count, "it has failed"
    check(bench)
    assert outcome(bench) == outcome(reference)
    bench.close()
    reference.close()


# With reverts the first part of the instants above is tried by day.
@pytest.mark.parametrize("task", ["refs", pytest.param("revert", marks=pytest.mark.nightly)], indirect=True)
@pytest.mark.parametrize(
    ("first", "pace"), [(3, 2.0), *(pytest.param(first, 0.5, marks=pytest.mark.nightly) for first in (3, 7, 13, 29))]
)
def test_death_again_and_again_during_recovery_itself(tmp_path: Path, task: str, first: int, pace: float) -> None:
    """first: at which call the first life ends; pace: how many calls longer each life is than the one before."""
    bench = LuckyBench(tmp_path, task)
    deaths = 0
    while run_until_killed(bench, Doom(at=first + int(deaths * pace)), EXPERIMENTS):
        deaths += 1
        check_branch(bench)
        assert deaths < 1000
    check(bench)
    bench.close()


class AtVerdict(Doom):
    """Death once the second verdict, which confirms, is on disk, and before git follows it."""

    def instant(self, call: str, moment: str) -> None:
        if (call, moment) == (".decide_confirmation", "after"):
            super().instant(call, moment)


def test_a_branch_that_the_user_moved_before_a_verdict_was_carried_out_is_left_alone(tmp_path: Path, task: str) -> None:
    bench = LuckyBench(tmp_path, task)
    assert run_until_killed(bench, AtVerdict(at=2), EXPERIMENTS)
    mine = bench.git("commit-tree", "-m", "mine", "-p", "main", f"{bench.experiment(1).commit}^{{tree}}")
    bench.git("update-ref", "refs/heads/autoresearch/t", mine)
    with pytest.raises(RepositoryError, match=mine[:10]):
        bench.run(EXPERIMENTS)
    assert bench.workspace().confirmed() == mine
    bench.git("update-ref", "refs/heads/autoresearch/t", bench.experiment(0).commit)
    bench.run(EXPERIMENTS)
    check(bench)
    bench.close()
