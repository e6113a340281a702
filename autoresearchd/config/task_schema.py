"""task.yaml and check.yaml as pydantic models: the kinds of their values, their keys, and which of them go together.

A superset of the schema of autoresearch-distillation (https://github.com/SilenNaihin/autoresearch-distillation,
``task_config.py``), whose files load unchanged.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from autoresearchd.config.problems import Conflict, in_conflict, wrong
from autoresearchd.config.task_paths import data_path, find_overlaps, hidden_path, inside_path
from autoresearchd.config.yaml_document import shown
from autoresearchd.domain.labels import RULES, Label
from autoresearchd.domain.quantities import ordered, parse_bounds, parse_duration
from autoresearchd.domain.task import Direction, TrainingTime


def _duration(value: Any) -> float:
    what = f"{shown(value)} is not a duration"
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            return parse_duration(value)
        except ValueError as error:
            what = str(error)
        except OverflowError:
            pass
    raise wrong(what, "write seconds, or a text like 90s, 5m, 1h30m; more than zero, less than 30 years")


def _duration_or_zero(value: Any) -> float:
    return 0.0 if value in (0, "0", "0s") and not isinstance(value, bool) else _duration(value)


def _flag(value: Any) -> Any:
    words = {"yes": True, "on": True, "no": False, "off": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def _needs_gpu(value: Any) -> Any:
    # Whether a job profits from a GPU that is there is for the job to see: only a plain `true` asks for one.
    return False if value == "auto" else _flag(value)


def one_or_many(value: Any) -> Any:
    """A text as a list of one."""
    return (value,) if isinstance(value, str) else value


def must(right: Callable[[str], object], what: str, hint: str) -> AfterValidator:
    """Only texts that are right. what: what another one is, after the text itself."""

    def check(text: str) -> str:
        if not right(text):
            raise wrong(f"{shown(text)} {what}", hint)
        return text

    return AfterValidator(check)


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        hint = "fix the pattern; in single quotes YAML keeps backslashes"
        raise wrong(f"not a regular expression: {error}", hint) from None


def _regex(text: str) -> str:
    if not _compiled(text).groups:
        raise wrong("the pattern has no group", "put round brackets around the number: 'score: ([0-9.]+)'")
    return text


def _curve_pattern(text: str) -> str:
    if text != "auto" and "loss" not in _compiled(text).groupindex:
        hint = "name the groups: 'step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)'; or leave it at auto"
        raise wrong("the pattern has no group named loss", hint)
    return text


def _bounds(value: Any) -> tuple[float, float]:
    hint = "write the lowest and the highest value: 1e-5..1e-1"
    try:
        if isinstance(value, str) and len(value.replace("..", " ").split()) == 2:
            return parse_bounds(value)
        if isinstance(value, (list, tuple)) and len(value) == 2 and all(type(v) in (int, float) for v in value):
            return ordered(float(value[0]), float(value[1]))
    except (ValueError, OverflowError) as error:
        raise wrong(str(error), hint) from None
    raise wrong(f"{shown(value)} is not a range", hint)


def _choices(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(set(map(repr, value))) < 2:
        raise wrong(f"{shown(value)} is not a list of two or more values", "write all values: [adam, sgd]")
    for item in value:
        if not isinstance(item, (int, float, str)) or (isinstance(item, float) and not math.isfinite(item)):
            raise wrong(f"{shown(item)} is neither a number nor text", "list plain values: [adam, sgd]")
        if isinstance(item, str) and (not item.isprintable() or set(item) & set("\"'\\")):
            raise wrong(f"{shown(item)} cannot be put in quotes", "leave quotes and backslashes out")
    return value


def _environment(env: dict[str, str]) -> dict[str, str]:
    conflicts = []
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            conflicts.append((name, f"{shown(name)} is not a variable name", "use letters, digits and _"))
        elif name.startswith("AUTORESEARCHD_"):
            what = "variables that begin with AUTORESEARCHD_ are set by the daemon itself"
            conflicts.append((name, what, "take another name"))
        if "\0" in value:
            conflicts.append((name, "a NUL character in the value", "remove it"))
    if conflicts:
        raise in_conflict(conflicts)
    return env


Text = Annotated[str, Strict()]
_is_line = must(
    lambda text: text.strip() and text.isprintable() and len(text) <= 200,
    "is not a short line of text",
    "write 1 to 200 printable characters on one line",
)
Line = Annotated[Text, _is_line, AfterValidator(str.strip)]
Name = Annotated[Line, must(lambda text: "/" not in text, "has a / in it", "write a name, not a path")]
_is_command = must(lambda text: text.strip() and "\0" not in text, "is not a command", "write a shell command")
Command = Annotated[Text, _is_command]
Flag = Annotated[bool, Strict(), BeforeValidator(_flag)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(allow_inf_nan=False, ge=0)]
Count = Annotated[int, Strict(), Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(_duration)]
SecondsOrZero = Annotated[float, BeforeValidator(_duration_or_zero)]
InsidePath = Annotated[Text, AfterValidator(inside_path)]
_is_metric = must(
    lambda text: len(text) <= 128 and not re.search(r"[\s=:]", text),
    "cannot be a metric's name",
    "use a name without spaces, = and :, e.g. val_loss",
)
MetricName = Annotated[Line, _is_metric]
_is_host = must(
    re.compile(r"(?:[\w.][\w.-]*@)?[\w.\[][\w.:\[\]-]*", re.ASCII).fullmatch,
    "is not a host name",
    "write a name, an address or user@host, as ssh knows it",
)

DEFAULT_BUDGET = 300.0
DEFAULT_GRACE = 60.0
PROFILES = ("cpu", "cuda")


def repeated(what: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(what is wrong, what would be right) for each name that is given twice."""
    for name in sorted(name for name, number in Counter(names).items() if number > 1):
        yield f"two {what} are named {name!r}", "give each a name of its own"


class Section(BaseModel):
    """A mapping of a file: unknown keys are errors, and values never change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def conflicts(self) -> Iterator[Conflict]:
        """Keys that contradict each other."""
        yield from ()

    @model_validator(mode="after")
    def _no_conflicts(self) -> Self:
        if found := list(self.conflicts()):
            raise in_conflict(found)
        return self


class Workspace(Section):
    """Where the files are, and who may see and change them."""

    source_dir: InsidePath = "."
    target_file: Annotated[tuple[InsidePath, ...], BeforeValidator(one_or_many)]
    protected: tuple[InsidePath, ...] = ()
    data: tuple[Annotated[Text, AfterValidator(data_path)], ...] = ()
    remote_dir: Line = "~"
    max_compressed_bytes: Count | None = None

    def conflicts(self) -> Iterator[Conflict]:
        hint = "name the file that policies edit"
        if not self.target_file:
            yield "target_file", "an empty list", hint
        for path in {".", "task.yaml"}.intersection(self.target_file):
            yield "target_file", f"{path!r} cannot be edited by a policy", hint
        if len(set(self.target_file)) < len(self.target_file):
            yield "target_file", "a file is named twice", "name it once"


class Execution(Section):
    """How the job is run.

    ``timeout`` as the only one of the three times, as in files of autoresearch-distillation, is the budget too, without
    a grace. ``training_time`` is what a run is held to: its budget, or the baseline's own time and a quarter.
    """

    run_command: Command
    budget: Seconds | None = None
    startup_grace: SecondsOrZero | None = None
    timeout: Seconds | None = None
    training_time: TrainingTime = "auto"
    needs_gpu: Annotated[bool, Strict(), BeforeValidator(_needs_gpu)] = False
    python: Line | None = None
    setup_commands: tuple[Command, ...] = ()
    clear_torch_cache: Flag = False
    memory_mb: Count | None = None
    env: Annotated[dict[str, Text], AfterValidator(_environment)] = {}
    network: Flag = False

    def conflicts(self) -> Iterator[Conflict]:
        if self.timeout is None or (self.budget is None and self.startup_grace is None):
            return
        grace = DEFAULT_GRACE if self.startup_grace is None else self.startup_grace
        training = self.budget or DEFAULT_BUDGET
        if self.timeout < training + grace:
            usual = [" (the default)" if value is None else "" for value in (self.budget, self.startup_grace)]
            needed = f"budget {training:g} s{usual[0]} and startup_grace {grace:g} s{usual[1]}"
            what = f"{self.timeout:g} s is less than {training + grace:g} s: {needed}"
            yield "timeout", what, "leave timeout out (it is then 2 × budget + startup_grace), or raise it"


class Evaluation(Section):
    """The evaluator's own measurement, after the training."""

    command: Command
    model_command: Command | None = None
    private: tuple[InsidePath, ...] = ()
    hide: tuple[Annotated[Text, AfterValidator(hidden_path)], ...] = ()
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
            hint = "give max, min or max_increase (0.25: a quarter more than the confirmed program)"
            yield "", f"{self.metric}: no bound", hint
        if self.max is not None and self.min is not None and self.max < self.min:
            yield "max", f"{self.max:g} is less than min, {self.min:g}", "exchange them"


class Scoring(Section):
    """Which numbers count.

    ``baseline`` is a reference line only. ``min_delta``: a gain below it is none. ``confirm_every``: σ of
    believed gain after which the tip is confirmed; 0: after each keep. ``cacheable_crash_patterns`` of files
    of autoresearch-distillation has no meaning here, where no program is run twice within a session.
    """

    metric: MetricName
    direction: Direction
    metric_source: Literal["auto", "evaluator", "stdout"] = "auto"
    parse_mode: Literal["auto", "metric", "key_value", "json", "regex"] = "auto"
    pattern: Annotated[Text, AfterValidator(_regex)] | None = None
    result_file: InsidePath | None = None
    metrics: tuple[MetricName, ...] = ()
    display_metrics: tuple[MetricName, ...] = ()
    degradation_threshold: Share = 0.05
    baseline: Number | None = None
    constraints: tuple[Constraint, ...] = ()
    min_delta: Share | None = None
    confirm_every: Share = 40.0
    cacheable_crash_patterns: tuple[Text, ...] = ()

    def conflicts(self) -> Iterator[Conflict]:
        if self.parse_mode == "regex" and self.pattern is None:
            yield "parse_mode", "regex, but there is no pattern", "give scoring.pattern: 'score: ([0-9.]+)'"
        if self.parse_mode not in ("auto", "regex") and self.pattern is not None:
            what = f"not used with parse_mode {self.parse_mode}"
            yield "pattern", what, "write parse_mode: regex, or leave pattern out"


class Curve(Section):
    """The learning curve. ``check_every`` is a tenth of the budget, at most 30 s, unless given."""

    pattern: Annotated[Text, AfterValidator(_curve_pattern)] = "auto"
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

    group: Annotated[int, Strict(), Field(ge=1, le=64)] = 1
    parents: Literal["incumbent", "puct"] = "incumbent"
    turns: Literal["round_robin", "bandit"] = "round_robin"


class Search(Section):
    """The constants that are tuned, by name, with or without the file: those that stay, and bounds for others."""

    fixed: tuple[Line, ...] = ()
    ranges: dict[Line, Annotated[tuple[float, float], BeforeValidator(_bounds)]] = {}
    choices: dict[Line, Annotated[tuple[int | float | str | bool, ...], BeforeValidator(_choices)]] = {}

    def conflicts(self) -> Iterator[Conflict]:
        for key, other in (("ranges", "fixed"), ("choices", "fixed"), ("choices", "ranges")):
            for name in sorted(set(getattr(self, key)).intersection(getattr(self, other))):
                yield f"{key}.{name}", f"{name} is named in search.{other}, too", "keep one of them"


class Slot(Section):
    """One place on a remote machine."""

    host: Annotated[Text, _is_host]
    gpu_id: Line = "0"
    name: Line | None = None
    remote_dir: Line | None = None

    @property
    def full_name(self) -> str:
        """Its name, by default after host and GPU."""
        return self.name or f"{self.host}-gpu{self.gpu_id}"


_is_accelerator = must(
    re.compile(r"[A-Za-z][\w.-]*(:[1-9]\d?)?", re.ASCII).fullmatch,
    "is not a kind of GPU",
    "write its name and how many a machine has, as SkyPilot knows it: H100:1",
)
_is_amount = must(
    re.compile(r"[1-9]\d*(\.\d+)?\+?", re.ASCII).fullmatch, "is not an amount", "write a number, or at least: 8+"
)
Amount = Annotated[
    Text, BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value), _is_amount
]


class Cloud(Section):
    """Machines to rent, as SkyPilot's resources have them."""

    machines: Annotated[int, Strict(), Field(ge=1, le=64)] = 1
    accelerators: Annotated[Line, _is_accelerator] | None = None
    instance_type: Line | None = None
    cpus: Amount | None = None
    memory: Amount | None = None
    disk_gb: Count | None = None
    image: Line | None = None
    infra: Line | None = None
    use_spot: Flag = False
    max_hourly_cost: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] | None = None
    idle_minutes: Annotated[int, Strict(), Field(ge=5, le=1440)] = 10
    setup: Annotated[tuple[Command, ...], BeforeValidator(one_or_many)] = ()


class Fleet(Section):
    """The remote machines: those there are, and those to be rented."""

    slots: tuple[Slot, ...] = ()
    cloud: Cloud | None = None

    def conflicts(self) -> Iterator[Conflict]:
        yield from (("slots", *problem) for problem in repeated("slots", (slot.full_name for slot in self.slots)))


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
            hint = "give `evaluation: {command: python evaluate.py}`, or take metric_source: stdout"
            yield "scoring.metric_source", "evaluator, but there is no evaluation.command", hint
        private = self.evaluation.private if self.evaluation else ()
        yield from find_overlaps(self.workspace.target_file, self.workspace.protected, private, self.workspace.data)
        if self.history == "revert" and (self.proposing.group > 1 or self.proposing.parents != "incumbent"):
            hint = "leave `history: revert` out, or take `proposing: {group: 1, parents: incumbent}`"
            yield "history", "revert, but a linear history has one parent for each experiment", hint
        yield from (("roles", *problem) for problem in repeated("roles", (role.name for role in self.roles)))


# ---------------------------------------------------------------------- check.yaml
_SEARCHED, _WHOLE = ("replace", "before", "after"), ("append", "prepend", "text")
_EXPECTABLE = sorted(label for label in Label if RULES[label] is not None and label is not Label.NONE)
_is_outcome = must(_EXPECTABLE.__contains__, "is not an outcome's label", f"take one of {', '.join(_EXPECTABLE)}")
_Outcomes = tuple[Annotated[Line, _is_outcome], ...]


class Step(Section):
    """One step of a change in one file, the first editable one where none is named.

    It has ``search``, which stands there once, with replace, before or after; or append, prepend or text (all) alone.
    """

    file: InsidePath | None = None
    search: Text | None = None
    replace: Text | None = None
    before: Text | None = None
    after: Text | None = None
    append: Text | None = None
    prepend: Text | None = None
    text: Text | None = None

    @property
    def given(self) -> dict[str, str]:
        """What it writes, by the way in which it does: one, after validation."""
        return {name: text for name in (*_SEARCHED, *_WHOLE) if (text := getattr(self, name)) is not None}

    def conflicts(self) -> Iterator[Conflict]:
        given = list(self.given)
        if len(given) != 1:
            yield "", " and ".join(given) or "none of them", f"give one of {', '.join((*_SEARCHED, *_WHOLE))}"
        elif given[0] in _SEARCHED and not self.search:
            yield "search", f"{given[0]} needs it", "give the text that is there once as `search`"
        elif given[0] in _WHOLE and self.search:
            yield "search", f"does not go with {given[0]}", "leave `search` out"


class Edit(Section):
    """An honest edit."""

    name: Line
    change: Annotated[tuple[Step, ...], Field(min_length=1)]


class Cheat(Edit):
    """A dishonest one, and the labels that it may end with."""

    expect: Annotated[_Outcomes, BeforeValidator(one_or_many), Field(min_length=1)] = (Label.NO_GAIN,)


class Figures(Section):
    """A baseline as the task's README has it. sigma: of single runs; within: share by which machines may differ."""

    value: Number
    sigma: Share
    budget: Seconds | None = None
    within: Share = 0.0
    _text: str = ""

    @property
    def text(self) -> str:
        """``value ± sigma`` as they are written in the file: ``load_check`` puts it here."""
        return self._text


class CheckFile(Section):
    """All of check.yaml. baseline: by profile; budget: seconds of training for edits and cheats, None: the task's."""

    baseline: dict[str, Figures] = Field(default_factory=dict)
    budget: Seconds | None = None
    edits: tuple[Edit, ...] = ()
    cheats: tuple[Cheat, ...] = ()

    def conflicts(self) -> Iterator[Conflict]:
        for profile in self.baseline.keys() - set(PROFILES):
            yield f"baseline.{profile}", "there is no such profile", f"the profiles are {' and '.join(PROFILES)}"
        names = (variant.name for variant in (*self.edits, *self.cheats))
        yield from (("cheats", *problem) for problem in repeated("edits", names))
