"""Fakes for what policies need and for policies themselves: deterministic, in memory, no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoresearchd.domain.errors import Interrupted, PolicyError
from autoresearchd.domain.experiment import Trial
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import Cancel, ResearchState
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.task import Budget, Direction, Execution, Metric, MetricSource, Scoring, Task

Step = str | Mapping[str, str] | Proposal | Exception
"""One answer of a scripted policy: text of the first editable file, texts by path, a whole proposal, or an error."""


class ScriptedPolicy:
    """Gives the steps of a script in order, one for each call; after the last it has no proposal (label ``no_op``)."""

    def __init__(self, steps: Iterable[Step], *, name: str = "scripted", repairs: int = 0) -> None:
        self._steps, self.name, self.repairs, self.used = list(steps), name, repairs, 0

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        if cancel.is_set():
            raise Interrupted("the script was asked to stop")
        if self.used >= len(self._steps):
            raise PolicyError("the script has no further step", label=Label.NO_OP)
        step = self._steps[self.used]
        self.used += 1
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Proposal):
            return step
        files = {state.task.editable[0]: step} if isinstance(step, str) else dict(step)
        hypothesis = f"step {self.used} of the script may help"
        turn = {"role": state.role, "state_id": state.state_id, "round_id": state.round_id}
        return Proposal(files, hypothesis, self.name, f"step {self.used}", asi=ASI(hypothesis=hypothesis), **turn)


class MemoryHistory:
    """Trials in a list, as a store would give them."""

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self.items = list(trials)

    def add(self, trial: Trial) -> None:
        self.items.append(trial)

    def trials(self, after: int = -1) -> Sequence[Trial]:
        return [trial for trial in self.items if trial.number > after]


def make_task(*, direction: Direction = Direction.MINIMIZE, **fields: Any) -> Task:
    """A task. fields: what it has beside the usual, or in its place."""
    usual = {
        "name": "toy",
        "editable": ("train.py",),
        "execution": Execution("python train.py", Budget(training=10.0, grace=5.0, wall=30.0)),
        "scoring": Scoring(Metric("val_loss", direction), MetricSource.STDOUT),
        "protected": ("prepare.py",),
    }
    return Task(**{**usual, **fields})


def make_state(code: str | Mapping[str, str], **fields: Any) -> ResearchState:
    """A state. fields: what it has beside the usual, or in its place; task: None is one that edits the code's files."""
    files = {"train.py": code} if isinstance(code, str) else dict(code)
    fields["task"] = fields.get("task") or make_task(editable=tuple(files))
    usual = {"tag": "toy", "number": 1, "parent": "0" * 40, "baseline": 1.0, "incumbent_value": 1.0, "seed": 1}
    return ResearchState(code=files, **{**usual, **fields})
