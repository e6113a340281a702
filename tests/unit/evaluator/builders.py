"""Tasks, runs and experiments for the evaluator's tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from autoresearchd.domain.experiment import Decision, Experiment, Run, RunResult, StageResult
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.task import (
    Budget,
    Constraint,
    Direction,
    Evaluation,
    Execution,
    Metric,
    MetricSource,
    Scoring,
    Task,
)

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def scoring(
    metric: str = "val_bpb",
    direction: Direction = Direction.MINIMIZE,
    *,
    constraints: tuple[Constraint, ...] = (),
    metrics: tuple[str, ...] = ("peak_vram_mb",),
    **more: Any,
) -> Scoring:
    source = MetricSource.STDOUT
    return Scoring(Metric(metric, direction), source, constraints=constraints, metrics=metrics, **more)


def task(score: Scoring | None = None, *, evaluated: bool = False, **more: Any) -> Task:
    execution = Execution("python train.py", Budget(training=300, grace=60, wall=660))
    evaluation = Evaluation("python evaluate.py") if evaluated else None
    return Task("toy", ("train.py",), execution, score or scoring(), evaluation=evaluation, **more)


def stage(name: str = "training", outcome: str = "ok", exit_code: int | None = 0, detail: str = "") -> StageResult:
    return StageResult(name, outcome, exit_code, 12.0, f"/runs/{name}.log", detail=detail)


def result(*stages: StageResult) -> RunResult:
    return RunResult(stages, 12.0, "none")


def run(
    value: float | None, label: Label = Label.NONE, metrics: Mapping[str, float] | None = None, detail: str = ""
) -> Run:
    return Run(1, 1, 0, 7, WHEN, WHEN, label, value, metrics or {}, 10.0, 0, detail=detail)


def experiment(*runs: Run, number: int = 1, decision: Decision | None = None) -> Experiment:
    return Experiment(1, number, 0, Phase.MEASURED, "0" * 40, WHEN, runs=runs, decision=decision)


def incumbent(*values: float, metrics: Mapping[str, float] | None = None) -> Experiment:
    decision = Decision(Status.KEEP, Label.NONE, sum(values) / len(values), metrics=metrics or {})
    return experiment(*(run(v, metrics=metrics) for v in values), number=0, decision=decision)
