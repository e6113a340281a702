"""Whether what the user says of the constants, in task.yaml and in comments of the program, can be followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from autoresearchd.config.document import Document, Place, parse_yaml, read_text
from autoresearchd.domain.task import Task
from autoresearchd.errors import AutoresearchdError, ConfigError
from autoresearchd.policy.gather import Space, means

_NEAR = 3
_LISTED = 12


def require_followable(task: Task, found: Mapping[str, Space], file: Path) -> None:
    """Refuse names in ``search`` of task.yaml that no constant has, and comments that make no sense.

    Args:
        task: the task.
        found: what there is in its editable files.
        file: its task.yaml, to say the line; it need not be there.

    Raises:
        ConfigError: with all that is wrong.
    """
    errors = [*_unknown(task, found, file), *_doubtful(task.profile, found, file)]
    if errors:
        first, *others = errors
        first.mend = "\n".join([first.mend, *map(str, others)])
        raise first


def _unknown(task: Task, found: Mapping[str, Space], file: Path) -> Iterator[ConfigError]:
    names = [p.name for space in found.values() for p in space.parameters]
    names += [left.name for space in found.values() for left in space.left_out]
    asked: list[tuple[str, Place]] = [(name, ("fixed", i)) for i, name in enumerate(task.search.fixed)]
    asked += [(name, ("ranges", name)) for name in task.search.ranges]
    asked += [(name, ("choices", name)) for name in task.search.choices]
    for key, place in asked:
        if not any(means(key, name) for name in names):
            written = f"search.fixed[{place[1]}]" if place[0] == "fixed" else f"search.{place[0]}.{key}"
            yield ConfigError(
                f"no constant of {', '.join(task.editable)} is called {key!r}",
                file=str(file),
                line=_line(file, task.profile, place),
                key=written,
                mend=_near(key, names),
            )


def _near(key: str, names: list[str]) -> str:
    labels = {name.partition(":")[2].lower(): name.partition(":")[2] for name in names}
    wanted = key.rpartition(":")[2].lower()
    parts = [label for label in labels if wanted in label.replace("#", ".").split(".")]
    near = list(dict.fromkeys((*parts, *get_close_matches(wanted, list(labels), n=_NEAR, cutoff=0.5))))[:_NEAR]
    if near:
        return f"did you mean {' or '.join(repr(labels[label]) for label in near)}?"
    if not names:
        return "there is no constant in it at all"
    known = list(labels.values())
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"known here: {', '.join(known[:_LISTED])}{more}"


def _doubtful(profile: str, found: Mapping[str, Space], file: Path) -> Iterator[ConfigError]:
    for path, space in found.items():
        for doubt in space.doubts:
            if doubt.key:
                what, where = f"{doubt.what} ({path}, line {doubt.line})", str(file)
                _, kind, name = doubt.key.split(".", 2)
                yield ConfigError(
                    what, file=where, line=_line(file, profile, (kind, name)), key=doubt.key, mend=doubt.mend
                )
            else:
                yield ConfigError(doubt.what, file=path, line=doubt.line, mend=doubt.mend)


def _line(file: Path, profile: str, place: Place) -> int | None:
    """The line of a key of ``search``, in the file itself or in a profile of it."""
    try:
        document: Document = parse_yaml(read_text(file), str(file))
    except AutoresearchdError:
        return None
    top: Place = ("task",) if "task" in document.root else ()
    places = ((*top, "search", *place), (*top, "profiles", profile, "search", *place))
    return next((document.lines[p] for p in places if p in document.lines), None)
