"""The constants of a task's editable files: which may be tuned, which are left alone and why, and how they change.

A change replaces the bytes of the literal and nothing else. Who decides, the stronger first: task.yaml, a comment, what
the constant reaches, its name and value; a seed is never tuned. Where a program prints its own score, another value of
what makes, reads, splits or seeds the data gives another score and no better model (docs/adr/0040).
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autoresearchd.config.value_positions import MarkupError, Scalar, kind_of, scalars
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import some_of
from autoresearchd.domain.task import MetricSource, Search, Task
from autoresearchd.policy.search.data_flow import Constant, reached
from autoresearchd.policy.search.known_calls import usual
from autoresearchd.policy.search.parameter import (
    Parameter,
    Range,
    Value,
    alternatives,
    bag,
    bounded,
    choice,
    is_not_own,
    is_seed,
    listed,
    number_of,
    range_of,
    why_not,
    words_of,
    writable,
    write,
)
from autoresearchd.policy.search.program_parts import BY_COMMENT, Parts, Source, listed_values

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


class Doubt(Exception):
    """What a person wrote about a constant, and cannot be followed. key: of task.yaml, empty for a comment.

    span: what the constant may be all the same.
    """

    path, line, key = "", 0, ""

    def __init__(self, what: str, *, hint: str, span: Range | None = None) -> None:
        super().__init__(what)
        self.what, self.hint, self.span = what, hint, span


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
    trusted: bool = True,
) -> Space:
    """As ``find``, with the constants that are left alone.

    reasons: constants to leave alone, by the place where they begin → why. given: options that the run command has,
    ``--lr``: their defaults have no effect. search: what task.yaml says. trusted: no program measures itself;
    else names of a configuration file that are about the data are left alone.
    """
    kind = kind_of(path)
    hint = "correct the file, or take another policy"
    try:
        gatherer = _Gatherer(path, Source(text, commented=kind != "JSON"), reasons, search or Search())
        if kind:
            gatherer.take_scalars(scalars(path, text), {word.lstrip("+") for word in given}, trusted=trusted)
        else:
            with warnings.catch_warnings(action="ignore"):  # a doubtful escape is the model's affair
                gatherer.take_parts(Parts(gatherer.source, cuda=profile in {"cuda", "gpu"}, given=given))
        return gatherer.space()
    except MarkupError as error:
        line, why = error.line, error.what
    except UNPARSABLE as error:
        line, said = (error.lineno, error.msg) if isinstance(error, SyntaxError) else (None, str(error))
        why = f"Python {sys.version_info[0]}.{sys.version_info[1]}, which runs autoresearchd, cannot read it: {said}"
        hint += "; where the program is for a newer Python, autoresearchd can be run under that"
    where = f"{path}, line {line}," if line else path
    what = f"{where} cannot be searched for constants: {why}"
    raise PolicyError(what, label=Label.ERROR, hint=hint)


def replace(text: str, parameters: Iterable[Parameter], changes: Mapping[str, Value]) -> str:
    """The text with literals (name → new value) replaced, and not a byte more. parameters: found in this text."""
    known = {p.name: p for p in parameters}
    for name, value in changes.items():
        if name not in known or not known[name].legal(value):
            raise PolicyError(f"{value!r} is not a value for {name}", label=Label.MALFORMED_ANSWER)
    raw = text.encode()
    for parameter in sorted(map(known.__getitem__, changes), key=lambda p: p.start, reverse=True):
        value = changes[parameter.name]
        if value != parameter.value:
            raw = raw[: parameter.start] + write(parameter, value).encode() + raw[parameter.end :]
    return raw.decode()


def means(key: str, name: str) -> bool:
    """Whether what a person writes names the constant ``name``, or its group: ``BETAS`` of ``BETAS[0]``."""
    label = name.partition(":")[2]
    return any(
        key == full
        or (full.startswith(key) and key != "" and full[len(key)] in ".[#")
        or _NUMBERED.sub("", full) == key
        for full in (label, name)
    )


class _Gatherer:
    def __init__(self, path: str, source: Source, reasons: Mapping[int, str], search: Search) -> None:
        self._path, self.source, self._reasons, self._search = path, source, reasons, search
        self._found: dict[str, Parameter | LeftOut] = {}
        self._doubts: dict[tuple[str, str], Doubt] = {}

    def space(self) -> Space:
        """All that was found."""
        found = sorted(self._found.values(), key=lambda one: one.start)
        # One literal may be found under two names: ``group = {"lr": 0.1}`` is group.lr, and an argument.
        tuned = {p.start: p for p in reversed(found) if isinstance(p, Parameter)}
        return Space(
            tuple(p for p in found if tuned.get(p.start) is p),
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
                why = one.why or why_not(name) or computed
                self._found[name] = LeftOut(name, self._path, self.source.part(start, end), start, why)
            else:  # assigned again to something else: the earlier literal is not what counts
                self._found.pop(name, None)

    def take_scalars(self, found: Iterable[Scalar], given: Collection[str], *, trusted: bool) -> None:
        """Take all constants of a YAML, JSON or TOML file that a program reads: ``config.yaml:optimizer.lr``."""
        for scalar in found:
            why = BY_COMMENT if any(self.source.is_fixed(*head) for head in scalar.heads) else ""
            if scalar.name in given:
                why = f"execution.run_command gives {scalar.name}"
            group = scalar.name.rpartition(".")[0]
            against = f"in {group}, which is about data, results or logs" if group and is_not_own(group) else ""
            against = against or ("" if trusted else _by_name(scalar.name))
            name = f"{self._path}:{scalar.name}"
            self._take(name, scalar.value, scalar.start, scalar.end, why=why, against=against)

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
        """Decide about a literal. against: a reason that gives way to what a person wrote; options: what it may be."""
        why = why or (BY_COMMENT if self.source.is_fixed(start, end) else "")
        asked, wrong = None, ""
        kind, key = self._named_in_task(name)
        try:
            if kind == "ranges":
                asked = _between(name, value, self._search.ranges[key])
            elif kind:
                asked = _among(value, self._search.choices[key])
            elif not why:
                asked = self._commented(name, value, start, end)
        except Doubt as error:
            place = f"search.{kind}.{key}" if kind else ""
            asked, wrong = error.span, f"its {'bounds' if kind else 'comment'} cannot be followed"
            error.what = f"{name.partition(':')[2]}: {error.what}"
            error.path, error.line, error.key = self._path, self.source.line(start), place
            self._doubts.setdefault((name, place), error)
        if any(means(fixed, name) for fixed in self._search.fixed):
            why = "fixed in task.yaml"
        wrong = "" if asked else wrong
        verdict = why or wrong or (why_not(name) if is_seed(name) else "") or asked
        verdict = verdict or why_not(name) or against or self._usual(name, value, end, options)
        reached = self._reasons.get(start, "") if asked is None and isinstance(verdict, Range) else ""
        source = self.source.part(start, end)
        if isinstance(verdict, Range) and not reached:
            self._found[name] = Parameter(name, self._path, value, verdict, start, end, source)
        else:
            notable = bool(reached or (wrong and not why))
            self._found[name] = LeftOut(name, self._path, source, start, reached or str(verdict), notable)

    def _usual(self, name: str, value: Value, end: int, options: tuple[Value, ...]) -> Range | str:
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
        """The range that a comment gives."""
        try:
            bounds, comment = self.source.bounds(start, end)
        except ValueError as error:
            hint = "write the lowest and the highest value: # range: 1e-5..1e-1"
            raise Doubt(f"a comment gives a range, but {error}", hint=hint) from None
        if bounds is not None:
            return _between(name, value, bounds)
        if not comment or isinstance(value, bool):
            return None
        if isinstance(value, str):
            return _among(value, alternatives(name, value, comment, self.source.text))
        return _among(value, listed_values(comment))

    def _named_in_task(self, name: str) -> tuple[str, str]:
        """The table and the key of task.yaml's ``search`` that bound a constant; empty where none does."""
        tables = {"ranges": self._search.ranges, "choices": self._search.choices}
        return next(((kind, key) for kind, table in tables.items() for key in table if means(key, name)), ("", ""))


def _between(name: str, value: Value, bounds: tuple[float, float]) -> Range:
    low, high = bounds
    if isinstance(value, (bool, str)):
        what = f"a range is given, but {value!r} is not a number"
        raise Doubt(what, hint="list its values: # one of: a, b")
    span = bounded(range_of(name, value), value, low, high)
    if low <= value <= high:
        return span
    what = f"its value {value:g} is outside of the range {low:g}..{high:g}"
    raise Doubt(what, hint=f"give a range that has {value:g} in it, or change the value", span=span)


def _among(value: Value, options: tuple[Value, ...]) -> Range:
    if value not in options:
        shown = ", ".join(map(str, options)) or "nothing"
        what = f"its value {value!r} is not one of the choices ({shown})"
        raise Doubt(what, hint="list the present value, too")
    if not all(isinstance(o, (int, float)) or writable(o) for o in options):
        raise Doubt("a choice cannot be written in quotes", hint="leave quotes and backslashes out")
    if found := listed(value, options):
        return found
    raise Doubt("the choices are too few, or not of the value's kind", hint="list two or more")


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


# ---------------------------------------------------------------------- of a task
_MOST_CHARACTERS = 400_000
MOST_NAMED = 8
_REMEMBERED = 16
_spaces: dict[tuple[str, str], tuple[Task, Space]] = {}
"""Of the latest programs: one turn looks at its program more than once, and most turns at that of the turn before."""

_PARTS = bag("train training val valid validation test eval evaluation holdout heldout dev")
_AMOUNTS = bag("n num size number count frac fraction ratio pct percent share row sample example point item image line")
_ROWS = bag("sample row example point observation record datapoint")
_COUNTED = bag("n num number")
_EVALUATED = bag("iter iteration batch step token sample seed length len context k")
_PLACE = bag("path dir directory file folder root csv")
_DATA = bag("data dataset corpus input train val valid test label target")


def constants(task: Task, code: Mapping[str, str]) -> dict[str, Parameter]:
    """All constants by name; PolicyError where none has another value."""
    found = spaces(task, code).values()
    every = {p.name: p for space in found for p in space.parameters}
    if not any(map(movable, every.values())):
        raise nothing_to_tune(task, [left.label for space in found for left in space.left_out if left.notable])
    return every


def new_files(code: Mapping[str, str], moves: Iterable[tuple[Parameter, Value]]) -> dict[str, str]:
    """New text of each file that the moves touch."""
    by_path: dict[str, dict[Parameter, Value]] = defaultdict(dict)
    for parameter, value in moves:
        by_path[parameter.path][parameter] = value
    return {path: replace(code[path], own, {p.name: v for p, v in own.items()}) for path, own in by_path.items()}


def space_of(task: Task, path: str, text: str) -> Space:
    """What may be tuned in a file of a task, and what is left alone and why. The one place where reasons come from."""
    known = _spaces.get((path, text))
    if known is None or known[0] != task:
        known = task, _space_of(task, path, text)
        for old in list(_spaces)[: -_REMEMBERED + 1]:
            _spaces.pop(old, None)
        _spaces[path, text] = known
    return known[1]


def _space_of(task: Task, path: str, text: str) -> Space:
    reasons = {c.start: why for c, why in left_alone(task, text)} if path.endswith(".py") else {}
    words = (word.strip("\"'") for word in task.execution.run_command.split())
    # The command's options and assignments, without their values: --lr, optimizer.lr.
    given = {name for word in words if (name := word.partition("=")[0]) != word or word.startswith("-")}
    trusted = task.scoring.source is MetricSource.EVALUATOR
    return look(
        text, path=path, profile=task.profile, reasons=reasons, given=given, search=task.search, trusted=trusted
    )


def spaces(task: Task, code: Mapping[str, str]) -> dict[str, Space]:
    """The same of each editable file that can be searched; PolicyError where a program cannot be parsed."""
    found: dict[str, Space] = {}
    for path in task.editable:
        if path in code and searchable(path):
            try:
                found[path] = space_of(task, path, code[path])
            except PolicyError:  # a template of a configuration file, say, with which a program may do as it likes
                if path.endswith(".py"):
                    raise
    return found


def nothing_to_tune(task: Task, left_out: Sequence[str] = ()) -> PolicyError:
    """The error for a program without a constant to turn. left_out: names of those that are left alone for a reason."""
    take = "take a policy with a model (--policy litellm:MODEL)"
    if left_out:
        what = f"every constant is left alone ({some_of(left_out, MOST_NAMED)})"
        hint = "`autoresearchd task space` says why; write what may vary as constants of its own, let the evaluator "
        hint += f"measure (evaluation.command), or {take}"
    else:
        what = "no constant that may vary, and no listed choice"
        hint = f"{take} or a tool of your own (--policy command:CMD)"
        if any(map(searchable, task.editable)):
            hint = f"write what may vary as constants, e.g. LEARNING_RATE = 3e-4, or {hint}"
    return PolicyError(f"{', '.join(task.editable)}: nothing to tune: {what}", label=Label.NO_OP, hint=hint)


def movable(parameter: Parameter) -> bool:
    """Whether there is another value that it may have."""
    low, high = parameter.bounds
    return low < high if parameter.numeric else bool(parameter.others())


# ---------------------------------------------------------------------- what reaches the score
def left_alone(task: Task, text: str) -> tuple[tuple[Constant, str], ...]:
    """Constants of an editable file that reach what is measured, each with the reason that it is not to be tuned."""
    return tuple((c, why) for c, why in _measured(task, text) if not c.inline)


def _named_alone(task: Task, code: Mapping[str, str]) -> str:
    """Some of their names in all editable files; with the file where there are several."""
    paths = [path for path in task.editable if path.endswith(".py") and path in code]
    names = {path: dict.fromkeys(c.name for c, _ in left_alone(task, code[path])) for path in paths}
    return some_of(
        [name if len(paths) == 1 else f"{path}:{name}" for path in paths for name in names[path]], MOST_NAMED
    )


def warnings_of(task: Task, code: Mapping[str, str]) -> tuple[str, ...]:
    """What nothing protects where a program computes its own score, and what is left alone; empty where it does not."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ()
    warning = (
        f"{task.metric.name} is self-reported: the program that is edited computes and prints its own score, so an "
        "edit can change the data or the score, and nothing here can tell; evaluation.command in task.yaml lets the "
        "evaluator measure it"
    )
    alone = _named_alone(task, code)
    return (warning, f"search and random leave alone what reaches it: {alone}") if alone else (warning,)


def rule(task: Task, code: Mapping[str, str]) -> str:
    """What a policy with a model is told of it, in a sentence or two; empty where the evaluator measures."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ""
    alone = _named_alone(task, code)
    return (
        "What is measured stays as it is: the data, how it is made, read, split and seeded, and the computation of "
        f"{task.metric.name}{f', and with them {alone},' if alone else ''} are not to be changed; an edit that changes "
        "them is flagged, and its result means nothing."
    )


def changed(task: Task, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """What an edit (also one that renames or removes) changes of what is measured: ``N, which makes the data …``."""
    found = []
    for path in task.editable:
        old, new = before.get(path, ""), after.get(path, "")
        if path.endswith(".py") and old != new:
            were, are = _measured(task, old), _texts(_measured(task, new))
            reasons = {c.name: why.removeprefix("it ") for c, why in reversed(were)}
            texts = _texts(were).items()
            found += [f"{n.partition('#')[0]}, which {reasons[n]}" for n, text in texts if text != are.get(n)]
    return tuple(dict.fromkeys(found))


def _texts(found: Sequence[tuple[Constant, str]]) -> dict[str, list[str]]:
    """What is written for every constant, wherever it stands, by name."""
    texts: dict[str, list[str]] = defaultdict(list)
    for constant, _ in found:
        texts[constant.name].append(" ".join(constant.text.split()))
    return texts


def _measured(task: Task, text: str) -> tuple[tuple[Constant, str], ...]:
    return () if task.scoring.source is MetricSource.EVALUATOR else _look(text, task.metric.name)


@lru_cache(maxsize=16)
def _look(text: str, metric: str) -> tuple[tuple[Constant, str], ...]:
    if len(text) > _MOST_CHARACTERS:
        return ()
    try:
        with warnings.catch_warnings(action="ignore"):
            flows = reached(Parts(Source(text)), metric)
    except UNPARSABLE:
        return ()
    found = []
    for constant, way in flows:
        by_name = "" if constant.inline else _by_name(constant.name)
        if why := way.replace("the metric", metric or "what is measured") if way else by_name:
            found.append((constant, why))
    return tuple(sorted(found, key=lambda item: item[0].start))


def _by_name(name: str) -> str:
    words = frozenset(words_of(name))
    if is_seed(name):
        return "it is a seed"
    splits = "fold" in words or words == {"cv"} or ("split" in words and not usual(name) and "min" not in words)
    if splits or (words & _PARTS and words & _AMOUNTS and not words & {"batch", "epoch", "step", "worker"}):
        return "it splits the data"
    if words & _ROWS and words & _COUNTED and not words & {"min", "max", "leaf"}:
        return "it is the size of the data"
    if words & {"eval", "evaluation", "val", "validation", "test"} and words & _EVALUATED and "every" not in words:
        return "it says on how much it is measured"
    return "it says which data is read" if words & _PLACE and words & _DATA else ""
