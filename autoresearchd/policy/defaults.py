"""Constants that stand as defaults: of functions and methods, and of command-line options (argparse, click, typer)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import libcst as cst

from autoresearchd.policy.calls import is_recipe
from autoresearchd.policy.literals import key_of, literal, number_of
from autoresearchd.policy.parameter import Value
from autoresearchd.policy.ranges import is_not_own

_OPTION_CALLS = frozenset({"add_argument", "option"})
_TYPER = frozenset({"Option", "Argument"})
_SET = "a call in the file sets it"
_ALL = "*"


@dataclass(frozen=True, slots=True)
class Default:
    """A default. why: a reason to leave it alone; options: all that it may be; real: a fractional number, even as 1."""

    name: str
    node: cst.BaseExpression
    why: str = ""
    options: tuple[Value, ...] = ()
    real: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function. name: as it is called; owner: the names that it stands in, itself among them; bound: a method."""

    name: str
    owner: tuple[str, ...]
    bound: bool
    node: cst.FunctionDef


@dataclass(slots=True)
class Calls(cst.CSTVisitor):
    """Collects calls, dictionaries that look like optimiser groups, and functions, in the order of the file."""

    calls: list[cst.Call] = field(default_factory=list)
    groups: list[cst.Dict] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    _within: list[tuple[str, bool]] = field(default_factory=list)
    _by_name: dict[str, list[cst.Call]] = field(default_factory=lambda: defaultdict(list))

    def visit_Call(self, node: cst.Call) -> None:
        self.calls.append(node)
        self._by_name[callee_of(node)].append(node)
        for argument in node.args:
            if isinstance(argument.value, cst.Name):  # partial(f, lr=0.1), pool.submit(f, 0.1)
                self._by_name[argument.value.value].append(node)

    def visit_Dict(self, node: cst.Dict) -> None:
        if any(key_of(element) == "params" for element in node.elements):
            self.groups.append(node)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._within.append((node.name.value, True))

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._within.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        method = bool(self._within) and self._within[-1][1]
        free = any(isinstance(d.decorator, cst.Name) and d.decorator.value == "staticmethod" for d in node.decorators)
        names = tuple(name for name, _ in self._within)
        own = method and node.name.value == "__init__"
        called = names[-1] if own else node.name.value
        self.functions.append(Function(called, names if own else (*names, called), method and not free, node))
        self._within.append((node.name.value, False))

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._within.pop()

    def overridden(self, name: str, places: tuple[str, ...] = ()) -> set[str]:
        """Arguments that a call in this file gives to a function or class: their defaults have no effect.

        Args:
            name: as it is called; a class's is that of its constructor.
            places: its arguments by position.
        """
        found: set[str] = set()
        for call in self._by_name[name]:
            found |= {a.keyword.value for a in call.args if a.keyword is not None}
            found |= {_ALL} if any(a.star for a in call.args) else set()
            free = [a for a in call.args if a.keyword is None and not a.star]
            if callee_of(call) == name:
                found |= set(places[: len(free)])
            else:  # handed on, maybe with its own arguments behind it
                own = next((i for i, a in enumerate(free) if getattr(a.value, "value", "") == name), len(free))
                found |= set(places[: len(free) - own - 1]) if own < len(free) else set()
        return found


def callee_of(node: cst.Call) -> str:
    """The last name of what is called."""
    target = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
    return target.value if isinstance(target, cst.Name) else ""


def all_defaults(calls: Calls, given: Collection[str]) -> Iterator[Default]:
    """Defaults that may be constants of the program, those of options first.

    Args:
        calls: what the file has.
        given: options that the run command has.
    """
    for call in calls.calls:
        if callee_of(call) in _OPTION_CALLS:
            yield from _option(call, calls, given)
    for function in calls.functions:
        yield from _arguments(function, calls, given)


# ---------------------------------------------------------------------- options
def _option(call: cst.Call, calls: Calls, given: Collection[str]) -> Iterator[Default]:
    """The default of ``add_argument("--lr", type=float, default=1e-3)``."""
    named = {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    flags = [text for a in call.args if a.keyword is None and (text := _text(a.value)).startswith("-")]
    if not flags or "default" not in named or {"action", "nargs", "is_flag", "multiple"} & named.keys():
        return
    long = next((flag for flag in flags if flag.startswith("--")), flags[0])
    dest = _text(named.get("dest")) or long.lstrip("-").partition("/")[0].replace("-", "_")
    if not dest.isidentifier():
        return
    why = _given(flags, given)
    if not why and dest in calls.overridden("set_defaults"):
        why = "set_defaults sets it"
    kind = named.get("type")
    real = isinstance(kind, cst.Name) and kind.value == "float"
    yield Default(f"args.{dest}", named["default"], why, _choices(named.get("choices") or kind), real)


def _choices(node: cst.BaseExpression | None) -> tuple[Value, ...]:
    """The literals of a list or tuple, also as ``click.Choice`` has it; nothing where there is another entry."""
    if isinstance(node, cst.Call) and callee_of(node) == "Choice" and node.args:
        node = node.args[0].value
    if not isinstance(node, (cst.List, cst.Tuple)):
        return ()
    found = [_text(e.value) or number_of(e.value) for e in node.elements]
    values = tuple(value for value in found if value is not None)
    return values if len(values) == len(found) else ()


def _given(flags: Collection[str], given: Collection[str]) -> str:
    """Why options are left alone that the run command has, also where it has them shortened."""
    for flag in flags:
        for word in given:
            if word == flag or (word.startswith("--") and len(word) > 2 and flag.startswith(word)):
                return f"execution.run_command gives {word}"
    return ""


def _text(node: cst.BaseExpression | None) -> str:
    if not isinstance(node, cst.SimpleString):
        return ""
    text = node.evaluated_value
    return text if isinstance(text, str) else ""


# ---------------------------------------------------------------------- functions
def _arguments(function: Function, calls: Calls, given: Collection[str]) -> Iterator[Default]:
    """The defaults of a function that look like a part of the recipe."""
    parameters = function.node.params
    free = [*parameters.posonly_params, *parameters.params]
    places = tuple(p.name.value for p in free)[1 if function.bound else 0 :]
    set_here = calls.overridden(function.name, places)
    owner = ".".join(function.owner)
    for parameter in (*free, *parameters.kwonly_params):
        name, node = parameter.name.value, _typed(parameter.default)
        value = None if node is None else literal(node, "")
        if node is None or value is None or not is_recipe(name, value):
            continue
        why = _given([f"--{name}", f"--{name.replace('_', '-')}"], given)
        if is_not_own(owner):
            why = f"a default of {owner}, which is about data, results or logs"
        elif set_here & {name, _ALL}:
            why = _SET
        yield Default(f"{owner}.{name}", node, why)


def _typed(default: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The default in ``typer.Option(1e-3, "--lr")``, else what is there."""
    if isinstance(default, cst.Call) and callee_of(default) in _TYPER and default.args:
        first = default.args[0]
        return first.value if first.keyword is None or first.keyword.value == "default" else None
    return default
