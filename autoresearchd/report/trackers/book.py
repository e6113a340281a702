"""What all trackers are given: a session's decided experiments, each with its constants, and curves when asked for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from autoresearchd.domain.errors import AutoresearchdError, MissingCapability, UsageError
from autoresearchd.domain.experiment import CurvePoint
from autoresearchd.domain.labels import Label
from autoresearchd.policy.search.find_constants import find, searchable
from autoresearchd.policy.search.parameter import Parameter
from autoresearchd.report import story
from autoresearchd.report.plain_text import clean, real
from autoresearchd.store.story_reader import Edit, StoryReader

Record = Mapping[str, Any]
Value = int | float | str | bool
_MOST_PROGRAMS = 8
_NAME = re.compile(r"[^\w./ -]+")
CONFIRMED = {True: "yes", False: "fell back", None: "not yet"}
"""Of a keep, in words."""
_LONGEST = 250
"""Of the names and texts that every tracker takes."""


class Sent(NamedTuple):
    """How many experiments are new there, how many were there; look: how to look at them."""

    new: int
    known: int
    look: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A decided experiment. constants: in effect, as far as they are known; facts: texts; value None: not measured."""

    number: int
    status: str
    label: str
    value: float | None
    metrics: Mapping[str, float]
    constants: Mapping[str, Value]
    facts: Mapping[str, str]
    confirmed: bool | None
    started_at: datetime
    finished_at: datetime

    @property
    def title(self) -> str:
        return clean(f"{self.number} {self.facts.get('description', '')}", 100)

    @property
    def stopped(self) -> bool:
        """Whether it was ended early: neither measured nor failed."""
        return self.label == Label.ABORTED_EARLY

    @property
    def failed(self) -> bool:
        return self.value is None and not self.stopped


@dataclass(frozen=True)
class Book:
    """A session to be sent. name: the same wherever it lies, and of no other session."""

    name: str
    tag: str
    task: str
    metric: str
    direction: str
    entries: Sequence[Entry]
    curve: Callable[[int], Sequence[CurvePoint]]

    @cached_property
    def _metrics(self) -> set[str]:
        return {self.metric}.union(*(entry.metrics for entry in self.entries))

    def points(self, number: int, most: int = 200) -> list[tuple[int, str, float]]:
        """The learning curve as (step, ``loss`` or ``validation_loss``, value), steps whole and never going back.

        One that is called like a metric is ``curve/loss``: a tracker would show its last point in place of the value.
        most: of a longer one every second point, or third, …; and the last.
        """
        points, last, curve = [], 0, self.curve(number)
        kept = [*curve[:: max(1, math.ceil(len(curve) / most))], *curve[-1:]] if len(curve) > most else curve
        for index, point in enumerate(kept):
            step = point.step if math.isfinite(point.step) and abs(point.step) < 2**53 else index
            last = max(last, int(step))
            if math.isfinite(point.loss):
                name = "validation_loss" if point.validation else "loss"
                points.append((last, f"curve/{name}" if name in self._metrics else name, point.loss))
        return points


def read_book(reader: StoryReader, tag: str, status: Record, redact: Callable[[str], str]) -> Book:
    """Unknown session: KeyError. redact: takes keys out of what models wrote."""
    records, edits, origin = list(reader.experiments(tag)), reader.edits(tag), reader.origin(tag)
    values = constants_in_effect(records, edits, lambda number: reader.files(tag, number))
    by_number = {edit.number: edit for edit in edits}
    names = story.short_names({name for own in values.values() for name in own})
    shown = {
        n: {plain(names[name].replace(":", "/")): value for name, value in own.items()} for n, own in values.items()
    }
    entries = [
        _entry(record, by_number.get(int(record["experiment"])), shown[int(record["experiment"])], redact)
        for record in records
        if record.get("status")
    ]
    task, metric = clean(status["session"]["task"] or "task", 80), status["metric"]
    identity = sha256(f"{tag}\0{origin.base_commit}\0{origin.seed}".encode()).hexdigest()[:8]
    name = re.sub(r"[^\w.-]+", "-", f"{task}-{tag}-{identity}")
    metric_name = plain(metric["name"] or "metric")
    return Book(name, tag, task, metric_name, metric["direction"], entries, lambda number: reader.curve(tag, number))


def _entry(record: Record, edit: Edit | None, constants: Mapping[str, Value], redact: Callable[[str], str]) -> Entry:
    asi, own = record.get("asi") or {}, ("description", "policy", "role", "adapter", "commit", "parent")
    texts = {name: record.get(name) for name in own}
    texts |= {"hypothesis": asi.get("hypothesis") or (edit.hypothesis if edit else "")}
    texts |= {"reason": edit.reason if edit else ""}
    if record["status"] == "keep":
        texts["confirmed"] = CONFIRMED[record.get("confirmed")]
    numbers = {"expected_gain": record.get("expected_gain"), "cost_usd": record.get("cost_usd")}
    numbers |= {"duration_s": sum(run.get("duration_s") or 0.0 for run in record.get("runs") or ())}
    metrics = {plain(k): v for k, v in ((record.get("metrics") or {}) | numbers).items() if real(v) is not None}
    begun = datetime.fromisoformat(record["started_at"])
    return Entry(
        number=int(record["experiment"]),
        status=str(record["status"]),
        label=str(record.get("label") or ""),
        value=real(record.get("metric")),
        metrics=metrics,
        constants=constants,
        facts={name: redact(clean(text, 1000)) for name, text in texts.items() if text},
        confirmed=record.get("confirmed"),
        started_at=begun.astimezone(UTC),
        finished_at=datetime.fromisoformat(record["finished_at"] or record["started_at"]).astimezone(UTC),
    )


def constants_in_effect(
    records: Sequence[Record], edits: Iterable[Edit], files: Callable[[int], Mapping[str, str]]
) -> dict[int, dict[str, Value]]:
    """The values of the tuned constants in each experiment: those of its parent, and what it changed.

    Where they begin is read from the programs of a few early experiments, and from what the edits replaced; what cannot
    be read tells nothing.
    """
    edits = list(edits)
    changes = {edit.number: _values(edit.changes) for edit in edits}
    tuned = {name for own in changes.values() for name in own}
    found: dict[int, dict[str, Value]] = {}
    made_on = story.parents(records)
    base = _first_values(records, changes, tuned, made_on, files)
    for edit in edits:
        for path in {name.partition(":")[0] for name in edit.changes if name not in base}:
            removed = "\n".join(line[1:] for line in edit.diff.splitlines() if line[:1] == "-" and line[:4] != "--- ")
            found_there = {parameter.name: parameter.value for parameter in _parameters(path, removed)}
            base |= {name: found_there[name] for name in edit.changes if name in found_there and name not in base}
    for record in records:
        number = int(record["experiment"])
        found[number] = {**found.get(made_on.get(number, -1), base), **changes.get(number, {})}
    return found


def _first_values(
    records: Sequence[Record], changes: Mapping[int, Mapping[str, Value]], tuned: set[str],
    made_on: Mapping[int, int], files: Callable[[int], Mapping[str, str]],
) -> dict[str, Value]:  # fmt: skip
    base: dict[str, Value] = {}
    changed = [n for r in records if changes.get(n := int(r["experiment"]))]
    for number in [n for n in changed if made_on.get(n, 0) == 0][:_MOST_PROGRAMS]:
        if tuned <= base.keys():
            break
        for path, text in files(number).items():
            for parameter in _parameters(path, text):
                if parameter.name in tuned and parameter.name not in changes[number]:
                    base.setdefault(parameter.name, parameter.value)
    return base


def _parameters(path: str, text: str) -> Sequence[Parameter]:
    try:
        return find(text, path=path) if searchable(path) else ()
    except AutoresearchdError:  # a program that a model broke, or a part of one
        return ()


def _values(changes: Mapping[str, Any]) -> dict[str, Value]:
    return {
        name: clean(value, _LONGEST) if isinstance(value, str) else value
        for name, value in changes.items()
        if isinstance(value, (bool, str)) or real(value) is not None
    }


def plain(name: str) -> str:
    """A name that every tracker takes."""
    return _NAME.sub("_", clean(name.rpartition(":")[2] or name, _LONGEST)) or "_"


def require(load: Callable[[], Any], tracker: str, extra: str = "trackers") -> Any:
    """What ``load`` imports; MissingCapability where it is not installed."""
    try:
        return load()
    except ImportError as error:
        what = f"to export to {tracker} needs a package that is not installed: {error}"
        raise MissingCapability(what, hint=f"pip install 'autoresearchd[{extra}]'") from error


class Ledger:
    """Which experiments a tracker has that cannot be asked for it: a file beside what was written.

    UsageError: it cannot be read, so that all would be sent a second time.
    """

    def __init__(self, folder: Path, book: Book) -> None:
        self._path = folder / f"{book.name}.json"
        try:
            self.known: set[int] = set(json.loads(self._path.read_text("utf-8")))
            if not all(type(number) is int for number in self.known):
                raise ValueError("it is no list of numbers")
        except FileNotFoundError:
            self.known = set()
        except (OSError, ValueError, TypeError) as error:
            hint = "restore it; or remove it with all that it stands beside, and everything is sent anew"
            raise UsageError(f"{self._path}, the list of what was sent, cannot be read: {error}", hint=hint) from error

    def add(self, *numbers: int) -> None:
        self.known.update(numbers)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(sorted(self.known)), "utf-8")
        part.replace(self._path)
