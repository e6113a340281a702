"""A run for which the machine had no time is made again: one slow baseline run would hide every gain of a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoresearchd.domain.experiment import Experiment, Limits
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.ports import RunRequest
from autoresearchd.loop.session import SessionLoop
from tests.fakes.bench import Bench
from tests.fakes.bench import job as scores
from tests.fakes.executors import Script, prints

TASK = """\
name: toy
workspace: {target_file: train.py}
execution: {run_command: python train.py, budget: 15, startup_grace: 100}
scoring: {metric: score, direction: minimize, metric_source: stdout}
"""


class Machine:
    """Runs have these shares of a processor, one after the other, then all of it; half of it costs 1.0 of score."""

    def __init__(self, *shares: float) -> None:
        self._shares = list(shares)
        self.seeds: list[int] = []

    def __call__(self, request: RunRequest) -> Script | str:
        log = scores(request)
        assert isinstance(log, str)
        share = self._shares.pop(0) if self._shares else 1.0
        self.seeds.append(request.seed)
        score = float(log.removeprefix("score: ")) + 2.0 * (1.0 - share)
        return prints(f"score: {score}\n", duration_s=16.0, cpu_s=16.0 * share)


def session(folder: Path, machine: Machine, values: Sequence[float] = (0.0, 2.5)) -> list[Experiment]:
    bench = Bench(folder, task=TASK)
    bench.policy.values = tuple(values)
    bench.job = machine
    SessionLoop(bench.laboratory(), Limits(max_experiments=len(values) - 1)).run()
    found = bench.experiments()
    bench.close()
    return found


def test_a_starved_run_of_the_baseline_is_made_again_with_its_seed(tmp_path: Path) -> None:
    machine = Machine(1.0, 0.5)
    baseline, better = session(tmp_path, machine)
    assert [run.label for run in baseline.runs] == [Label.NONE, Label.INTERRUPTED, Label.NONE, Label.NONE]
    assert "this machine was busy: 50% of a processor, where the same program had 100%" in baseline.runs[1].detail
    assert machine.seeds[1] == machine.seeds[2], "what it measured plays no part in it"
    assert len(baseline.good_runs) == 3
    assert better.decision is not None
    assert better.decision.status is Status.KEEP


def test_a_machine_that_stays_busy_is_put_up_with(tmp_path: Path) -> None:
    """A night of runs that are made again and again would be worse than a slow one."""
    baseline, other = session(tmp_path, Machine(1.0, *[0.5] * 20))
    assert [run.label for run in baseline.runs].count(Label.INTERRUPTED) == 2
    assert {baseline.phase, other.phase} == {Phase.DECIDED}
