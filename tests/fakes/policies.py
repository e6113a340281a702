"""Fakes for what policies need and for policies themselves: deterministic, in memory, no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autoresearchd.domain.errors import Interrupted, PolicyError
from autoresearchd.domain.experiment import Trial
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.domain.task import Budget, Direction, Execution, Metric, MetricSource, Scoring, Task

Step = str | Mapping[str, str] | Proposal | Exception
"""One answer of a scripted policy: text of the first editable file, texts by path, a whole proposal, or an error."""


class ScriptedPolicy:
    """Gives the steps of a script in order, one for each call; after the last it has no proposal (label ``no_op``).

    Args:
        steps: what it answers.
        name: its name.
        changes: machine-readable changes of each step, where a test needs them.
        skip: how many steps were used before, for a policy that is made again after a restart.
        repairs: how often it is given back a proposal that failed; the next step is then the repair.
    """

    def __init__(
        self,
        steps: Iterable[Step],
        *,
        name: str = "scripted",
        changes: Sequence[Mapping[str, object]] = (),
        skip: int = 0,
        repairs: int = 0,
    ) -> None:
        self._steps, self._changes, self._used = list(steps), list(changes), skip
        self._name, self.repairs = name, repairs
        self.states: list[ResearchState] = []

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    @property
    def used(self) -> int:
        """How many steps have been given."""
        return self._used

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """The next step; the states that it was shown are kept in ``states``."""
        if cancel.is_set():
            raise Interrupted("the script was asked to stop")
        self.states.append(state)
        if self._used >= len(self._steps):
            raise PolicyError("the script has no further step", label=Label.NO_OP)
        index = self._used
        self._used += 1
        step = self._steps[index]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Proposal):
            return step
        files = {state.task.editable[0]: step} if isinstance(step, str) else dict(step)
        hypothesis = f"step {index + 1} of the script may help"
        return Proposal(
            files=files,
            hypothesis=hypothesis,
            policy=self._name,
            description=f"step {index + 1}",
            changes=self._changes[index] if index < len(self._changes) else {},
            asi=ASI(hypothesis=hypothesis),
            role=state.role,
            state_id=state.state_id,
            round_id=state.round_id,
        )


class MemoryHistory:
    """Trials in a list, as a store would give them."""

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self.items = list(trials)

    def add(self, trial: Trial) -> None:
        """Append a decided experiment."""
        self.items.append(trial)

    def trials(self, after: int = -1) -> Sequence[Trial]:
        """As the port says."""
        if after < 0:
            return list(self.items)
        found: list[Trial] = []
        for trial in reversed(self.items):
            if trial.number <= after:
                break
            found.append(trial)
        return found[::-1]


def make_task(
    *,
    editable: tuple[str, ...] = ("train.py",),
    protected: tuple[str, ...] = ("prepare.py",),
    direction: Direction = Direction.MINIMIZE,
    profile: str = "cpu",
) -> Task:
    """A small task."""
    return Task(
        name="toy",
        editable=editable,
        execution=Execution("python train.py", Budget(training=10.0, grace=5.0, wall=30.0)),
        scoring=Scoring(Metric("val_loss", direction), MetricSource.STDOUT),
        protected=protected,
        profile=profile,
    )


def make_state(
    code: str | Mapping[str, str],
    *,
    number: int = 1,
    seed: int = 1,
    task: Task | None = None,
    parent: str = "0" * 40,
    baseline: float | None = 1.0,
    incumbent_value: float | None = 1.0,
    sigma: float | None = None,
) -> ResearchState:
    """A research state around one file (or several)."""
    files = {"train.py": code} if isinstance(code, str) else dict(code)
    return ResearchState(
        tag="toy",
        number=number,
        parent=parent,
        task=task or make_task(editable=tuple(files)),
        code=files,
        baseline=baseline,
        incumbent_value=incumbent_value,
        sigma=sigma,
        seed=seed,
    )
