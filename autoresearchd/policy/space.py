"""The search space of a program: which literals of a file may be tuned, found and replaced by libcst.

Found are top-level constants, the numbers of top-level tuples, entries of top-level dictionaries, field defaults of
configuration classes, defaults of functions and of command-line options, literal arguments of well-known constructors,
and choices: booleans, strings whose alternatives a comment lists, window patterns. A change replaces the bytes of the
literal and nothing else. Where a constant depends on the profile (``8 if CUDA else 4``, ``{"cpu": …, "cuda": …}``,
``if CUDA:``), the branch that applies is tuned. Of YAML, JSON and TOML files it is every number, boolean and text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper

from autoresearchd.config.markup import kind_of
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Search
from autoresearchd.errors import PolicyError
from autoresearchd.policy import config_files
from autoresearchd.policy.calls import GROUP_ARGUMENTS, POSITIONAL, arguments_of
from autoresearchd.policy.comments import FIXED, fixed_above
from autoresearchd.policy.defaults import Calls, Default, all_defaults
from autoresearchd.policy.gather import BY_COMMENT, Gatherer, Hints, Space
from autoresearchd.policy.literals import key_of, literal, number_of
from autoresearchd.policy.parameter import Parameter, Value, write
from autoresearchd.policy.ranges import why_not

_PROFILES = frozenset({"cpu", "cuda", "gpu"})
_CONFIG_CLASS = re.compile(r"(?:config|args|arguments|hyperparameters|hparams|params|settings)$", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"\b(?:environ|getenv)\b")
_FIELDS = frozenset({"field", "Field", "ib", "attrib"})
_OPENING = ("(", "[", "{")
_MAX_DEPTH = 4


def searchable(path: str) -> bool:
    """Whether files of that name have constants that are found."""
    return path.endswith(".py") or kind_of(path) != ""


def find(
    text: str, *, path: str = "train.py", profile: str = "cpu", reasons: Mapping[str, str] = {}
) -> tuple[Parameter, ...]:
    """All that can be tuned in a Python file, in the order of the file; PolicyError where the file cannot be parsed."""
    return look(text, path=path, profile=profile, reasons=reasons).parameters


def look(
    text: str,
    *,
    path: str = "train.py",
    profile: str = "cpu",
    reasons: Mapping[str, str] = {},
    given: Collection[str] = (),
    search: Search | None = None,
) -> Space:
    """As ``find``, with the constants that are left alone. Also of YAML, JSON and TOML files.

    Args:
        text: of the file.
        path: its place.
        profile: ``cpu`` or ``cuda``.
        reasons: constants to leave alone, by their name without the file (``BETAS`` means ``BETAS[0]``, too) → why.
        given: options that the run command has, ``--lr``: their defaults have no effect.
        search: what task.yaml says.
    """
    hints = Hints(reasons, given, search or Search())
    if kind_of(path):
        return config_files.look(text, path, hints)
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        finder = _Finder(path, profile, text, wrapper, hints)
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
    return finder.gathered.space()


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


class _Finder:
    """One pass over one file."""

    def __init__(self, path: str, profile: str, text: str, wrapper: MetadataWrapper, hints: Hints) -> None:
        self.cuda, self.given = profile in {"cuda", "gpu"}, hints.given
        self.gathered = Gatherer(path, text, hints)
        self.path, self.raw = path, self.gathered.raw
        self.module = wrapper.module
        self.spans: Mapping[cst.CSTNode, CodeSpan] = wrapper.resolve(ByteSpanPositionProvider)
        self.calls = Calls()
        self.module.visit(self.calls)

    def walk(self) -> None:
        self._body(self.module.body)
        counts: dict[str, int] = {}
        for call in self.calls.calls:
            self._call(call, counts)
        for group in self.calls.groups:
            counts["group"] = counts.get("group", 0) + 1
            why = self._fixed(group)
            for element in group.elements:
                key = key_of(element)
                if key in GROUP_ARGUMENTS:
                    self._value(f"group.{key}", element.value, suffix=f"#{counts['group']}", why=why)
        for default in all_defaults(self.calls, self.given):
            self._default(default)

    def _default(self, default: Default) -> None:
        """Take the default of a function's argument or of an option, unless another constant has its name."""
        if default.name not in self.gathered:
            self._value(default.name, default.node, why=default.why, options=default.options, real=default.real)

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

    def _assignment(self, node: cst.BaseSmallStatement, owner: str, why: str = "") -> None:
        if isinstance(node, cst.Assign) and len(node.targets) == 1:
            target, value = node.targets[0].target, node.value
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            return
        if isinstance(target, cst.Name):
            self._value(owner + target.value, value, why=why)
        elif isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            for left, right in zip(target.elements, value.elements, strict=False):
                if isinstance(left.value, cst.Name):
                    self._value(owner + left.value.value, right.value, why=why)

    def _class(self, node: cst.ClassDef) -> None:
        decorated = any("dataclass" in self._code(d.decorator) for d in node.decorators)
        named = _CONFIG_CLASS.search(node.name.value) or any("NamedTuple" in self._code(b.value) for b in node.bases)
        if not (decorated or named):
            return
        given = self.calls.overridden(node.name.value)
        for statement in node.body.body:
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            for small in statement.body:
                field_name = (
                    small.target.value
                    if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name)
                    else ""
                )
                why = "a call in the file sets it" if field_name in given else ""
                self._assignment(small, f"{node.name.value}.", why)

    def _call(self, node: cst.Call, counts: dict[str, int]) -> None:
        callee = node.func.attr.value if isinstance(node.func, cst.Attribute) else getattr(node.func, "value", None)
        if not isinstance(callee, str):
            return
        keywords = [a.keyword.value if a.keyword else None for a in node.args]
        wanted = arguments_of(callee, frozenset(k for k in keywords if k))
        if not wanted:
            return
        counts[callee] = counts.get(callee, 0) + 1
        why = self._fixed(node)
        for position, (argument, keyword) in enumerate(zip(node.args, keywords, strict=True)):
            if keyword is None and not argument.star and POSITIONAL.get(callee, (-1, ""))[0] == position:
                keyword = POSITIONAL[callee][1]
            if keyword in wanted:
                self._value(f"{callee}.{keyword}", argument.value, suffix=f"#{counts[callee]}", why=why)

    # -- values

    def _value(
        self,
        name: str,
        node: cst.BaseExpression,
        *,
        suffix: str = "",
        depth: int = 0,
        why: str = "",
        options: tuple[Value, ...] = (),
        real: bool = False,
    ) -> None:
        """Take what is tunable in the value of ``name``. why: a reason against all of it that is known already."""
        if depth > _MAX_DEPTH:
            return
        why = why or self._fixed(node)
        if isinstance(node, cst.IfExp):
            applies = self._applies(node.test)
            if applies is not None:
                self._value(name, node.body if applies else node.orelse, suffix=suffix, depth=depth + 1, why=why)
        elif isinstance(node, cst.Subscript):
            if isinstance(node.value, cst.Dict) and self._by_profile(node.value) is not None:
                self._value(name, node.value, suffix=suffix, depth=depth + 1, why=why)
        elif isinstance(node, (cst.Tuple, cst.List)):
            numbers = [number_of(e.value) for e in node.elements]
            if 1 <= len(numbers) <= 16 and all(n is not None for n in numbers):
                for i, element in enumerate(node.elements):
                    self._literal(f"{name}[{i}]{suffix}", element.value, why)
        elif isinstance(node, cst.Dict):
            for key, value in self._entries(node):
                self._value(f"{name}.{key}" if key else name, value, suffix=suffix, depth=depth + 1, why=why)
        elif isinstance(node, cst.Call) and (default := self._field(node)) is not None:
            self._value(name, default, suffix=suffix, depth=depth + 1, why=why)
        elif (
            isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "dict" and not suffix
        ):
            for argument in node.args:
                if argument.keyword is not None:
                    self._value(f"{name}.{argument.keyword.value}", argument.value, depth=depth + 1, why=why)
        else:
            self._literal(name + suffix, node, why, options, real=real)

    def _field(self, node: cst.Call) -> cst.BaseExpression | None:
        """The default in ``field(default=…)`` of a dataclass, and in its like."""
        callee = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        if not isinstance(callee, cst.Name) or callee.value not in _FIELDS:
            return None
        named = next((a.value for a in node.args if a.keyword and a.keyword.value == "default"), None)
        first = node.args[0] if node.args and callee.value == "Field" else None
        return first.value if named is None and first is not None and first.keyword is None else named

    def _entries(self, node: cst.Dict) -> Iterator[tuple[str, cst.BaseExpression]]:
        chosen = self._by_profile(node)
        if chosen is not None:
            yield "", chosen
            return
        for element in node.elements:
            key = key_of(element)
            if key.isidentifier():
                yield key, element.value

    def _by_profile(self, node: cst.Dict) -> cst.BaseExpression | None:
        """The value for the profile that applies, where all keys of a dictionary are profiles."""
        entries = {key_of(element): element.value for element in node.elements}
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

    def _literal(
        self,
        name: str,
        node: cst.BaseExpression,
        why: str = "",
        options: tuple[Value, ...] = (),
        *,
        real: bool = False,
    ) -> None:
        span = self.spans.get(node)
        if span is None:
            return
        start, end = span.start, span.start + span.length
        value = literal(node, self.raw[start:end].decode())
        if value is not None:
            value = float(value) if real and isinstance(value, int) and not isinstance(value, bool) else value
            self.gathered.take(name, value, start, end, why=why, options=options)
        elif computed := self._computed(name, node):
            self.gathered.leave(name, start, end, why or why_not(f"{self.path}:{name}") or computed)
        else:
            self.gathered.forget(name)

    def _computed(self, name: str, node: cst.BaseExpression) -> str:
        """Why a value that is no literal is no constant to turn; empty where nobody would take it for one."""
        constant = name.isupper() or "." in name  # what a script computes on its way, it calls loss or x
        if constant and isinstance(node, (cst.BinaryOperation, cst.UnaryOperation)):
            return "derived: computed from other values"
        if isinstance(node, cst.Call) and _ENVIRONMENT.search(self._code(node)):
            return "read from the environment"
        return ""

    def _fixed(self, node: cst.BaseExpression) -> str:
        """Why a value of several lines is kept as it is by a comment: above, behind its opening or closing bracket.

        A comment behind the last entry of a dictionary or call is that entry's own, behind that of a list all of it.
        """
        start, end = self._extent(node)
        if fixed_above(self.gathered.above(start)):
            return BY_COMMENT
        first, several, rest = self.raw[start:end].decode().partition("\n")
        if not several:
            return ""  # each literal looks at the comment of its line
        head, _, comment = first.partition("#")
        if head.rstrip().endswith(_OPENING) and FIXED.search(comment):
            return BY_COMMENT
        closes = not rest.rpartition("\n")[2].strip(" \t)]}")
        own = closes or isinstance(node, (cst.Tuple, cst.List))
        return BY_COMMENT if own and FIXED.search(self.gathered.beside(end)) else ""

    def _extent(self, node: cst.BaseExpression) -> tuple[int, int]:
        """Where a value begins and ends, its parentheses included."""
        first, last = (node.lpar[0], node.rpar[-1]) if node.lpar else (node, node)
        end = self.spans[last]
        return self.spans[first].start, end.start + end.length

    def _code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)
