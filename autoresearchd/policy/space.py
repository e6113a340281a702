"""The search space of a program: which literals of a Python file may be tuned, found and replaced by libcst.

Found are top-level constants, the numbers of top-level tuples, entries of top-level dictionaries, field defaults of
configuration classes, literal arguments of well-known constructors, and choices: booleans, strings whose alternatives a
comment lists, window patterns. A change replaces the bytes of the literal and nothing else. Where a constant depends on
the profile (``8 if CUDA else 4``, ``{"cpu": …, "cuda": …}``, ``if CUDA:``), the branch that applies is tuned.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper

from autoresearchd.domain.labels import Label
from autoresearchd.errors import PolicyError
from autoresearchd.policy.calls import GROUP_ARGUMENTS, POSITIONAL, arguments_of
from autoresearchd.policy.choices import alternatives
from autoresearchd.policy.gather import LeftOut, Space, reason_for
from autoresearchd.policy.parameter import Parameter, Range, Value, write
from autoresearchd.policy.ranges import choice, flag, range_of, tunable

_PROFILES = frozenset({"cpu", "cuda", "gpu"})
_FIXED = re.compile(r"\bfixed\b|\b(?:do not|don't|never) (?:change|edit|tune|touch)\b", re.IGNORECASE)
_FIXED_BELOW = re.compile(rf"\s*#[#\s]*(?:{_FIXED.pattern})", re.IGNORECASE)  # a heading that has it in passing is none
_CONFIG_CLASS = re.compile(r"(?:config|args|arguments|hyperparameters|hparams|params|settings)$", re.IGNORECASE)
_OPENING = ("(", "[", "{")
_MAX_DEPTH = 4
_OPERATORS: dict[type[cst.BaseBinaryOp], Callable[[int | float, int | float], int | float]] = {
    cst.Multiply: operator.mul,
    cst.Divide: operator.truediv,
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
}


def find(
    text: str, *, path: str = "train.py", profile: str = "cpu", reasons: Mapping[str, str] = {}
) -> tuple[Parameter, ...]:
    """All that can be tuned in a Python file, in the order of the file; PolicyError where the file cannot be parsed."""
    return look(text, path=path, profile=profile, reasons=reasons).parameters


def look(text: str, *, path: str = "train.py", profile: str = "cpu", reasons: Mapping[str, str] = {}) -> Space:
    """As ``find``, with the constants that are left alone.

    Args:
        text: of the file.
        path: its place.
        profile: ``cpu`` or ``cuda``.
        reasons: constants to leave alone, by their name without the file (``BETAS`` means ``BETAS[0]``, too) → why.
    """
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        finder = _Finder(path, profile, text, wrapper, reasons)
        finder.walk()
    except (cst.ParserSyntaxError, cst.CSTValidationError, SyntaxError, RecursionError, ValueError) as error:
        raise PolicyError(
            f"{path} cannot be searched for constants: it is not valid Python ({str(error).splitlines()[0]})",
            label=Label.ERROR,
            mend="correct the file, or take another policy",
        ) from error
    if wrapper.module.code != text:
        mark = text.startswith("\ufeff")
        why = "it begins with a byte order mark" if mark else "its text is not kept by the parser"
        raise PolicyError(
            f"{path} cannot be searched for constants: {why}",
            mend=f"save it as UTF-8{' without the mark' if mark else ''} and commit it, or take another policy",
        )
    return Space(
        tuple(sorted(finder.found.values(), key=lambda p: p.start)),
        tuple(sorted(finder.left.values(), key=lambda p: p.start)),
    )


def apply(text: str, changes: Mapping[str, Value], *, path: str = "train.py", profile: str = "cpu") -> str:
    """The text with the literals of ``changes`` (name → new value) replaced, and not a byte more."""
    return replace(text, find(text, path=path, profile=profile), changes)


def replace(text: str, parameters: tuple[Parameter, ...], changes: Mapping[str, Value]) -> str:
    """Like ``apply``, with the parameters that ``find`` gave for this very text."""
    known = {p.name: p for p in parameters}
    raw = text.encode()
    for name in sorted(changes, key=lambda n: known[n].start if n in known else -1, reverse=True):
        value = changes[name]
        if name not in known:
            raise PolicyError(f"there is no constant {name} to change", label=Label.MALFORMED_ANSWER)
        parameter = known[name]
        if not parameter.legal(value):
            raise PolicyError(f"{value!r} is not a value for {name}", label=Label.MALFORMED_ANSWER)
        if value != parameter.value:
            raw = raw[: parameter.start] + write(parameter, value).encode() + raw[parameter.end :]
    return raw.decode()


def number_of(node: cst.BaseExpression) -> int | float | None:
    """Value of a numeric literal or of simple arithmetic on such; None for all else."""
    if isinstance(node, (cst.Integer, cst.Float)):
        value: int | float = node.evaluated_value
        return value if abs(value) < 1e18 else None
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, (cst.Minus, cst.Plus)):
        inner = number_of(node.expression)
        if inner is None:
            return None
        return -inner if isinstance(node.operator, cst.Minus) else inner
    if isinstance(node, cst.BinaryOperation):
        return _binary(node)
    return None


def _binary(node: cst.BinaryOperation) -> int | float | None:
    left, right = number_of(node.left), number_of(node.right)
    if left is None or right is None:
        return None
    try:
        if isinstance(node.operator, cst.Power):
            result = left**right if abs(left) <= 1e6 and abs(right) <= 60 else None
        else:
            function = _OPERATORS.get(type(node.operator))
            result = None if function is None else function(left, right)
    except (ZeroDivisionError, OverflowError):
        return None
    good = isinstance(result, (int, float)) and math.isfinite(result) and abs(result) < 1e18
    return result if good else None


@dataclass(slots=True)
class _Calls(cst.CSTVisitor):
    """Collects calls, and dictionaries that look like optimiser groups, in the order of the file."""

    calls: list[cst.Call]
    groups: list[cst.Dict]

    def visit_Call(self, node: cst.Call) -> None:
        self.calls.append(node)

    def visit_Dict(self, node: cst.Dict) -> None:
        if any(_key(element) == "params" for element in node.elements):
            self.groups.append(node)


class _Finder:
    """One pass over one file."""

    def __init__(
        self, path: str, profile: str, text: str, wrapper: MetadataWrapper, reasons: Mapping[str, str]
    ) -> None:
        self.reasons = reasons
        self.path, self.cuda, self.text = path, profile in {"cuda", "gpu"}, text
        self.raw = text.encode()
        self.module = wrapper.module
        self.spans: Mapping[cst.CSTNode, CodeSpan] = wrapper.resolve(ByteSpanPositionProvider)
        self.found: dict[str, Parameter] = {}
        self.left: dict[str, LeftOut] = {}
        self.calls = _Calls([], [])
        self.module.visit(self.calls)

    def walk(self) -> None:
        self._body(self.module.body)
        counts: dict[str, int] = {}
        for call in self.calls.calls:
            self._call(call, counts)
        for group in self.calls.groups:
            counts["group"] = counts.get("group", 0) + 1
            if self._fixed(group):
                continue
            for element in group.elements:
                key = _key(element)
                if key in GROUP_ARGUMENTS:
                    self._value(f"group.{key}", element.value, suffix=f"#{counts['group']}")

    # -- statements

    def _body(self, body: object) -> None:
        for statement in body if isinstance(body, (list, tuple)) else ():
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    self._assignment(small, "")
            elif isinstance(statement, cst.ClassDef):
                self._class(statement)
            elif isinstance(statement, cst.If):
                self._branch(statement)

    def _branch(self, node: cst.If) -> None:
        applies = self._applies(node.test)
        if applies:
            self._body(node.body.body)
        elif applies is False and isinstance(node.orelse, cst.Else):
            self._body(node.orelse.body.body)

    def _assignment(self, node: cst.BaseSmallStatement, owner: str) -> None:
        if isinstance(node, cst.Assign) and len(node.targets) == 1:
            target, value = node.targets[0].target, node.value
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            return
        if isinstance(target, cst.Name):
            self._value(owner + target.value, value)
        elif isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            for left, right in zip(target.elements, value.elements, strict=False):
                if isinstance(left.value, cst.Name):
                    self._value(owner + left.value.value, right.value)

    def _class(self, node: cst.ClassDef) -> None:
        decorated = any("dataclass" in self._code(d.decorator) for d in node.decorators)
        named = _CONFIG_CLASS.search(node.name.value) or any("NamedTuple" in self._code(b.value) for b in node.bases)
        if not (decorated or named):
            return
        given = self._overridden(node.name.value)
        for statement in node.body.body:
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            for small in statement.body:
                field_name = (
                    small.target.value
                    if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name)
                    else ""
                )
                if field_name not in given:
                    self._assignment(small, f"{node.name.value}.")

    def _overridden(self, class_name: str) -> set[str]:
        """Fields that a constructor call in this file sets: their defaults have no effect."""
        calls = (c for c in self.calls.calls if isinstance(c.func, cst.Name) and c.func.value == class_name)
        return {a.keyword.value for c in calls for a in c.args if a.keyword is not None}

    def _call(self, node: cst.Call, counts: dict[str, int]) -> None:
        callee = node.func.attr.value if isinstance(node.func, cst.Attribute) else getattr(node.func, "value", None)
        if not isinstance(callee, str):
            return
        keywords = [a.keyword.value if a.keyword else None for a in node.args]
        wanted = arguments_of(callee, frozenset(k for k in keywords if k))
        if not wanted:
            return
        counts[callee] = counts.get(callee, 0) + 1
        if self._fixed(node):
            return
        for position, (argument, keyword) in enumerate(zip(node.args, keywords, strict=True)):
            if keyword is None and not argument.star and POSITIONAL.get(callee, (-1, ""))[0] == position:
                keyword = POSITIONAL[callee][1]
            if keyword in wanted:
                self._value(f"{callee}.{keyword}", argument.value, suffix=f"#{counts[callee]}")

    # -- values

    def _value(self, name: str, node: cst.BaseExpression, *, suffix: str = "", depth: int = 0) -> None:
        """Take what is tunable in the value of ``name``."""
        if depth > _MAX_DEPTH or self._fixed(node):
            return
        if isinstance(node, cst.IfExp):
            applies = self._applies(node.test)
            if applies is not None:
                self._value(name, node.body if applies else node.orelse, suffix=suffix, depth=depth + 1)
        elif isinstance(node, cst.Subscript):
            if isinstance(node.value, cst.Dict) and self._by_profile(node.value) is not None:
                self._value(name, node.value, suffix=suffix, depth=depth + 1)
        elif isinstance(node, (cst.Tuple, cst.List)):
            numbers = [number_of(e.value) for e in node.elements]
            if 1 <= len(numbers) <= 16 and all(n is not None for n in numbers):
                for i, element in enumerate(node.elements):
                    self._literal(f"{name}[{i}]{suffix}", element.value)
        elif isinstance(node, cst.Dict):
            for key, value in self._entries(node):
                self._value(f"{name}.{key}" if key else name, value, suffix=suffix, depth=depth + 1)
        elif (
            isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "dict" and not suffix
        ):
            for argument in node.args:
                if argument.keyword is not None:
                    self._value(f"{name}.{argument.keyword.value}", argument.value, depth=depth + 1)
        else:
            self._literal(name + suffix, node)

    def _entries(self, node: cst.Dict) -> Iterator[tuple[str, cst.BaseExpression]]:
        chosen = self._by_profile(node)
        if chosen is not None:
            yield "", chosen
            return
        for element in node.elements:
            key = _key(element)
            if key.isidentifier():
                yield key, element.value

    def _by_profile(self, node: cst.Dict) -> cst.BaseExpression | None:
        """The value for the profile that applies, where all keys of a dictionary are profiles."""
        entries = {_key(element): element.value for element in node.elements}
        if not entries or not set(entries) <= _PROFILES:
            return None
        wanted = ("cuda", "gpu") if self.cuda else ("cpu",)
        return next((entries[w] for w in wanted if w in entries), None)

    def _applies(self, test: cst.BaseExpression) -> bool | None:
        """Whether a condition on the profile holds; None where it is no such condition."""
        code = self._code(test).lower()
        about_cuda, about_cpu = "cuda" in code or "gpu" in code, "cpu" in code
        if about_cuda == about_cpu or re.search(r"\b(?:and|or)\b", code):
            return None
        negated = code.startswith("not ") or "!=" in code
        return (self.cuda if about_cuda else not self.cuda) != negated

    def _literal(self, name: str, node: cst.BaseExpression) -> None:
        full = f"{self.path}:{name}"
        if not tunable(full):
            return
        span = self.spans.get(node)
        if span is None:
            return
        start, end = span.start, span.start + span.length
        source = self.raw[start:end].decode()
        if why := reason_for(name, self.reasons):
            self.left[full] = LeftOut(full, self.path, source, start, why, notable=True)
            return
        value, found = (None, None) if self._below(start) else self._kind(full, node, source, self._comment(end))
        if found is not None and value is not None:
            self.found[full] = Parameter(full, self.path, value, found, start, end, source)
        else:
            self.found.pop(full, None)  # assigned again to something else: the earlier literal is not what counts

    def _kind(
        self, full: str, node: cst.BaseExpression, source: str, comment: str
    ) -> tuple[Value | None, Range | None]:
        if _FIXED.search(comment):
            return None, None
        number = number_of(node)
        if number is not None:
            return number, range_of(full, number)
        if isinstance(node, cst.Name) and node.value in {"True", "False"}:
            return node.value == "True", flag()
        if isinstance(node, cst.SimpleString) and source[:1] in "\"'" and not source.startswith(('"""', "'''")):
            text = node.evaluated_value
            if isinstance(text, str):
                options = alternatives(full, text, comment, self.text)
                return text, choice(options) if options else None
        return None, None

    def _comment(self, end: int) -> str:
        """The comment on the line where a literal ends."""
        stop = self.raw.find(b"\n", end)
        return self.raw[end : stop if stop >= 0 else len(self.raw)].decode().partition("#")[2]

    def _below(self, start: int) -> bool:
        """Whether what begins there is kept as it is by a comment of its own on the line above, as ``# fixed`` is."""
        line = self.raw.rfind(b"\n", 0, start) + 1
        above = self.raw[self.raw.rfind(b"\n", 0, max(line - 1, 0)) + 1 : line]
        return _FIXED_BELOW.match(above.decode()) is not None

    def _fixed(self, node: cst.BaseExpression) -> bool:
        """Whether a comment keeps a value of several lines as it is: above, behind its opening or closing bracket.

        A comment behind the last entry of a dictionary or call is that entry's own, behind that of a list all of it.
        """
        start, end = self._extent(node)
        if self._below(start):
            return True
        first, several, rest = self.raw[start:end].decode().partition("\n")
        if not several:
            return False  # each literal looks at the comment of its line
        head, _, comment = first.partition("#")
        if head.rstrip().endswith(_OPENING) and _FIXED.search(comment):
            return True
        closes = not rest.rpartition("\n")[2].strip(" \t)]}")
        return (closes or isinstance(node, (cst.Tuple, cst.List))) and _FIXED.search(self._comment(end)) is not None

    def _extent(self, node: cst.BaseExpression) -> tuple[int, int]:
        """Where a value begins and ends, its parentheses included."""
        first, last = (node.lpar[0], node.rpar[-1]) if node.lpar else (node, node)
        end = self.spans[last]
        return self.spans[first].start, end.start + end.length

    def _code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)


def _key(element: cst.BaseDictElement) -> str:
    """The key of a dictionary entry where it is a plain string, else nothing."""
    if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
        key = element.key.evaluated_value
        return key if isinstance(key, str) else ""
    return ""
