"""The constants that ``search`` may tune in a task's program, as its files are now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.app.start import read_task
from autoresearchd.app.start_checks import check_search_bounds
from autoresearchd.app.tasks.scaffold import TASK_FILE
from autoresearchd.config import check_files
from autoresearchd.domain.task import Task
from autoresearchd.policy.search.find_constants import LeftOut
from autoresearchd.policy.search.parameter import Parameter
from autoresearchd.policy.search.program_constants import movable, spaces

_NAMED = 4


@dataclass(frozen=True, slots=True)
class Found:
    """The search space of a task. lines: of each constant in its file, by its name."""

    task: Task
    parameters: tuple[Parameter, ...]
    left_out: tuple[LeftOut, ...]
    lines: Mapping[str, int]


def search_space(folder: Path) -> Found:
    """The constants of the task in a folder, as its files are now.

    Raises ConfigError: task.yaml, a name in its ``search``, or a comment of the program cannot be followed;
    PolicyError: a file cannot be parsed.
    """
    task = read_task(folder, None)
    source = folder / task.source_dir
    check_files(task, source, folder / TASK_FILE)
    code = {path: (source / path).read_bytes().decode() for path in task.editable}
    found = spaces(task, code)
    check_search_bounds(task, found, folder / TASK_FILE)
    raw = {path: text.encode() for path, text in code.items()}
    parameters = [p for space in found.values() for p in space.parameters]
    left_out = [left for space in found.values() for left in space.left_out]
    left_out += [
        LeftOut(p.name, p.path, p.source, p.start, "no other value in its range") for p in parameters if not movable(p)
    ]
    places = [(p.name, p.path, p.start) for p in parameters] + [(left.name, left.path, left.start) for left in left_out]
    return Found(
        task,
        tuple(p for p in parameters if movable(p)),
        tuple(left_out),
        {name: raw[path].count(b"\n", 0, start) + 1 for name, path, start in places},
    )


def summary(folder: Path) -> tuple[str, ...]:
    """What ``task init`` and ``task check`` say of the constants, in a line or two.

    Raises ConfigError: as ``search_space``.
    """
    found = search_space(folder)
    count = len(found.parameters)
    shown = f"`autoresearchd task space {folder}` lists them"
    lines = [
        f"`search` may turn {count} constant{'s' * (count != 1)}: {shown}" if count else f"nothing to tune: {shown}"
    ]
    notable: dict[str, list[str]] = {}
    for left in found.left_out:
        if left.notable:
            notable.setdefault(left.why, []).append(left.label)
    for why, labels in notable.items():
        more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
        lines.append(f"left alone: {', '.join(labels[:_NAMED])}{more}: {why}")
    return tuple(lines)
