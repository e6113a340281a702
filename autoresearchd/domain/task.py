"""A task, ready to run: its metric, and task.yaml after validation and the choice of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, Self


class Direction(StrEnum):
    """Whether a smaller or a larger value of the metric is better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class MetricSource(StrEnum):
    """Who computed the metric: the evaluator's own command, or the job itself (then it is *self-reported*)."""

    EVALUATOR = "evaluator"
    STDOUT = "self-reported"


@dataclass(frozen=True, slots=True)
class Metric:
    """The metric that a task optimises."""

    name: str
    direction: Direction

    def improvement(self, value: float, reference: float) -> float:
        """How much better ``value`` is than ``reference`` (positive: better), in units of the metric."""
        return reference - value if self.direction is Direction.MINIMIZE else value - reference

    def better(self, value: float, reference: float) -> bool:
        """Whether ``value`` is strictly better than ``reference``."""
        return self.improvement(value, reference) > 0


TrainingTime = Literal["auto", "budget", "baseline"]
SLOWER = 3.0
"""How much longer by the clock a machine that does other work as well may take for the same work."""
WAITS_S = 5.0
"""Seconds that a busy machine may keep a program waiting, however short it is."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Clock of one run, in seconds. training: what the job is told it has; wall: hard end of the whole run.

    grace: loading and compilation on top of training. most: training of a result that is kept, where it is held to the
    baseline's own time.
    """

    training: float
    grace: float
    wall: float
    most: float | None = None

    @property
    def limit(self) -> float:
        """After how many seconds training is ended."""
        return self.training + self.grace if self.most is None else SLOWER * self.most + WAITS_S

    @staticmethod
    def usual_wall(training: float, grace: float) -> float:
        """The hard end of a run for which none was named."""
        return 2 * training + grace


@dataclass(frozen=True, slots=True)
class Check:
    """A command that must succeed before a result may be kept."""

    command: str
    timeout: float = 300.0


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on a metric: absolute (``max``, ``min``), or a share above the confirmed program's (``max_increase``)."""

    metric: str
    max: float | None = None
    min: float | None = None
    max_increase: float | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """How the job of a task is run.

    timeout_named: the user wrote the budget's ``wall`` down. training_time: what training is held to; auto: the
    baseline's own time where the program does not end by its budget.
    """

    run_command: str
    budget: Budget
    setup_commands: tuple[str, ...] = ()
    python: str | None = None
    needs_gpu: bool = False
    memory_mb: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    timeout_named: bool = False
    training_time: TrainingTime = "auto"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluator's own command; ``model_command`` starts the process that serves the edited model to it.

    private: files that only the evaluation may read; hide: further places that a job must not see ({purelib} …).
    """

    command: str
    model_command: str | None = None
    private: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    timeout: float = 600.0


@dataclass(frozen=True, slots=True)
class Curve:
    """How points of the learning curve are found in the log, and how often the run is looked at (seconds)."""

    pattern: str = "auto"
    check_every: float = 30.0
    abort: bool = True


@dataclass(frozen=True, slots=True)
class Scoring:
    """Which numbers count. min_delta: a smaller gain is none; None: 1e-4 of the best value without noise, else any.

    confirm_every: how much is believed to have been gained, in σ, when the tip is confirmed; 0: after each keep.
    """

    metric: Metric
    source: MetricSource
    parse_mode: str = "auto"
    pattern: str | None = None
    result_file: str | None = None
    metrics: tuple[str, ...] = ()
    display_metrics: tuple[str, ...] = ()
    degradation_threshold: float = 0.05
    reference: float | None = None
    constraints: tuple[Constraint, ...] = ()
    min_delta: float | None = None
    confirm_every: float = 40.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """The task's own words to a policy; ``instance`` may use {target_file}, {code_lang} and {file_content}."""

    system: str = ""
    instance: str = ""
    code_lang: str = "python"
    file_marker: str = "## Current {target_file}"


@dataclass(frozen=True, slots=True)
class Role:
    """A specialist: a part of the recipe that is its own."""

    name: str
    surface: str = ""
    instructions: str = ""


@dataclass(frozen=True, slots=True)
class Proposing:
    """How proposals are made. parents: ``incumbent`` or ``puct``; turns of roles: ``round_robin`` or ``bandit``."""

    group: int = 1
    parents: str = "incumbent"
    turns: str = "round_robin"


@dataclass(frozen=True, slots=True)
class Search:
    """What the user says of the constants that are tuned, by their names, with or without the file."""

    fixed: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    choices: Mapping[str, tuple[int | float | str | bool, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemoteSlot:
    """One place on a machine reached by ssh. host: ``[user@]name``; gpu_id: one of its GPUs, or some (``0,1``)."""

    host: str
    gpu_id: str
    name: str
    remote_dir: str


@dataclass(frozen=True, slots=True)
class Cloud:
    """Machines to rent, all alike. accelerators: ``H100:8`` or the like; infra: where, None: wherever it is cheapest.

    max_hourly_cost: of one machine, in US dollars. idle_minutes: after which one that nothing runs on is ended. setup:
    shell commands for each new machine, before anything else.
    """

    machines: int = 1
    accelerators: str | None = None
    instance_type: str | None = None
    cpus: str | None = None
    memory: str | None = None
    disk_gb: int | None = None
    image: str | None = None
    infra: str | None = None
    use_spot: bool = False
    max_hourly_cost: float | None = None
    idle_minutes: int = 10
    setup: tuple[str, ...] = ()
    remote_dir: str = "~"

    @property
    def gpus(self) -> int:
        """Of one machine."""
        return int(self.accelerators.partition(":")[2] or 1) if self.accelerators else 0


@dataclass(frozen=True, slots=True)
class Task:
    """What to optimise. Paths are POSIX, relative to ``source_dir``, and never leave it (but for ``data``)."""

    name: str
    editable: tuple[str, ...]
    execution: Execution
    scoring: Scoring
    protected: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    evaluation: Evaluation | None = None
    checks: tuple[Check, ...] = ()
    curve: Curve = field(default_factory=Curve)
    prompt: Prompt = field(default_factory=Prompt)
    feedback: Mapping[str, str] = field(default_factory=dict)
    roles: tuple[Role, ...] = ()
    proposing: Proposing = field(default_factory=Proposing)
    search: Search = field(default_factory=Search)
    profile: str = "cpu"
    history: str = "refs"
    """``refs``: discards live under refs/autoresearch; ``revert``: they and their reverts come before the next keep."""
    source_dir: str = "."
    """Folder of the files above, relative to the folder of task.yaml."""
    remote_slots: tuple[RemoteSlot, ...] = ()
    cloud: Cloud | None = None
    max_compressed: int | None = None
    """Bytes that the editable files may have together once compressed; None: as many as they like."""

    @property
    def metric(self) -> Metric:
        """The metric that decides."""
        return self.scoring.metric

    def lasting(self, training: float | None) -> Self:
        """This task with so many seconds of training (None: its own), and room for what comes on top of it."""
        budget, execution = self.execution.budget, self.execution
        if training is None:
            return self
        more = training - budget.training
        wall = max(training + budget.grace, budget.wall + (2.0 * more if more > 0 else more))
        return replace(self, execution=replace(execution, budget=Budget(training, budget.grace, wall)))
