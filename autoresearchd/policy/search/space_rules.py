"""What is found in one file: the constants that may be tuned, those that are left alone and why.

Who says so, the stronger first: task.yaml, a comment, what the constant reaches, its name and value. A seed is never
tuned, whoever asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from autoresearchd.domain.quantities import parse_bounds
from autoresearchd.domain.task import Search
from autoresearchd.policy.search.name_ranges import (
    alternatives,
    bounded,
    choice,
    flag,
    is_seed,
    listed,
    range_of,
    why_not,
    writable,
)
from autoresearchd.policy.search.parameter import Parameter, Range, Value

FIXED = re.compile(r"\bfixed\b|\b(?:do not|don't|never) (?:change|edit|tune|touch)\b", re.IGNORECASE)
_FIXED_ABOVE = re.compile(rf"[\s#]*(?:{FIXED.pattern})", re.IGNORECASE)  # a heading that has it in passing is none
_RANGE = re.compile(r"[\s#]*range\s*:(?P<bounds>.*)", re.IGNORECASE)
_ONE_OF = re.compile(r"[\s#]*one of\s*:(?P<listed>.*)", re.IGNORECASE)
_SPLIT = re.compile(r"[,|]")
_WRITE_RANGE = "write the lowest and the highest value: # range: 1e-5..1e-1"


@dataclass(frozen=True, slots=True)
class Said:
    """What the comments of a constant say. wrong: why that cannot be followed, and fix: what would be right."""

    fixed: bool = False
    bounds: tuple[float, float] | None = None
    listed: str = ""
    wrong: str = ""
    hint: str = ""


def _read_comments(beside: str, above: str) -> Said:
    """The meaning of the text after the literal's ``#``, and of the comment that is all of the line above."""
    if FIXED.search(beside) or fixed_above(above):
        return Said(fixed=True)
    for comment in (beside, above):
        if found := _RANGE.match(comment):
            try:
                return Said(bounds=parse_bounds(found["bounds"]))
            except ValueError as error:
                return Said(wrong=f"a comment gives a range, but {error}", hint=_WRITE_RANGE)
        if found := _ONE_OF.match(comment):
            return Said(listed=comment)
    return Said()


def fixed_above(above: str) -> bool:
    """Whether the comment on the line above keeps what follows as it is."""
    return _FIXED_ABOVE.match(above) is not None


def _listed_numbers(comment: str) -> tuple[int | float, ...] | None:
    """The numbers that ``one of: 16, 32, 64`` lists; None where something else stands there."""
    found = _ONE_OF.match(comment)
    text = re.split(r"[;(]|\.(?=\s|$)", found["listed"])[0] if found else ""
    parts = [part.strip() for part in _SPLIT.split(text)]
    try:
        return tuple(_number(part) for part in parts if part)
    except ValueError:
        return None


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


_NUMBERED = re.compile(r"#\d+(?=$|\[)")
BY_COMMENT = "fixed by a comment"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A constant that is not tuned. start: its place in the bytes of the file; why: the reason, for people.

    notable: whether the user may not expect it: no comment, key or plain name says so.
    """

    name: str
    path: str
    source: str
    start: int
    why: str
    notable: bool = False

    @property
    def label(self) -> str:
        """The name without the file, for people."""
        return self.name.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a person has written about a constant that cannot be followed. key: of task.yaml, empty for a comment."""

    what: str
    hint: str
    path: str
    line: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Space:
    """All constants of a file, in its order."""

    parameters: tuple[Parameter, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class Hints:
    """What is known of constants beside the text of their file.

    reasons: those to leave alone, by their name without the file → why; given: options that the run command has;
    search: what task.yaml says.
    """

    reasons: Mapping[str, str] = field(default_factory=dict)
    given: Collection[str] = ()
    search: Search = field(default_factory=Search)


def means(key: str, name: str) -> bool:
    """Whether a name that a person writes is that of a constant, or of a group that has it: ``BETAS`` of ``BETAS[0]``.

    Args:
        key: with or without the file and the number of the call.
        name: the constant's, with its file, e.g. ``train.py:AdamW.lr#1``.
    """
    label = name.partition(":")[2]
    return any(
        key == full
        or (full.startswith(key) and key != "" and full[len(key)] in ".[#")
        or _NUMBERED.sub("", full) == key
        for full in (label, name)
    )


class Gatherer:
    """Decides what each literal of a file is."""

    def __init__(self, path: str, text: str, hints: Hints, *, comments: bool = True) -> None:
        self.path, self.text, self.raw = path, text, text.encode()
        self._hints, self._commented = hints, comments
        self._found: dict[str, Parameter] = {}
        self._left: dict[str, LeftOut] = {}
        self._doubts: dict[tuple[str, str], Doubt] = {}

    def __contains__(self, label: str) -> bool:
        full = f"{self.path}:{label}"
        return full in self._found or full in self._left

    def space(self) -> Space:
        """All that was found."""
        found = sorted(self._found.values(), key=lambda p: p.start)
        left = sorted(self._left.values(), key=lambda p: p.start)
        return Space(tuple(found), tuple(left), tuple(self._doubts.values()))

    def line(self, start: int) -> int:
        """The number of the line that a place is on."""
        return self.raw.count(b"\n", 0, start) + 1

    def said(self, start: int, end: int) -> Said:
        """What the comments of a literal say."""
        return _read_comments(self.beside(end), self.above(start))

    def beside(self, end: int) -> str:
        """The comment on the line where a literal ends; none in a file of a kind that has no comments."""
        if not self._commented:
            return ""
        stop = self.raw.find(b"\n", end)
        return self.raw[end : stop if stop >= 0 else len(self.raw)].decode().partition("#")[2]

    def above(self, start: int) -> str:
        """The comment that is all of the line above the one where a literal begins."""
        line = self.raw.rfind(b"\n", 0, start) + 1
        above = self.raw[self.raw.rfind(b"\n", 0, max(line - 1, 0)) + 1 : line].decode().strip()
        return above[1:] if self._commented and above.startswith("#") else ""

    def forget(self, label: str) -> None:
        """Assigned again to something else: the earlier literal is not what counts."""
        full = f"{self.path}:{label}"
        self._found.pop(full, None)
        self._left.pop(full, None)

    def leave(self, label: str, start: int, end: int, why: str, *, notable: bool = False) -> None:
        """List a constant that is not tuned."""
        self.forget(label)
        full = f"{self.path}:{label}"
        self._left[full] = LeftOut(full, self.path, self.raw[start:end].decode(), start, why, notable)

    def take(
        self,
        label: str,
        value: Value,
        start: int,
        end: int,
        *,
        why: str = "",
        against: str = "",
        options: tuple[Value, ...] = (),
    ) -> None:
        """Decide about a literal.

        Args:
            label: its name.
            value: what it holds.
            start: its place.
            end: its end.
            why: a reason to leave it alone.
            against: one that gives way to a range, or a list of choices, which a person has written.
            options: all that it may be.
        """
        self.forget(label)
        full = f"{self.path}:{label}"
        said = self.said(start, end)
        if said.wrong:
            self._doubt(full, said.wrong, said.hint, start)
        asked = self._asked(full, value, start, self._said_range(full, value, said, start))
        reached = next((why for key, why in self._hints.reasons.items() if means(key, full)), "")
        if any(means(key, full) for key in self._hints.search.fixed):
            self.leave(label, start, end, "fixed in task.yaml")
        elif why or said.fixed:
            self.leave(label, start, end, why or BY_COMMENT)
        elif said.wrong:
            self.leave(label, start, end, "its comment cannot be followed", notable=True)
        elif is_seed(full):
            self.leave(label, start, end, why_not(full))
        elif reached and asked is None and not self._named(full):
            self.leave(label, start, end, reached, notable=True)
        else:
            found, against = (asked, "") if asked else self._usual(full, value, end, options, against)
            if found is None:
                self.leave(label, start, end, against)
            else:
                source = self.raw[start:end].decode()
                self._found[full] = Parameter(full, self.path, value, found, start, end, source)

    def _usual(
        self, full: str, value: Value, end: int, options: tuple[Value, ...], against: str
    ) -> tuple[Range | None, str]:
        """(what name and value give, else why nothing)."""
        if against := why_not(full) or against:
            return None, against
        if options:
            every = listed(value, (value, *(o for o in options if o != value)))
            return every, "" if every else "no other value is known"
        if isinstance(value, bool):
            return flag(), ""
        if isinstance(value, str):
            others = alternatives(full, value, self.beside(end), self.text)
            none = "no other value is known: a comment can list them (# one of: a, b)"
            return (choice(others), "") if others else (None, none)
        if isinstance(value, int) and value < 0:
            return None, "below zero: it may stand for all or none"
        return range_of(full, value), "no range is known for such a value"

    def _named(self, full: str) -> bool:
        search = self._hints.search
        return any(means(key, full) for key in (*search.ranges, *search.choices))

    def _said_range(self, full: str, value: Value, said: Said, start: int) -> Range | None:
        """The range that a comment gives."""
        if said.bounds is not None:
            return self._bounded(full, value, said.bounds, start)
        if not said.listed:
            return None
        if isinstance(value, bool) or (isinstance(value, str) and not said.listed.strip()):
            return None
        if isinstance(value, str):
            options: tuple[Value, ...] = alternatives(full, value, said.listed, self.text)
        else:
            found = _listed_numbers(said.listed)
            if found is None:
                self._doubt(full, "the comment's choices are no numbers", "write # one of: 16, 32, 64", start)
                return None
            options = found
        return self._listed(full, value, options, start)

    def _asked(self, full: str, value: Value, start: int, said: Range | None) -> Range | None:
        """The range that task.yaml gives, else that of a comment."""
        search = self._hints.search
        for key, bounds in search.ranges.items():
            if means(key, full):
                return self._bounded(full, value, bounds, start, f"search.ranges.{key}")
        for key, options in search.choices.items():
            if means(key, full):
                return self._listed(full, value, options, start, f"search.choices.{key}")
        return said

    def _bounded(self, full: str, value: Value, bounds: tuple[float, float], start: int, key: str = "") -> Range | None:
        low, high = bounds
        if isinstance(value, (bool, str)):
            self._doubt(
                full, f"a range is given, but {value!r} is no number", "list its values: # one of: a, b", start, key
            )
            return None
        if not low <= value <= high:
            what = f"its value {value:g} is outside of the range {low:g}..{high:g}"
            self._doubt(full, what, f"give a range that has {value:g} in it, or change the value", start, key)
        return bounded(range_of(full, value), value, low, high)

    def _listed(self, full: str, value: Value, options: tuple[Value, ...], start: int, key: str = "") -> Range | None:
        if value not in options:
            shown = ", ".join(map(str, options)) or "nothing"
            what = f"its value {value!r} is not one of the choices ({shown})"
            self._doubt(full, what, "list the present value, too", start, key)
        elif not all(isinstance(o, (int, float)) or writable(o) for o in options):
            self._doubt(full, "a choice cannot be written in quotes", "leave quotes and backslashes out", start, key)
        elif found := listed(value, options):
            return found
        else:
            self._doubt(full, "the choices are too few, or not of the value's kind", "list two or more", start, key)
        return None

    def _doubt(self, full: str, what: str, hint: str, start: int, key: str = "") -> None:
        label = full.partition(":")[2]
        self._doubts.setdefault((full, key), Doubt(f"{label}: {what}", hint, self.path, self.line(start), key))
