"""From task.yaml to a task that is ready to run: profile, validation, defaults, and what the command line overrides."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from autoresearchd.config.problems import explain, raise_any, validated
from autoresearchd.config.task_schema import DEFAULT_BUDGET, DEFAULT_GRACE, PROFILES, CheckFile, Execution, TaskFile
from autoresearchd.config.yaml_document import Document, Place, merged, parse_yaml, read_text, without_empty
from autoresearchd.domain import task as domain
from autoresearchd.domain.errors import ConfigError, StoreError, UsageError

FILE_NAME, CHECK_FILE = "task.yaml", "check.yaml"
DEFAULT_PROFILE = "cpu"
CHECKS_PER_RUN = 10
MAX_CHECK_EVERY = 30.0


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says instead of the file. budget: seconds of training; confirm_every: see ``Scoring``.

    The others: see ``Proposing``.
    """

    budget: float | None = None
    group: int | None = None
    parents: Literal["incumbent", "puct"] | None = None
    turns: Literal["round_robin", "bandit"] | None = None
    confirm_every: float | None = None


def load_task(folder: Path, *, profile: str | None = None, overrides: Overrides = Overrides()) -> domain.Task:
    """The task of ``folder``, from its task.yaml (with or without a top key ``task:``).

    profile: which of the file's ``profiles`` is laid upon it; all are checked. ConfigError tells all that is wrong.
    """
    path = folder / FILE_NAME
    return read_task_text(read_text(path), file=str(path), profile=profile, overrides=overrides)


def read_task_text(
    text: str, *, file: str = FILE_NAME, profile: str | None = None, overrides: Overrides = Overrides()
) -> domain.Task:
    """As ``load_task``, from the text of a task.yaml; ``file``: how messages call it."""
    chosen = profile or DEFAULT_PROFILE
    if chosen not in PROFILES:
        raise ConfigError(f"no profile {chosen!r}", file=file, key="profiles", hint=f"take {' or '.join(PROFILES)}")
    document = _below_task(parse_yaml(text, file))
    profiles = _take_profiles(document)
    results = {name: _validate(document, name, profiles.get(name)) for name in sorted({chosen, *profiles})}
    raise_any(file, document.problems)
    result = results[chosen]
    assert result is not None, "what is wrong is among the problems"
    return _task(result, chosen, overrides)


# ---------------------------------------------------------------------- the document before validation
def _below_task(document: Document) -> Document:
    """The mapping under a top key ``task:`` where there is one, else the document itself."""
    if "task" not in document.root:
        return document
    for key in document.root.keys() - {"task"}:
        document.complain((key,), "this key stands beside `task:`", "move it below `task:`")
    if not isinstance(document.root["task"], dict):
        document.root["task"] = {}
        document.complain(("task",), "a mapping is needed", "write `name:`, `workspace:` … below it")
    return document.beneath(("task",), document.root["task"])


def _take_profiles(document: Document) -> dict[str, Document]:
    """Take ``profiles`` out of the document: each of them as a document of its own."""
    found = document.root.pop("profiles", None)
    if found is None:
        return {}
    if not isinstance(found, dict):
        document.complain(("profiles",), "a mapping is needed", "write `profiles: {cpu: {…}, cuda: {…}}`")
        return {}
    profiles = {}
    for name, values in found.items():
        place = ("profiles", name)
        if name not in PROFILES:
            document.complain(place, "there is no such profile", f"the profiles are {' and '.join(PROFILES)}")
        elif isinstance(values, dict):
            profiles[name] = document.beneath(place, values)
        elif values is not None:
            document.complain(place, "a mapping is needed", "write the keys that differ: {execution: {budget: 60}}")
    return profiles


def _validate(base: Document, profile: str, over: Document | None) -> TaskFile | None:
    """The file with a profile laid upon it; None where it is wrong, which the document's problems tell."""
    document, from_profile = base, frozenset[Place]()
    if over is not None:
        # A section that both have is the file's own; only what the profile puts into it, or anew, is the profile's.
        from_profile = frozenset(p for p in over.lines if p not in base.lines or not isinstance(over.at(p), dict))
        lines = {place: line for place, line in over.lines.items() if place in from_profile}
        document = Document(merged(base.root, over.root), base.lines | lines, base.texts | over.texts)
    document = replace(document, root=without_empty(document.root, keep={("execution", "env")}))
    _numbers_as_written(document)
    try:
        return TaskFile.model_validate(document.root)
    except ValidationError as error:
        base.problems += explain(error, document, TaskFile, profile, from_profile)
        return None


def _numbers_as_written(document: Document) -> None:
    """Where numbers stand for text (variables, GPUs), the text is what was written: ``0.10`` stays ``0.10``."""
    for place, text in document.texts.items():
        match place:
            case ("execution", "env", str()) | ("fleet", "slots", int(), "gpu_id"):
                with suppress(KeyError, IndexError, TypeError):  # a profile has put something else there
                    around = document.at(place[:-1])
                    if type(around[place[-1]]) in (int, float):
                        around[place[-1]] = text


# ---------------------------------------------------------------------- the task after validation
def _task(file: TaskFile, profile: str, overrides: Overrides) -> domain.Task:
    workspace = file.workspace
    budget = _clock(file.execution, overrides)
    # A tenth of the budget, at most 30 s; what the file says holds unless the command line's budget is too small.
    check_every = file.curve.check_every or MAX_CHECK_EVERY
    if file.curve.check_every is None or overrides.budget is not None:
        check_every = min(check_every, budget.training / CHECKS_PER_RUN)
    elsewhere = ("budget", "startup_grace", "timeout", "clear_torch_cache")
    execution = {key: value for key, value in file.execution if key not in elsewhere}
    return domain.Task(
        name=file.name,
        editable=workspace.target_file,
        protected=workspace.protected,
        data=workspace.data,
        source_dir=workspace.source_dir,
        max_compressed=workspace.max_compressed_bytes,
        execution=domain.Execution(**execution, budget=budget, timeout_named=budget.wall == file.execution.timeout),
        scoring=_scoring(file, overrides),
        evaluation=domain.Evaluation(**dict(file.evaluation)) if file.evaluation else None,
        checks=tuple(domain.Check(**dict(check)) for check in file.checks),
        curve=domain.Curve(file.curve.pattern, check_every, file.curve.abort),
        prompt=domain.Prompt(**dict(file.prompt)),
        feedback=file.feedback.model_dump(exclude_none=True),
        roles=tuple(domain.Role(**dict(role)) for role in file.roles),
        proposing=_proposing(file, overrides),
        search=domain.Search(file.search.fixed, dict(file.search.ranges), dict(file.search.choices)),
        profile=profile,
        history=file.history,
        remote_slots=tuple(
            domain.RemoteSlot(slot.host, slot.gpu_id, slot.full_name, slot.remote_dir or workspace.remote_dir)
            for slot in file.fleet.slots
        ),
        cloud=domain.Cloud(**dict(file.fleet.cloud), remote_dir=workspace.remote_dir) if file.fleet.cloud else None,
    )


def _proposing(file: TaskFile, overrides: Overrides) -> domain.Proposing:
    given = {key: getattr(overrides, key) for key in ("group", "parents", "turns")}
    found = domain.Proposing(**dict(file.proposing) | {key: value for key, value in given.items() if value is not None})
    if file.history == "revert" and (found.group > 1 or found.parents != "incumbent"):
        hint = "leave --group and --parents out, or history"
        raise UsageError("history: revert has one parent for each experiment", hint=hint)
    return found


def _clock(execution: Execution, overrides: Overrides) -> domain.Budget:
    """The three times of a run. A ``timeout`` without room for budget and grace gives way to 2 × budget + grace."""
    training, grace, timeout = overrides.budget or execution.budget, execution.startup_grace, execution.timeout
    if training is None and grace is None and timeout is not None:
        return domain.Budget(timeout, 0.0, timeout)
    training, grace = training or DEFAULT_BUDGET, DEFAULT_GRACE if grace is None else grace
    if timeout is None or timeout < training + grace:
        timeout = domain.Budget.usual_wall(training, grace)
    return domain.Budget(training, grace, timeout)


def _scoring(file: TaskFile, overrides: Overrides) -> domain.Scoring:
    scoring = file.scoring
    named = ("metric", "direction", "metric_source", "baseline", "constraints", "cacheable_crash_patterns")
    values = {key: value for key, value in scoring if key not in named}
    if scoring.pattern is not None:  # one that was given is meant to be used
        values["parse_mode"] = "regex"
    if overrides.confirm_every is not None:
        values["confirm_every"] = overrides.confirm_every
    evaluated = scoring.metric_source != "stdout" and file.evaluation is not None
    return domain.Scoring(
        metric=domain.Metric(scoring.metric, scoring.direction),
        source=domain.MetricSource.EVALUATOR if evaluated else domain.MetricSource.STDOUT,
        reference=scoring.baseline,
        constraints=tuple(domain.Constraint(**dict(constraint)) for constraint in scoring.constraints),
        **values,
    )


# ---------------------------------------------------------------------- check.yaml
def load_check(folder: Path) -> CheckFile | None:
    """What the task of a folder is held to; None where it has no check.yaml. ConfigError tells all its problems."""
    path = folder / CHECK_FILE
    if not path.exists():
        return None
    document = parse_yaml(read_text(path), str(path))
    found = validated(CheckFile, document.root, document, str(path))
    for name, figures in found.baseline.items():
        value, sigma = (document.texts[("baseline", name, key)] for key in ("value", "sigma"))
        figures._text = f"{value} ± {sigma}"
    return found


# ---------------------------------------------------------------------- in the store
def dump_task(task: domain.Task) -> str:
    """The task as one JSON object; numbers that are not finite are refused with ValueError."""
    values = asdict(task)
    values["scoring"] |= values["scoring"]["metric"]  # its name and direction at the top, as in task.yaml
    values["scoring"]["metric"] = values["scoring"].pop("name")
    budget = task.execution.budget
    values["execution"] |= {"budget": budget.training, "startup_grace": budget.grace, "timeout": budget.wall}
    values["execution"]["most_training"] = budget.most
    return json.dumps(values, allow_nan=False)


def parse_task(text: str) -> domain.Task:
    """The task that ``dump_task`` wrote. StoreError: it is something else, e.g. an imported session's."""
    try:
        values = json.loads(text)
        scoring, execution = values["scoring"], values["execution"]
        scoring["metric"] = {"name": scoring["metric"], "direction": scoring.pop("direction")}
        training, grace, wall = (float(execution.pop(key)) for key in ("budget", "startup_grace", "timeout"))
        execution["budget"] = domain.Budget(training, grace, wall, execution.pop("most_training", None))
        return TypeAdapter(domain.Task).validate_python(values)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(
            f"the task stored with this session cannot be read: {type(error).__name__}: {error}",
            hint="an imported session has no program to run: start a new one in the task's folder",
        ) from error
