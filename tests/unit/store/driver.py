"""Takes a store through the life of experiments, with data that fills every field: for tests."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from autoresearchd.domain.confirmation import Confirmation
from autoresearchd.domain.experiment import Decision, Experiment, Limits, Measurement, RunResult, StageResult
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.shared import Shared

Where = Path | Shared
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PARENT = "a" * 40
TASK = (
    '{"name": "toy", "scoring": {"metric": "val_bpb", "direction": "minimize", "source": "evaluator"},'
    ' "execution": {"budget": 300}}'
)
GENERATION = Generation(
    ({"role": "user", "content": "improve this"},), "<edit>", (1, 2, 151_000), (-0.1, -2.5, -1e-9),
    sampling={"temperature": 0.7}, model_hash="m", tokenizer_hash="t", template_hash="c", adapter="v3",
)  # fmt: skip


def new_session(tag: str = "nov21") -> NewSession:
    return NewSession(
        tag=tag, branch=f"autoresearch/{tag}", task_json=TASK, policy="search", executor="local", base_commit=PARENT,
        seed=2**31 - 1, limits=Limits(max_experiments=40, max_seconds=3600.5, max_usd=1.25),
    )  # fmt: skip


def new_proposal(number: int = 1, *, attempt: int = 0, usd: float | None = 0.25) -> Proposal:
    return Proposal(
        files={"train.py": f"LR = {number}\n", "модель.py": "x = 'é'\n"}, hypothesis=f"learning rate {number}",
        policy="search", description=f"LR → {number}", expected_delta=0.01, changes={"LR": number, "depth": [4, 6]},
        role="optimizer", adapter="v3", asi=ASI(hypothesis="warm up longer", extra={"risk": 0.5}),
        cost=Cost(usd, 100, 20, 1.5), generation=GENERATION, state_id=f"s{number}", round_id=f"r{number}",
        attempt=attempt,
    )  # fmt: skip


def result(device: str = "cpu", exit_code: int = 0) -> RunResult:
    """What an executor gives for a run of ten seconds."""
    outcome = "ok" if exit_code == 0 else "failed"
    stages = (StageResult("training", outcome, exit_code, 9.0, "runs/1/training.log", 120.0),)
    return RunResult(stages=stages, duration_s=10.0, tier="bubblewrap", host="here", device=device)


def begin(store: SqlStore) -> Driver:
    """A session with its first segment."""
    session = store.create_session(new_session(), AT)
    store.open_segment(session.id, "f0", "start", "cpu", AT)
    return Driver(store, session.id)


def execute(path: Path, statement: str, *values: object) -> None:
    """Change a database as another program would."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


def opened_at_once(open_one: Callable[[int], int]) -> list[int]:
    """Numbers of the experiments that four threads open together, ten each. open_one: by the number of the thread."""
    barrier = threading.Barrier(4)

    def work(n: int) -> list[int]:
        barrier.wait()
        return [open_one(n) for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        return sorted(n for found in pool.map(work, range(4)) for n in found)


def commit_of(number: int) -> str:
    return f"{number:040x}"


class Driver:
    """Takes experiments through their phases, as the loop does."""

    def __init__(self, store: SqlStore, session_id: int) -> None:
        self.store, self.id = store, session_id

    def open(self, segment: int = 0) -> Experiment:
        return self.store.open_experiment(self.id, parent=PARENT, segment=segment, at=AT)

    def propose(self, e: Experiment, proposal: Proposal | None = None) -> Experiment:
        proposal = proposal or new_proposal(e.number)
        return self.store.record_proposal(
            self.id, e.number, proposal, diff=f"+LR = {e.number}\n", code_hash=f"h{e.number}"
        )

    def run(self, e: Experiment, measurement: Measurement, *, last: bool = True, device: str = "cpu") -> Experiment:
        run = self.store.open_run(self.id, e.number, 7, AT)
        return self.store.close_run(run.id, measurement, result(device), AT + timedelta(seconds=10), last=last)

    def commit(self, e: Experiment) -> Experiment:
        return self.store.record_commit(self.id, e.number, commit_of(e.number))

    def committed(self, segment: int = 0) -> Experiment:
        return self.commit(self.propose(self.open(segment)))

    def answer(self, e: Experiment, answer: Answer) -> None:
        self.store.record_answer(self.id, e.number, answer, AT)

    def measured(self, value: float | None = 1.0, segment: int = 0) -> Experiment:
        return self.run(self.committed(segment), Measurement(Label.NONE, value))

    def baseline(self, values: tuple[float, ...] = (1.0, 1.02, 0.98), segment: int = 0) -> Experiment:
        e = self.commit(self.propose(self.open(segment), Proposal({}, "as it is", "baseline")))
        for value in values:
            e = self.run(e, Measurement(Label.NONE, value), last=value == values[-1])
        kept = Decision(Status.KEEP, Label.NONE, fmean(values))
        return self.decide(e, kept, commit_of(e.number), confirmed=True)

    def decide(
        self, e: Experiment, decision: Decision, incumbent: str | None = None, *, confirmed: bool = False
    ) -> Experiment:
        asi = ASI(hypothesis="because", result="it did", extra={"k": [1]})
        return self.store.record_decision(
            self.id, e.number, decision, asi, AT, incumbent=incumbent, confirmed=confirmed
        )

    def begin_confirmation(self, experiment: int, against: int = 0) -> Confirmation:
        return self.store.open_confirmation(self.id, experiment=experiment, against=against, why="gain", at=AT)

    def confirm(self, number: int, *runs: tuple[int | None, int, float], device: str = "cpu") -> Confirmation:
        """Runs of a confirmation: of which program, on which seed, with which value."""
        for of, seed, value in runs:
            run = self.store.open_confirmation_run(self.id, number, seed, AT, of=of)
            found = self.store.close_confirmation_run(run.id, Measurement(Label.NONE, value), result(device), AT)
        return found

    def decided(self, status: Status, value: float | None, segment: int = 0) -> Experiment:
        label = {
            Status.KEEP: Label.NONE,
            Status.DISCARD: Label.NO_GAIN,
            Status.CRASH: Label.ERROR,
            Status.CHECKS_FAILED: Label.METRIC_TAMPERING,
        }[status]
        e = self.measured(value, segment)
        incumbent = commit_of(e.number) if status is Status.KEEP else None
        return self.decide(e, Decision(status, label, value), incumbent)


SYSTEM = {"role": "system", "content": "You do research. " * 500}


def new_answer(
    *messages: dict[str, Any], completion: str = "<edit>", usd: float | None = 0.5, error: str = "", attempt: int = 0
) -> Answer:
    generation = replace(GENERATION, messages=messages or (SYSTEM, *GENERATION.messages), completion=completion)
    form = "" if error else "search_replace"
    return Answer("some/model", Cost(usd, 1000, 200, 2.5), generation, error, form, "stop", attempt)


def asked_again(answer: Answer, *more: dict[str, Any], **changed: Any) -> Answer:
    """The next answer of a conversation: all that was said so far, and then ``more``."""
    said = {"role": "assistant", "content": answer.generation.completion}
    return new_answer(*map(dict, answer.generation.messages), said, *more, completion="<better>", **changed)
