"""Early abort in the loop: hopeless runs end early and are recorded as such; nothing else is ever ended."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import EventKind, RunRequest
from autoresearchd.loop.context import Context
from autoresearchd.loop.early_abort import EarlyAbort, LogFollower
from autoresearchd.loop.session_view import SessionView
from autoresearchd.store.reader import Reader
from tests.fakes.bench import TASK, Bench, program_of
from tests.fakes.executors import Script

GOOD = tuple(3.6 - 0.11 * k for k in range(13))
HOPELESS = 9.0
VALUES = (HOPELESS, *GOOD)
"""Of the experiments 0 (not used), 1, …; of the last, whose number is their count, it is the first again."""
POINTS = 50


def final(scale: float) -> float:
    return 1.0 + (scale - 2.0) ** 2


def log_lines(scale: float, seed: int) -> list[str]:
    """A curve that falls to the program's value, in the form that karpathy's train.py prints."""
    lines = []
    for i in range(1, POINTS + 1):
        share = i / POINTS
        wobble = 0.002 * math.sin(17.0 * i + seed % 5)
        loss = final(scale) + 2.0 * (1.0 - share) ** 2 / (0.2 + share) + wobble
        lines.append(f"step {i:05d} ({100 * share:.1f}%) | loss: {loss:.6f} | dt: 1ms\n")
    return lines


class Ticking:
    """A clock that goes on by a tenth of a second whenever somebody looks at it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        self.seconds += 0.1
        return self.seconds


def job(request: RunRequest) -> Script | str:
    found = re.search(r"SCALE = (.*)", program_of(request))
    scale = float(found[1])
    score = final(scale) + (request.seed % 7) * 1e-3
    lines = log_lines(scale, request.seed)
    pieces = ["".join(lines[i : i + 5]) for i in range(0, POINTS, 5)]
    return Script(pieces=[*pieces, f"score: {score:.6f}\n"])


def made(tmp_path: Path, task: str = TASK) -> Bench:
    bench = Bench(tmp_path, task=task, program="SCALE = 3.7\n")
    bench.policy.values, bench.job = VALUES, job
    return bench


def run(bench: Bench, experiments: int) -> None:
    bench.loop(experiments, replace(bench.laboratory(), clock=Ticking())).run()


def by_label(bench: Bench, label: Label) -> list[Experiment]:
    return [e for e in bench.experiments() if e.decision and e.decision.label is label]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A session of which the last run was hopeless."""
    bench = made(tmp_path_factory.mktemp("watched"))
    run(bench, len(VALUES))
    return bench


def test_a_hopeless_run_is_ended_early_and_recorded_with_its_forecast(watched: Bench) -> None:
    bench = watched
    (e,) = by_label(bench, Label.ABORTED_EARLY)
    assert e.number == len(VALUES)
    assert e.decision.status is Status.DISCARD and e.decision.value is None
    low, mean, high = (e.decision.metrics[name] for name in ("forecast_low", "forecast", "forecast_high"))
    assert mean == pytest.approx(final(HOPELESS), abs=0.01) and low < mean < high
    assert e.decision.delta < -10
    assert "bar" in e.decision.reason and "%" in e.decision.reason
    assert bench.workspace().confirmed() == bench.store.session("t").incumbent
    looks = bench.store.looks(e.runs[0].id)
    assert [look["abort"] for look in looks] == [False] * (len(looks) - 1) + [True]
    assert looks[-1]["probability"] > 0.99 and looks[-1]["progress"] < 0.6


def test_a_program_that_ends_long_before_its_budget_and_logs_no_progress_is_ended_early_too(tmp_path: Path) -> None:
    """Spread over the budget, a run under way would look better than all that have ended, up to its last line."""
    bench, clock = (
        made(tmp_path, task=TASK.replace("budget: 5", "budget: 100") + "curve: {check_every: 1}\n"),
        Ticking(),
    )

    def passing() -> None:
        clock.seconds += 2.0

    def short(request: RunRequest) -> Script | str:
        script = job(request)
        assert isinstance(script, Script)
        pieces = [re.sub(r"step (\d+) \(.*?\) \| loss: (\S+) \| dt: 1ms", r"iter \1: loss \2, time 1.00ms", piece)
                  for piece in script.pieces]  # fmt: skip
        return replace(script, pieces=pieces, stage={"duration_s": 24.0}, passing=passing)

    bench.job = short
    bench.loop(len(VALUES), replace(bench.laboratory(), clock=clock)).run()
    assert [e.number for e in by_label(bench, Label.ABORTED_EARLY)] == [len(VALUES)]


def test_status_and_show_tell_what_was_ended_and_why(watched: Bench) -> None:
    with Reader(watched.state / "state.db") as reader:
        abort = reader.status("t")["abort"]
        shown = reader.show("t", len(VALUES))
    assert abort["aborted"] == 1
    assert abort["throughput_gain"] > 1.0
    assert 0.0 < abort["false_abort_limit"] <= 1.0
    assert shown["looks"][-1]["sentence"].startswith("at ")


def test_only_the_first_run_of_a_proposed_experiment_is_looked_at(watched: Bench) -> None:
    again = 0
    for e in watched.experiments():
        for r in e.runs:
            first = e.number > 0 and r.index == 0
            again += not first
            assert bool(watched.store.looks(r.id)) == first, (e.number, r.index)
    assert again > 3, "the baseline's runs, and some that were made again"


def test_a_task_can_switch_it_off(tmp_path: Path) -> None:
    bench = made(tmp_path, task=TASK + "curve: {abort: false}\n")
    run(bench, len(VALUES))
    assert not by_label(bench, Label.ABORTED_EARLY)
    assert all(not bench.store.looks(r.id) for e in bench.experiments() for r in e.runs)
    assert bench.store.abort_memory(bench.session.id) is None


def test_a_daemon_that_starts_anew_knows_all_that_the_last_one_learned(tmp_path: Path) -> None:
    whole, cut = made(tmp_path / "whole"), made(tmp_path / "cut")
    run(whole, len(VALUES))
    for experiments in (5, 11):
        stopped = replace(cut.laboratory(), clock=Ticking())
        loop = cut.loop(None, stopped)

        def stop(enough: object, experiments: int = experiments, lab: Context = stopped) -> None:
            if len(cut.experiments()) > experiments:  # at once: what ends in order confirms first
                lab.stop.request("enough", now=True)

        loop.between = stop
        loop.run()
    run(cut, len(VALUES))
    known = [[(e.number, e.decision.label, e.decision.metrics) for e in b.experiments() if e.decision]
             for b in (whole, cut)]  # fmt: skip
    assert known[0] == known[1]
    states = [EarlyAbort(SessionView(bench.laboratory()))._learned().to_state() for bench in (whole, cut)]
    for state in states:
        state.pop("delta")  # σ: the one that was cut off has confirmed what it had kept by then
    assert states[0] == states[1]
    assert states[0]["observed"] == 1 + len(VALUES)


def broken(*_: object) -> Any:
    raise ValueError("it is broken")


def test_a_look_that_fails_ends_nothing_and_is_reported(tmp_path: Path) -> None:
    bench = made(tmp_path)
    bench.store.abort_memory = broken  # type: ignore[method-assign]
    run(bench, len(VALUES))
    decided = [e for e in bench.experiments() if e.decision]
    assert len(decided) == 1 + len(VALUES) and not by_label(bench, Label.ABORTED_EARLY)
    faults = [event for event in bench.events.events if event.kind is EventKind.FAULT]
    assert len(faults) == 3, "then it is off"
    assert "it is broken" in faults[0].message and "Traceback" in faults[0].data["traceback"]
    assert "off until the daemon starts anew" in faults[-1].message


def dying(request: RunRequest) -> Script | str:
    """As ``job``, but a program with SCALE = 9 has no loss from a third of the budget on, and never ends."""
    script = job(request)
    assert isinstance(script, Script)
    if "SCALE = 9" not in program_of(request):
        return script
    lines = [line if i < 17 else re.sub(r"loss: \S+", "loss: nan", line) for i, line in enumerate(log_lines(2.0, 1))]
    return replace(script, pieces=["".join(lines[i : i + 5]) for i in range(0, 45, 5)], hang=True)


def test_a_loss_that_is_no_number_any_more_ends_the_run_as_the_crash_that_it_is(tmp_path: Path) -> None:
    bench = made(tmp_path)
    bench.job = dying
    run(bench, len(VALUES))
    (e,) = by_label(bench, Label.NAN_LOSS)
    assert e.number == len(VALUES) and e.decision is not None
    assert e.decision.status is Status.CRASH and e.decision.delta is None and not e.decision.metrics
    assert e.decision.reward == -2.0


def test_a_log_that_is_no_file_is_an_error_and_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "training.log")
    with pytest.raises(OSError, match="plain file"):
        LogFollower(tmp_path / "training.log", "auto", 5.0).read()


@pytest.mark.parametrize("rotated", [False, True])
def test_the_log_is_followed_across_pieces_and_rotation(tmp_path: Path, rotated: bool) -> None:
    log = tmp_path / "training.log"
    lines = log_lines(2.5, 1)
    follower = LogFollower(log, "auto", 5.0)
    follower.read()
    assert follower.curve(0.5) == ([], [])
    text = "".join(lines[:20])
    log.write_text(text[:-7])
    follower.read()
    with log.open("a") as more:
        more.write(text[-7:])
    if rotated:
        log.rename(tmp_path / "training.log.1")
    with log.open("a") as more:
        more.write("".join(lines[20:]))
    follower.read()
    steps, losses = follower.curve(1.0)
    follower.close()
    assert len(steps) == len(losses) == POINTS
    assert steps[-1] == pytest.approx(1.0) and steps == sorted(steps)
