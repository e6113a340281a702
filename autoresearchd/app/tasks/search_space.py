"""The constants that ``search`` may tune in a task's program, and whether what bounds them makes sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from autoresearchd.app.tasks.task_folder import TASK_FILE, read_task
from autoresearchd.config import check_files
from autoresearchd.config.problems import did_you_mean
from autoresearchd.config.task_paths import line_in
from autoresearchd.config.yaml_document import Place
from autoresearchd.domain.errors import ConfigError, PolicyError, UsageError
from autoresearchd.domain.quantities import counted, some_of
from autoresearchd.domain.task import Task
from autoresearchd.policy.policy_names import TUNERS, PolicySpec
from autoresearchd.policy.search.find_constants import LeftOut, Space, constants, means, movable, spaces
from autoresearchd.policy.search.parameter import Parameter

_NAMED = 4


class SearchSpace(NamedTuple):
    """The search space of a task. lines: of each constant in its file, by its name."""

    task: Task
    parameters: tuple[Parameter, ...]
    left_out: tuple[LeftOut, ...]
    lines: Mapping[str, int]


def search_space(folder: Path) -> SearchSpace:
    """The constants of the task in a folder, as its files are now. Raises PolicyError: one cannot be parsed."""
    task = read_task(folder)
    source = folder / task.source_dir
    check_files(task, source, folder / TASK_FILE)
    code = {path: (source / path).read_bytes().decode() for path in task.editable}
    found = spaces(task, code)
    _check_bounds(task, found, folder / TASK_FILE)
    parameters = [p for space in found.values() for p in space.parameters]
    left_out = [left for space in found.values() for left in space.left_out]
    left_out += [
        LeftOut(p.name, p.path, p.source, p.start, "no other value in its range") for p in parameters if not movable(p)
    ]
    every: list[Parameter | LeftOut] = [*parameters, *left_out]
    lines = {one.name: code[one.path].encode().count(b"\n", 0, one.start) + 1 for one in every}
    return SearchSpace(task, tuple(p for p in parameters if movable(p)), tuple(left_out), lines)


def summary(folder: Path) -> tuple[str, ...]:
    """What ``task init`` and ``task check`` say of the constants, in a few lines; raises what ``search_space`` does."""
    found = search_space(folder)
    what = f"`search` may turn {counted(len(found.parameters), 'constant')}" if found.parameters else "nothing to tune"
    lines = [f"{what}: `autoresearchd task space {folder}` lists them"]
    notable: dict[str, list[str]] = {}
    for left in found.left_out:
        if left.notable:
            notable.setdefault(left.why, []).append(left.label)
    for why, labels in notable.items():
        lines.append(f"left alone: {some_of(labels, _NAMED)}: {why}")
    return tuple(lines)


def require_tunable(spec: PolicySpec, task: Task, code: Mapping[str, str], file: Path = Path(TASK_FILE)) -> None:
    """Refuse a policy that turns constants where it can find none, and bounds that make no sense.

    file: the task.yaml.
    """
    if spec.kind not in TUNERS:
        return
    try:
        _check_bounds(task, spaces(task, code), file)
        constants(task, code)
    except PolicyError as error:
        raise UsageError(f"the policy {spec} cannot be used: {error.what}", hint=error.hint) from error


def _check_bounds(task: Task, found: Mapping[str, Space], file: Path) -> None:
    """Raise ConfigError for names in ``search`` that no constant has, and for bounds that make no sense; with all."""
    errors = [*_unknown(task, found, file), *_doubtful(task.profile, found, file)]
    if errors:
        first, *others = errors
        first.hint = "\n".join([first.hint, *map(str, others)])
        raise first


def _unknown(task: Task, found: Mapping[str, Space], file: Path) -> Iterator[ConfigError]:
    names = [p.name for space in found.values() for p in space.parameters]
    names += [left.name for space in found.values() for left in space.left_out]
    labels = [name.partition(":")[2] for name in names]
    asked: list[tuple[str, Place]] = [(name, ("fixed", i)) for i, name in enumerate(task.search.fixed)]
    asked += [(name, ("ranges", name)) for name in task.search.ranges]
    asked += [(name, ("choices", name)) for name in task.search.choices]
    for key, place in asked:
        if not any(means(key, name) for name in names):
            written = f"search.fixed[{place[1]}]" if place[0] == "fixed" else f"search.{place[0]}.{key}"
            what, hint = f"no constant of {', '.join(task.editable)} is called {key!r}", did_you_mean(key, labels)
            line = _line_of(file, task.profile, place)
            yield ConfigError(what, file=str(file), line=line, key=written, hint=hint)


def _doubtful(profile: str, found: Mapping[str, Space], file: Path) -> Iterator[ConfigError]:
    for path, space in found.items():
        for doubt in space.doubts:
            if doubt.key:
                _, kind, name = doubt.key.split(".", 2)
                what, line = f"{doubt.what} ({path}, line {doubt.line})", _line_of(file, profile, (kind, name))
                yield ConfigError(what, file=str(file), line=line, key=doubt.key, hint=doubt.hint)
            else:
                yield ConfigError(doubt.what, file=path, line=doubt.line, hint=doubt.hint)


def _line_of(file: Path, profile: str, place: Place) -> int | None:
    return line_in(file, ("search", *place), ("profiles", profile, "search", *place))
