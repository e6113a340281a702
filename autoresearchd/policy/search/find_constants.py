"""The search space of a file: which literals may be tuned, which are left alone and why, and how they are replaced.

A change replaces the bytes of the literal and nothing else. Where a constant depends on the profile, the branch that
applies is tuned. Who decides, the stronger first: task.yaml, a comment, what the constant reaches, its name and value.
A seed is never tuned, whoever asks for it.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from autoresearchd.config.value_positions import MarkupError, Scalar, kind_of, scalars
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Search
from autoresearchd.policy.search.comments import Source, listed_numbers
from autoresearchd.policy.search.name_ranges import (
    alternatives,
    bounded,
    choice,
    is_not_own,
    is_seed,
    listed,
    range_of,
    why_not,
    writable,
)
from autoresearchd.policy.search.parameter import Parameter, Range, Value, number_of, write
from autoresearchd.policy.search.program_parts import BY_COMMENT, Parts

UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_ENVIRONMENT = re.compile(r"\b(?:environ|getenv)\b")
_PLAIN_STRING = re.compile(r"""(["'])(?!\1\1)(?:\\.|(?!\1)[^\\\n])*\1""")
_NUMBERED = re.compile(r"#\d+(?=$|\[)")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A constant that is not tuned. notable: the user may not expect it, as no comment, key or plain name says so."""

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
    """What a person wrote about a constant, and cannot be followed. key: of task.yaml, empty for a comment."""

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


def searchable(path: str) -> bool:
    """Whether files of that name have constants that are found."""
    return path.endswith(".py") or kind_of(path) != ""


def find(text: str, *, path: str = "train.py", profile: str = "cpu") -> tuple[Parameter, ...]:
    """All that can be tuned in a file, in its order; PolicyError where the file cannot be parsed."""
    return look(text, path=path, profile=profile).parameters


def look(
    text: str,
    *,
    path: str = "train.py",
    profile: str = "cpu",
    reasons: Mapping[int, str] = {},
    given: Collection[str] = (),
    search: Search | None = None,
) -> Space:
    """As ``find``, with the constants that are left alone.

    reasons: constants to leave alone, by the place where they begin → why. given: options that the run command has,
    ``--lr``: their defaults have no effect. search: what task.yaml says.
    """
    kind = kind_of(path)
    try:
        gatherer = _Gatherer(path, Source(text, commented=kind != "JSON"), reasons, search or Search())
        if kind:
            gatherer.take_scalars(scalars(path, text), {word.lstrip("+") for word in given})
        elif text.startswith("\ufeff"):
            raise ValueError("it begins with a byte order mark: save it without one")
        else:
            with warnings.catch_warnings(action="ignore"):  # a doubtful escape is the model's affair
                gatherer.take_parts(Parts(gatherer.source, cuda=profile in {"cuda", "gpu"}, given=given))
        return gatherer.space()
    except MarkupError as error:
        line, why = error.line, error.what
    except SyntaxError as error:
        line, why = error.lineno, f"it is not valid Python: {error.msg}"
    except UNPARSABLE as error:
        line, why = None, f"it is not valid Python: {error}"
    where = f"{path}, line {line}," if line else path
    what = f"{where} cannot be searched for constants: {why}"
    raise PolicyError(what, label=Label.ERROR, hint="correct the file, or take another policy")


def apply(text: str, changes: Mapping[str, Value], *, path: str = "train.py", profile: str = "cpu") -> str:
    """The text with the literals of ``changes`` (name → new value) replaced, and not a byte more."""
    return replace(text, find(text, path=path, profile=profile), changes)


def replace(text: str, parameters: tuple[Parameter, ...], changes: Mapping[str, Value]) -> str:
    """Like ``apply``, with the parameters that ``find`` gave for this very text."""
    known = {p.name: p for p in parameters}
    for name, value in changes.items():
        if name not in known:
            raise PolicyError(f"there is no constant {name} to change", label=Label.MALFORMED_ANSWER)
        if not known[name].legal(value):
            raise PolicyError(f"{value!r} is not a value for {name}", label=Label.MALFORMED_ANSWER)
    raw = text.encode()
    for parameter in sorted(map(known.__getitem__, changes), key=lambda p: p.start, reverse=True):
        value = changes[parameter.name]
        if value != parameter.value:
            raw = raw[: parameter.start] + write(parameter, value).encode() + raw[parameter.end :]
    return raw.decode()


def means(key: str, name: str) -> bool:
    """Whether a name that a person writes is that of a constant, or of a group that has it: ``BETAS`` of ``BETAS[0]``.

    key: with or without the file and the number of the call. name: the constant's, e.g. ``train.py:AdamW.lr#1``.
    """
    label = name.partition(":")[2]
    return any(
        key == full
        or (full.startswith(key) and key != "" and full[len(key)] in ".[#")
        or _NUMBERED.sub("", full) == key
        for full in (label, name)
    )


class _Gatherer:
    """Decides what each literal of a file is."""

    def __init__(self, path: str, source: Source, reasons: Mapping[int, str], search: Search) -> None:
        self._path, self.source, self._reasons, self._search = path, source, reasons, search
        self._found: dict[str, Parameter | LeftOut] = {}
        self._doubts: dict[tuple[str, str], Doubt] = {}

    def space(self) -> Space:
        """All that was found."""
        found = sorted(self._found.values(), key=lambda one: one.start)
        return Space(
            tuple(p for p in found if isinstance(p, Parameter)),
            tuple(left for left in found if isinstance(left, LeftOut)),
            tuple(self._doubts.values()),
        )

    def take_parts(self, parts: Parts) -> None:
        """Take all constants of a Python program."""
        for one in parts.values():
            name = f"{self._path}:{one.name}"
            if not one.tuned or (one.late and name in self._found):  # another constant may have its name
                continue
            start, end = self.source.place(one.node)
            value = _literal_value(one.node, self.source.part(start, end))
            if value is not None:
                value = float(value) if one.real and type(value) is int else value
                self._take(name, value, start, end, why=one.why, options=one.options)
            elif computed := _computed(one.name, one.node):
                self._leave(name, start, end, one.why or why_not(name) or computed)
            else:  # assigned again to something else: the earlier literal is not what counts
                self._found.pop(name, None)

    def take_scalars(self, found: Iterable[Scalar], given: Collection[str]) -> None:
        """Take all constants of a YAML, JSON or TOML file that a program reads: ``config.yaml:optimizer.lr``."""
        for scalar in found:
            why = BY_COMMENT if any(self.source.is_fixed(*head) for head in scalar.heads) else ""
            if scalar.name in given:
                why = f"execution.run_command gives {scalar.name}"
            group = scalar.name.rpartition(".")[0]
            against = f"in {group}, which is about data, results or logs" if group and is_not_own(group) else ""
            name = f"{self._path}:{scalar.name}"
            self._take(name, scalar.value, scalar.start, scalar.end, why=why, against=against)

    def _leave(self, name: str, start: int, end: int, why: str, *, notable: bool = False) -> None:
        self._found[name] = LeftOut(name, self._path, self.source.part(start, end), start, why, notable)

    def _take(
        self,
        name: str,
        value: Value,
        start: int,
        end: int,
        *,
        why: str = "",
        against: str = "",
        options: tuple[Value, ...] = (),
    ) -> None:
        """Decide about a literal.

        why: a reason to leave it alone; against: one that gives way to a range, or a list of choices, which a person
        has written. options: all that it may be.
        """
        asked, fixed, wrong = None, self.source.is_fixed(start, end), ""
        if not fixed:
            try:
                asked = self._commented(name, value, start, end)
            except ValueError as error:
                wrong = f"a comment gives a range, but {error}"
                self._doubt(name, wrong, "write the lowest and the highest value: # range: 1e-5..1e-1", start)
        named, by_task = self._by_task(name, value, start)
        asked = by_task if named else asked
        if any(means(key, name) for key in self._search.fixed):
            self._leave(name, start, end, "fixed in task.yaml")
        elif why or fixed:
            self._leave(name, start, end, why or BY_COMMENT)
        elif wrong:
            self._leave(name, start, end, "its comment cannot be followed", notable=True)
        elif is_seed(name):
            self._leave(name, start, end, why_not(name))
        else:
            usual = asked or why_not(name) or against or self._usual(name, value, end, options)
            reached = self._reasons.get(start, "")
            if isinstance(usual, str):
                self._leave(name, start, end, usual)
            elif reached and asked is None and not named:
                self._leave(name, start, end, reached, notable=True)
            else:
                source = self.source.part(start, end)
                self._found[name] = Parameter(name, self._path, value, usual, start, end, source)

    def _usual(self, name: str, value: Value, end: int, options: tuple[Value, ...]) -> Range | str:
        """What name and value give, else why nothing."""
        if options:
            return listed(value, (value, *(o for o in options if o != value))) or "no other value is known"
        if isinstance(value, bool):
            return choice((True, False), family="flag", priority=0.6)
        if isinstance(value, str):
            others = alternatives(name, value, self.source.beside(end), self.source.text)
            none = "no other value is known: a comment can list them (# one of: a, b)"
            return choice(others) if others else none
        if isinstance(value, int) and value < 0:
            return "below zero: it may stand for all or none"
        return range_of(name, value) or "no range is known for such a value"

    def _commented(self, name: str, value: Value, start: int, end: int) -> Range | None:
        """The range that a comment gives. Raises ValueError where it gives one that is none."""
        bounds, comment = self.source.bounds(start, end)
        if bounds is not None:
            return self._bounded(name, value, bounds, start)
        if not comment or isinstance(value, bool):
            return None
        if isinstance(value, str):
            return self._listed(name, value, alternatives(name, value, comment, self.source.text), start)
        numbers = listed_numbers(comment)
        if numbers is None:
            self._doubt(name, "the comment's choices are no numbers", "write # one of: 16, 32, 64", start)
            return None
        return self._listed(name, value, numbers, start)

    def _by_task(self, name: str, value: Value, start: int) -> tuple[bool, Range | None]:
        """(whether task.yaml gives a range or choices, what they are)."""
        for key, bounds in self._search.ranges.items():
            if means(key, name):
                return True, self._bounded(name, value, bounds, start, f"search.ranges.{key}")
        for key, options in self._search.choices.items():
            if means(key, name):
                return True, self._listed(name, value, options, start, f"search.choices.{key}")
        return False, None

    def _bounded(self, name: str, value: Value, bounds: tuple[float, float], start: int, key: str = "") -> Range | None:
        low, high = bounds
        if isinstance(value, (bool, str)):
            what = f"a range is given, but {value!r} is not a number"
            self._doubt(name, what, "list its values: # one of: a, b", start, key)
            return None
        if not low <= value <= high:
            what = f"its value {value:g} is outside of the range {low:g}..{high:g}"
            self._doubt(name, what, f"give a range that has {value:g} in it, or change the value", start, key)
        return bounded(range_of(name, value), value, low, high)

    def _listed(self, name: str, value: Value, options: tuple[Value, ...], start: int, key: str = "") -> Range | None:
        if value not in options:
            shown = ", ".join(map(str, options)) or "nothing"
            what = f"its value {value!r} is not one of the choices ({shown})"
            self._doubt(name, what, "list the present value, too", start, key)
        elif not all(isinstance(o, (int, float)) or writable(o) for o in options):
            self._doubt(name, "a choice cannot be written in quotes", "leave quotes and backslashes out", start, key)
        elif found := listed(value, options):
            return found
        else:
            self._doubt(name, "the choices are too few, or not of the value's kind", "list two or more", start, key)
        return None

    def _doubt(self, name: str, what: str, hint: str, start: int, key: str = "") -> None:
        what = f"{name.partition(':')[2]}: {what}"
        self._doubts.setdefault((name, key), Doubt(what, hint, self._path, self.source.line(start), key))


def _literal_value(node: ast.expr, source: str) -> Value | None:
    """The value of a number, a boolean or a plain string between single quotes of either kind; None for all else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, str)):
        return node.value if isinstance(node.value, bool) or _PLAIN_STRING.fullmatch(source) else None
    return number_of(node)


def _computed(name: str, node: ast.expr) -> str:
    """Why a value that is no literal is no constant to turn; empty where nobody would take it for one."""
    constant = name.isupper() or "." in name  # what a script computes on its way, it calls loss or x
    if constant and isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return "derived: computed from other values"
    if isinstance(node, ast.Call) and _ENVIRONMENT.search(ast.unparse(node)):
        return "read from the environment"
    return ""
