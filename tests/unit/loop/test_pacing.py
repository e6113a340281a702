"""Runs get the time that the baseline shows them to need; a busy machine and a seed that is ignored are warned of."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.ports import EventKind, ResearchState, RunRequest
from autoresearchd.domain.task import WAITS_S, Budget
from autoresearchd.executor.gpus import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.sandbox.tiers import Tier
from tests.fakes.bench import PROGRAM, TASK, Bench, ByNumber, Writing, program_of
from tests.fakes.bench import job as scores
from tests.fakes.executors import Job, Script, TimedExecutor, prints
from tests.integration.local_jobs import TIERS

PATIENT = TASK.replace("budget: 5", "budget: 5, startup_grace: 100")
WORKS = """\
import os
import signal
import time
BUDGET = float(os.environ["AUTORESEARCHD_TIME_BUDGET"])
SCALE = 1.0
WORK = 0.3
HIDES = False
read, write = os.pipe()
if HIDES:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if not HIDES or os.fork() == 0:
    while time.process_time() < WORK:
        pass
    os.write(write, b"x")
    if HIDES:
        os._exit(0)
os.read(read, 1)
print(f"score: {(SCALE - 2.0) ** 2 + int(os.environ['AUTORESEARCHD_SEED']) % 7 * 1e-3:.6f}")
"""
READS = 'import os\nBUDGET = float(os.environ["AUTORESEARCHD_TIME_BUDGET"])\n' + PROGRAM


def taking(seconds: float, first: float | None = None) -> Job:
    """A job that takes so long; ``first``: the program as it was takes that."""

    def job(request: RunRequest) -> Script | str:
        as_it_was = "SCALE = 1.0" in program_of(request)
        took = first if first is not None and as_it_was else seconds
        return prints(str(scores(request)), duration_s=took, cpu_s=took)

    return job


def session(
    folder: Path,
    job: Job,
    values: Sequence[float],
    *,
    program: str = PROGRAM,
    task: str = PATIENT,
    restart: bool = False,
) -> list[Experiment]:
    bench = Bench(folder, task=task, program=program)
    bench.policy.values, bench.job = tuple(values), job
    if restart:
        bench.run(1)
        shutil.rmtree(bench.laboratory().site.runs)  # logs and results may be removed to free some room
    bench.run(len(values) - 1)
    return bench.experiments()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("program", "status", "label", "told"),
    [
        (READS, Status.CRASH, Label.BUDGET_OVERRUN, "the budget is 5 s"),
        (PROGRAM, Status.DISCARD, Label.CONSTRAINT, "took 40 s; the baseline takes 5.5 s and 6.88 s are allowed"),
    ],
    ids=["by its budget", "without a budget"],
)
def test_what_beats_the_best_by_training_for_longer_is_no_improvement(
    tmp_path: Path, program: str, status: Status, label: Label, told: str, restart: bool
) -> None:
    _, worse, better = session(tmp_path, taking(40.0, 5.5), (0.0, 4.0, 2.5), program=program, restart=restart)
    assert worse.decision.label is Label.NO_GAIN, "what it took does not matter: it is worse"
    assert (better.decision.status, better.decision.label) == (status, label)
    assert told in f"{better.decision.reason} {better.runs[-1].detail}"


def working(state: ResearchState) -> str:
    """A better SCALE that computes for 0.1 s, then better ones that compute for 1.5 s, the last of them unseen."""
    scale, work = ((1.0, 0.3), (1.5, 0.1), (1.8, 1.5), (1.9, 1.5))[state.number]
    text = WORKS.replace("HIDES = False", f"HIDES = {state.number == 3}")
    return re.sub(r"WORK = .*", f"WORK = {work}", re.sub(r"SCALE = .*", f"SCALE = {scale}", text))


def by_the_clock(request: RunRequest) -> float:
    """The program as it was takes 5.5 s, any other one 7.5 s."""
    return 5.5 if program_of(request) == WORKS else 7.5


@pytest.mark.parametrize("tier", TIERS[:: max(1, len(TIERS) - 1)])  # the best that there is, and none
def test_what_a_job_really_computed_tells_training_from_waiting(tier: Tier, tmp_path: Path) -> None:
    """By the clock all took as long; the one was kept waiting by the machine, the others trained on."""
    bench = Bench(tmp_path, task=PATIENT, program=WORKS)
    bench.policy = Writing(working)
    executor = LocalExecutor(tier=tier, devices=Devices())
    bench.loop(3, replace(bench.laboratory(), executor=TimedExecutor(executor, by_the_clock))).run()
    first, waited, trained, hid = bench.experiments()
    assert waited.decision.status is Status.KEEP
    assert trained.decision.label is hid.decision.label is Label.BUDGET_OVERRUN
    for experiment, work in ((first, 0.3), (waited, 0.1), (trained, 1.5)):
        for run in experiment.runs:
            if run.of is None:
                [stage] = bench.store.stages(run.id)
                assert work <= stage.cpu_s < work + 2.0, "what the job computed, and what begins and watches it"
    bench.close()


# ---------------------------------------------------------------------- the limits of a run
def budgets(
    folder: Path, execution: str, seconds: float, *, restart: bool = False, program: str = READS
) -> tuple[list[Budget], list[str]]:
    """The clock of the baseline's runs, once, and of each run after them, and what the user is warned of."""
    bench = Bench(folder, task=TASK.replace("budget: 5", execution), program=program)
    bench.job = taking(seconds)
    found: list[Budget] = []
    for experiments in (1, 2) if restart else (2,):
        lab = bench.laboratory()
        bench.loop(experiments, lab).run()
        found += [request.task.execution.budget for request in lab.executor.requests]
    assert {(budget.training, budget.grace) for budget in found} == {(15.0, 30.0)}
    runs, warnings = len(bench.experiment(0).runs), list(bench.messages(EventKind.WARNING))
    assert len(set(found[:runs])) == 1, "of the baseline's own runs nobody knows what this machine needs"
    return [found[0], *found[runs:]], warnings


@pytest.mark.parametrize("restart", [False, True])
def test_where_the_baseline_took_most_of_its_time_an_experiment_is_given_more(tmp_path: Path, restart: bool) -> None:
    found, [warning] = budgets(tmp_path, "budget: 15, startup_grace: 30", 37.6, restart=restart)
    assert found[0].wall == 15.0 + 3 * 45.0 and len(found) > 2
    assert {budget.wall for budget in found[1:]} == {15.0 + 3 * (37.6 - 15.0)}
    assert "the baseline took 38s of the 1m 00s" in warning and "execution.timeout" in warning


@pytest.mark.parametrize("timeout", [50, 60])  # also where it is the usual one
def test_a_limit_that_the_user_named_holds_and_is_told_to_be_short(tmp_path: Path, timeout: int) -> None:
    found, [warning] = budgets(tmp_path, f"budget: 15, startup_grace: 30, timeout: {timeout}", 37.6)
    assert {budget.wall for budget in found} == {float(timeout)}
    assert "raise execution.timeout in task.yaml to 83 or more" in warning


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("seconds", [4.0, 20.0])
def test_a_night_is_not_spent_on_runs_that_take_twenty_times_as_long_as_a_baseline_without_a_budget(
    tmp_path: Path, seconds: float, restart: bool
) -> None:
    found, [warning] = budgets(tmp_path, "budget: 15, startup_grace: 30", seconds, restart=restart, program=PROGRAM)
    assert found[0].limit == 45.0, "of the baseline nobody knows how long it takes"
    assert {(budget.most, budget.limit) for budget in found[1:]} == {(1.25 * seconds, 3.75 * seconds + WAITS_S)}
    assert all(budget.wall >= budget.limit + 15.0 for budget in found), "there is room for what follows it"
    assert f"it took {seconds:g} s, and a result that took over a quarter more is not kept" in warning


# ---------------------------------------------------------------------- a machine that has no time
class Machine:
    """Runs have these shares of a processor, one after the other, then all of it; half of it costs 1.0 of score."""

    def __init__(self, *shares: float) -> None:
        self._shares = list(shares)
        self.seeds: list[int] = []

    def __call__(self, request: RunRequest) -> Script | str:
        share = self._shares.pop(0) if self._shares else 1.0
        self.seeds.append(request.seed)
        score = float(str(scores(request)).removeprefix("score: ")) + 2.0 * (1.0 - share)
        return prints(f"score: {score}\n", duration_s=16.0, cpu_s=16.0 * share)


SLOW = TASK.replace("budget: 5", "budget: 15, startup_grace: 100")


def test_a_starved_run_of_the_baseline_is_made_again_with_its_seed(tmp_path: Path) -> None:
    """One slow baseline run would hide every gain of a session."""
    machine = Machine(1.0, 0.5)
    baseline, better = session(tmp_path, machine, (0.0, 2.5), task=SLOW)
    assert [run.label for run in baseline.runs] == [Label.NONE, Label.INTERRUPTED, Label.NONE, Label.NONE]
    assert "this machine was busy: 50% of a processor, where the same program had 100%" in baseline.runs[1].detail
    assert machine.seeds[1] == machine.seeds[2], "what it measured plays no part in it"
    assert len(baseline.good_runs) == 3
    assert better.decision.status is Status.KEEP


def test_a_machine_that_stays_busy_is_put_up_with(tmp_path: Path) -> None:
    """A night of runs that are made again and again would be worse than a slow one."""
    baseline, other = session(tmp_path, Machine(1.0, *[0.5] * 20), (0.0, 2.5), task=SLOW)
    assert [run.label for run in baseline.runs].count(Label.INTERRUPTED) == 2
    assert {baseline.phase, other.phase} == {Phase.DECIDED}


class Unlike(ByNumber):
    """No two proposals are the same program."""

    values = tuple(float(number) for number in range(100))


def test_noise_that_has_grown_is_warned_of_once_and_taken_back(tmp_path: Path) -> None:
    """Else all is discarded for hours, and the log does not say that hardly anything could have been kept."""
    bench, chance, spread = Bench(tmp_path), random.Random(6), 0.05
    bench.policy = Unlike()
    bench.job = lambda request: f"score: {1000 + chance.uniform(-spread, spread):.6f}\n"

    def warnings(experiments: int) -> list[str]:
        """Those of all daemons so far, when the session has so many experiments: each time by a daemon of its own."""
        bench.run(experiments)
        return [message for message in bench.messages(EventKind.WARNING) if "σ" in message]

    assert warnings(3) == []
    spread = 0.5
    warnings(20)
    told = warnings(24)
    assert len(told) == 1 and "when the baseline was first measured" in told[0], told
    spread = 0.05
    told = warnings(50)
    assert len(told) == 2 and "can be told again" in told[1], told


SEEDED = 'import os\nSEED = os.environ["AUTORESEARCHD_SEED"]\n' + PROGRAM


@pytest.mark.parametrize("ignores", [True, False])
def test_a_baseline_whose_seed_is_its_own_is_warned_of_and_not_said_to_be_without_noise(
    tmp_path: Path, ignores: bool
) -> None:
    """Else the luck of one seed is kept, and the reason assures the user that there is no luck."""
    bench = Bench(tmp_path, program=PROGRAM if ignores else SEEDED)
    bench.job = lambda request: scores(replace(request, seed=0))
    bench.run(2)
    warned = bench.messages(EventKind.WARNING)
    reasons = [e.decision.reason for e in bench.experiments()[1:] if e.decision]
    assert sum("does not read AUTORESEARCHD_SEED: no noise is seen" in said for said in warned) == ignores
    assert len(reasons) == 2
    assert all(("no noise seen: the program ignores AUTORESEARCHD_SEED" in said) is ignores for said in reasons)
    assert all(("the metric has no noise" in said) is not ignores for said in reasons)
