"""task.yaml as pydantic models: its keys, their kinds and defaults, and which of them go together.

A superset of the schema of autoresearch-distillation (https://github.com/SilenNaihin/autoresearch-distillation,
``task_config.py``), whose files load unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from autoresearchd.config.fields import (
    Bounds,
    Choices,
    Command,
    Conflict,
    Count,
    CrashPattern,
    CurvePattern,
    DataPath,
    Environment,
    Flag,
    FolderPath,
    GroupSize,
    HiddenPath,
    Host,
    InsidePath,
    Line,
    MetricName,
    Name,
    NeedsGpu,
    Number,
    Regex,
    Seconds,
    SecondsOrZero,
    Share,
    Targets,
    Text,
    in_conflict,
)
from autoresearchd.config.paths import find_overlaps
from autoresearchd.domain.task import Direction, TrainingTime

DEFAULT_BUDGET = 300.0
DEFAULT_GRACE = 60.0
PROFILES = ("cpu", "cuda")


class Section(BaseModel):
    """A mapping of task.yaml: unknown keys are errors, and values never change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def conflicts(self) -> Iterator[Conflict]:
        """Keys that contradict each other."""
        yield from ()

    @model_validator(mode="after")
    def _no_conflicts(self) -> Self:
        found = list(self.conflicts())
        if found:
            raise in_conflict(found)
        return self


class Workspace(Section):
    """Where the files are, and who may see and change them."""

    source_dir: FolderPath = "."
    target_file: Targets
    protected: tuple[InsidePath, ...] = ()
    data: tuple[DataPath, ...] = ()
    remote_dir: Line = "~"
    max_compressed_bytes: Count | None = None

    def conflicts(self) -> Iterator[Conflict]:
        if not self.target_file:
            yield "target_file", "an empty list", "name the file that policies edit"
        for path in {".", "task.yaml"}.intersection(self.target_file):
            yield "target_file", f"{path!r} cannot be edited by a policy", "name the file that policies edit"
        for path in sorted({path for path in self.target_file if self.target_file.count(path) > 1}):
            yield "target_file", f"{path!r} is named twice", "name it once"


class Execution(Section):
    """How the job is run.

    ``budget`` is the training time, 300 s unless given. When ``timeout`` is the only one of the three times, as in
    files of autoresearch-distillation, it is the budget too, and there is no grace: their jobs know of one time only.
    ``training_time`` is what a run is held to: its budget, or the baseline's own time and a quarter.
    """

    run_command: Command
    budget: Seconds | None = None
    startup_grace: SecondsOrZero | None = None
    timeout: Seconds | None = None
    training_time: TrainingTime = "auto"
    needs_gpu: NeedsGpu = False
    python: Line | None = None
    setup_commands: tuple[Command, ...] = ()
    clear_torch_cache: Flag = False
    memory_mb: Count | None = None
    env: Environment = {}
    network: Flag = False

    def conflicts(self) -> Iterator[Conflict]:
        if self.timeout is None or (self.budget is None and self.startup_grace is None):
            return
        grace = DEFAULT_GRACE if self.startup_grace is None else self.startup_grace
        least = (self.budget or DEFAULT_BUDGET) + grace
        if self.timeout < least:
            budget = f"budget {least - grace:g} s" + (" (the default)" if self.budget is None else "")
            needed = f"{least:g} s: {budget} and startup_grace {grace:g} s"
            needed += " (the default)" if self.startup_grace is None else ""
            yield (
                "timeout",
                f"{self.timeout:g} s is less than {needed}",
                "leave timeout out (it is then 2 × budget + startup_grace), or raise it",
            )


class Evaluation(Section):
    """The evaluator's own measurement, after the training."""

    command: Command
    model_command: Command | None = None
    private: tuple[InsidePath, ...] = ()
    hide: tuple[HiddenPath, ...] = ()
    timeout: Seconds = 600.0


class Check(Section):
    """A command that must succeed before a result may be kept."""

    command: Command
    timeout: Seconds = 300.0


class Constraint(Section):
    """A bound on a metric."""

    metric: MetricName
    max: Number | None = None
    min: Number | None = None
    max_increase: Share | None = None

    def conflicts(self) -> Iterator[Conflict]:
        if self.max is None and self.min is None and self.max_increase is None:
            yield (
                "",
                f"{self.metric}: no bound",
                "give max, min or max_increase (0.25: a quarter more than the incumbent)",
            )
        if self.max is not None and self.min is not None and self.max < self.min:
            yield "max", f"{self.max:g} is less than min, {self.min:g}", "exchange them"


class Scoring(Section):
    """Which numbers count.

    ``baseline`` is a reference line only. ``min_delta``: a gain below it is none. ``cacheable_crash_patterns`` is read
    for the sake of files of autoresearch-distillation: here no program is ever run twice within a session, so there is
    nothing to cache.
    """

    metric: MetricName
    direction: Direction
    metric_source: Literal["auto", "evaluator", "stdout"] = "auto"
    parse_mode: Literal["auto", "metric", "key_value", "json", "regex"] = "auto"
    pattern: Regex | None = None
    result_file: InsidePath | None = None
    metrics: tuple[MetricName, ...] = ()
    display_metrics: tuple[MetricName, ...] = ()
    degradation_threshold: Share = 0.05
    baseline: Number | None = None
    constraints: tuple[Constraint, ...] = ()
    min_delta: Share | None = None
    cacheable_crash_patterns: tuple[CrashPattern, ...] = ()

    def conflicts(self) -> Iterator[Conflict]:
        if self.parse_mode == "regex" and self.pattern is None:
            yield "parse_mode", "regex, but there is no pattern", "give scoring.pattern: 'score: ([0-9.]+)'"
        if self.parse_mode not in ("auto", "regex") and self.pattern is not None:
            yield (
                "pattern",
                f"not used with parse_mode {self.parse_mode}",
                "write parse_mode: regex, or leave pattern out",
            )


class Curve(Section):
    """The learning curve. ``check_every`` is a tenth of the budget, at most 30 s, unless given."""

    pattern: CurvePattern = "auto"
    check_every: Seconds | None = None
    abort: Flag = True


class Prompt(Section):
    """The task's own words to a policy."""

    system: Text = ""
    instance: Text = ""
    code_lang: Line = "python"
    file_marker: Line = "## Current {target_file}"


class Feedback(Section):
    """Words told to the policy after an experiment, by how it ended; those left out have their usual words."""

    success: Text | None = None
    failure: Text | None = None
    crash: Text | None = None
    duplicate: Text | None = None
    no_change: Text | None = None
    degradation: Text | None = None
    sed_failed: Text | None = None


class Role(Section):
    """A specialist."""

    name: Name
    surface: Text = ""
    instructions: Text = ""


class Proposing(Section):
    """How proposals are asked for."""

    group: GroupSize = 1
    parents: Literal["incumbent", "puct"] = "incumbent"
    turns: Literal["round_robin", "bandit"] = "round_robin"


class Search(Section):
    """The constants that are tuned, by name, with or without the file: those that stay, and bounds for others."""

    fixed: tuple[Line, ...] = ()
    ranges: dict[Line, Bounds] = {}
    choices: dict[Line, Choices] = {}

    def conflicts(self) -> Iterator[Conflict]:
        for key, other in (("ranges", "fixed"), ("choices", "fixed"), ("choices", "ranges")):
            for name in sorted(set(getattr(self, key)).intersection(getattr(self, other))):
                yield f"{key}.{name}", f"{name} is named in search.{other}, too", "keep one of them"


class Slot(Section):
    """One place on a remote machine."""

    host: Host
    gpu_id: Line = "0"
    name: Line | None = None
    remote_dir: Line | None = None

    @property
    def full_name(self) -> str:
        """Its name, by default after host and GPU."""
        return self.name or f"{self.host}-gpu{self.gpu_id}"


class Fleet(Section):
    """The remote machines."""

    slots: tuple[Slot, ...] = ()

    def conflicts(self) -> Iterator[Conflict]:
        names = [slot.full_name for slot in self.slots]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield "slots", f"two slots are named {name!r}", "give each a name of its own"


class TaskFile(Section):
    """All of task.yaml, after one of its ``profiles`` has been laid upon it."""

    name: Name
    workspace: Workspace
    execution: Execution
    scoring: Scoring
    evaluation: Evaluation | None = None
    checks: tuple[Check, ...] = ()
    curve: Curve = Curve()
    prompt: Prompt = Prompt()
    feedback: Feedback = Feedback()
    roles: tuple[Role, ...] = ()
    proposing: Proposing = Proposing()
    search: Search = Search()
    fleet: Fleet = Fleet()
    history: Literal["refs", "revert"] = "refs"

    def conflicts(self) -> Iterator[Conflict]:
        if self.scoring.metric_source == "evaluator" and self.evaluation is None:
            yield (
                "scoring.metric_source",
                "evaluator, but there is no evaluation.command",
                "give `evaluation: {command: python evaluate.py}`, or take metric_source: stdout",
            )
        private = self.evaluation.private if self.evaluation else ()
        yield from find_overlaps(self.workspace.target_file, self.workspace.protected, private, self.workspace.data)
        if self.history == "revert" and (self.proposing.group > 1 or self.proposing.parents != "incumbent"):
            yield (
                "history",
                "revert, but a linear history has one parent for each experiment",
                "leave `history: revert` out, or take `proposing: {group: 1, parents: incumbent}`",
            )
        names = [role.name for role in self.roles]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield "roles", f"two roles are named {name!r}", "give each a name of its own"
