"""What there is in a program: its text with the comments, its functions and calls, and every value under its name.

Names are those of top-level variables (``BETAS[1]``), entries of dictionaries and fields of classes (``CONFIG.lr``),
arguments of calls (``AdamW.lr#1``), options of a command line (``args.lr``) and defaults of functions (``fit.lr``).
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from autoresearchd.domain.quantities import parse_bounds
from autoresearchd.policy.search.known_calls import (
    GROUP_ARGUMENTS,
    POSITIONAL,
    arguments_of,
    is_recipe,
    last_name,
    makes_data,
)
from autoresearchd.policy.search.parameter import Value, is_not_own, number_of

FIXED = re.compile(r"\bfixed\b|\b(?:do not|don't|never) (?:change|edit|tune|touch)\b", re.IGNORECASE)
_FIXED_ABOVE = re.compile(rf"[\s#]*(?:{FIXED.pattern})", re.IGNORECASE)  # a heading that has it in passing is none
_RANGE = re.compile(r"[\s#]*range\s*:(.*)", re.IGNORECASE)
_ONE_OF = re.compile(r"[\s#]*one of\s*:(.*)", re.IGNORECASE)
_OPENING = ("(", "[", "{")


class Source:
    """The text of a file. commented: whether files of its kind have comments."""

    def __init__(self, text: str, *, commented: bool = True) -> None:
        self.text, self.raw, self._commented = text, text.encode(), commented
        mark = len(codecs.BOM_UTF8) * text.startswith("\ufeff")  # to Python no part of the first line
        self._starts = [mark]
        for line in self.raw[mark:].splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def place(self, node: ast.expr) -> tuple[int, int]:
        """The bytes of a node."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end_column

    def part(self, start: int, end: int) -> str:
        """What stands between two places."""
        return self.raw[start:end].decode()

    def line(self, start: int) -> int:
        """The number of the line that a place is on."""
        return self.raw.count(b"\n", 0, start) + 1

    def beside(self, end: int) -> str:
        """The comment on the line where a literal ends."""
        stop = self.raw.find(b"\n", end)
        line = self.part(end, stop if stop >= 0 else len(self.raw))
        return line.partition("#")[2] if self._commented else ""

    def above(self, start: int) -> str:
        """The comment that is all of the line above the one where a literal begins."""
        line = self.raw.rfind(b"\n", 0, start) + 1
        above = self.part(self.raw.rfind(b"\n", 0, max(line - 1, 0)) + 1, line).strip().removeprefix("\ufeff")
        return above[1:] if self._commented and above.startswith("#") else ""

    def is_fixed(self, start: int, end: int) -> bool:
        """Whether a comment keeps a literal, or all from a key on, as it is."""
        return bool(FIXED.search(self.beside(end)) or _FIXED_ABOVE.match(self.above(start)))

    def keeps(self, node: ast.expr) -> bool:
        """Whether a comment keeps a value of several lines: above, behind its opening or closing bracket.

        A comment behind the last entry of a dictionary or call is that entry's own, behind that of a list all of it.
        """
        start, end = self.place(node)
        if _FIXED_ABOVE.match(self.above(start)):
            return True
        first, several, rest = self.part(start, end).partition("\n")
        if not several:
            return False  # each literal looks at the comment of its line
        head, _, comment = first.partition("#")
        if head.rstrip().endswith(_OPENING) and FIXED.search(comment):
            return True
        closes = not rest.rpartition("\n")[2].strip(" \t)]}")
        own = closes or isinstance(node, (ast.Tuple, ast.List))
        return own and FIXED.search(self.beside(end)) is not None

    def bounds(self, start: int, end: int) -> tuple[tuple[float, float] | None, str]:
        """(range, comment with choices) that comments beside or above give. ValueError tells why a range is none."""
        for comment in (self.beside(end), self.above(start)):
            if found := _RANGE.match(comment):
                return parse_bounds(found[1]), ""
            if _ONE_OF.match(comment):
                return None, comment
        return None, ""


def listed_values(comment: str) -> tuple[Value, ...]:
    """What ``one of: 16, 32, 64`` lists: numbers, and as text what is none."""
    found = _ONE_OF.match(comment)
    text = re.split(r"[;(]|\.(?=\s|$)", found[1])[0] if found else ""
    values: list[Value] = []
    for part in filter(None, map(str.strip, re.split(r"[,|]", text))):
        with contextlib.suppress(ValueError):
            values.append(int(part) if re.fullmatch(r"[-+]?[\d_]+", part) else float(part))
            continue
        values.append(part)
    return tuple(values)


# ---------------------------------------------------------------------- its values
BY_COMMENT = "fixed by a comment"
_SET = "a call in the file sets it"
_PROFILES = frozenset({"cpu", "cuda", "gpu"})
_CONFIG_CLASS = re.compile(r"(?:config|args|arguments|hyperparameters|hparams|params|settings)$", re.IGNORECASE)
_FIELDS = frozenset({"field", "Field", "ib", "attrib"})
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try)
_MAX_DEPTH = 4
_MOST_ELEMENTS = 16
_ALL = "*"

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Named:
    """A value that may be a constant of the program.

    tuned: it stands where constants are tuned, in the branch of the profile; inline: it has no name of its own; entry:
    its name in a dictionary, an object or a command line; why: a reason to leave it alone; options: all that it may be;
    real: a fractional number, even as 1; late: it gives way to another value of its name.
    """

    name: str
    node: ast.expr
    tuned: bool = True
    inline: bool = False
    entry: str = ""
    why: str = ""
    options: tuple[Value, ...] = ()
    real: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function. name: as it is called; owner: the names that it stands in, its own among them; cls: of a method."""

    name: str
    owner: tuple[str, ...]
    cls: str
    bound: bool
    node: Definition


class Parts:
    """A program taken apart. source: its text; cuda: whether it is for a GPU; given: options of the run command."""

    def __init__(self, source: Source, *, cuda: bool = False, given: Collection[str] = ()) -> None:
        self.tree, self.source = ast.parse(source.text.removeprefix("\ufeff")), source
        self._cuda, self._given = cuda, given
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, (ast.expr, ast.stmt, ast.Slice))]
        nodes.sort(key=lambda n: (n.lineno, n.col_offset))
        self.calls = [n for n in nodes if isinstance(n, ast.Call)]
        self.classes = {n.name: n for n in reversed(nodes) if isinstance(n, ast.ClassDef)}
        self.functions = [*_functions(self.tree, (), "")]
        self._groups = [n for n in nodes if isinstance(n, ast.Dict) and "params" in map(text_of, n.keys)]
        self._slices = [n for n in nodes if isinstance(n, ast.Slice)]
        self._by_name: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self.calls:
            self._by_name[last_name(call.func)].append(call)
            for value in (*call.args, *(k.value for k in call.keywords)):
                if isinstance(value, ast.Name):  # partial(f, lr=0.1), pool.submit(f, 0.1)
                    self._by_name[value.id].append(call)

    def values(self) -> Iterator[Named]:
        """Every value, whatever it is: those of one name in the order in which the last one counts."""
        yield from self._body(self.tree.body, tuned=True)
        yield from self._arguments()
        for count, group in enumerate(self._groups, start=1):
            for key, value in entries(group):
                if key in GROUP_ARGUMENTS:
                    yield from self._spread(Named(f"group.{key}", value, why=self._why(group)), f"#{count}")
        for function in self.functions:
            changed = changed_names(function.node.body)
            for name, value in assignments(function.node.body):
                if name not in changed and number_of(value):  # not 0, where a count begins
                    yield Named(name, value, tuned=False)
        for call in self.calls:
            if last_name(call.func) in ("add_argument", "option"):
                yield from self._option(call)
        for function in self.functions:
            yield from self._defaults(function)
        for cut in self._slices:
            yield from (Named("[:]", b, tuned=False, inline=True) for b in (cut.lower, cut.upper) if b is not None)

    # -- statements

    def _body(self, body: Sequence[ast.stmt], *, tuned: bool) -> Iterator[Named]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from self._class(node.name, node, tuned=tuned)
            elif isinstance(node, ast.If) and (applies := self._applies(node.test)) is not None:
                yield from self._body(node.body, tuned=tuned and applies)
                yield from self._body(node.orelse, tuned=tuned and not applies)
            elif isinstance(node, _BLOCKS):
                for block in blocks(node):
                    yield from self._body(block, tuned=False)
            else:
                once = tuned and len(getattr(node, "targets", "1")) == 1
                for name, value in assignments([node]):
                    yield from self._spread(Named(name, value, once))

    def _class(self, name: str, node: ast.ClassDef, *, tuned: bool) -> Iterator[Named]:
        decorated = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
        named = _CONFIG_CLASS.search(name) or any("NamedTuple" in ast.unparse(b) for b in node.bases)
        given, tuned = self._overridden(name), tuned and bool(decorated or named)
        for statement in node.body:
            for target, value in assignments([statement]):
                why = _SET if isinstance(statement, ast.AnnAssign) and target in given else ""
                yield from self._spread(Named(f"{name}.{target}", value, tuned, entry=target, why=why))

    # -- calls

    def _arguments(self) -> Iterator[Named]:
        counts: Counter[str] = Counter()
        for call in self.calls:
            callee = last_name(call.func)
            if callee in ("add_argument", "option"):
                continue
            wanted = arguments_of(callee, frozenset(k.arg for k in call.keywords if k.arg))
            counts[callee] += bool(wanted)
            why = self._why(call) if wanted else ""
            pairs = [(k.arg, k.value) for k in call.keywords]
            position = POSITIONAL.get(callee, len(call.args))
            pairs += [(name, value) for name in wanted for value in call.args[position : position + 1]]
            for name, value in pairs:
                if name in wanted:
                    yield from self._spread(Named(f"{callee}.{name}", value, why=why), f"#{counts[callee]}")
                else:
                    yield Named(f"{callee}.{name}", value, tuned=False, inline=True)
            if makes_data(callee):
                for i, value in enumerate(call.args):
                    yield Named(f"{callee}({i})", value, tuned=False, inline=True)

    def _overridden(self, name: str, places: Sequence[str] = ()) -> set[str]:
        """Arguments (``places``: by position) that a call in this file gives: their defaults have no effect."""
        found: set[str] = set()
        for call in self._by_name[name]:
            found |= {k.arg or _ALL for k in call.keywords}
            free = [a for a in call.args if not isinstance(a, ast.Starred)]
            found |= {_ALL} if len(free) < len(call.args) else set()
            if last_name(call.func) != name:  # handed on, maybe with its own arguments behind it
                own = next((i for i, a in enumerate(free) if getattr(a, "id", "") == name), len(free))
                free = free[own + 1 :]
            found |= set(places[: len(free)])
        return found

    def _option(self, call: ast.Call) -> Iterator[Named]:
        """The default of ``add_argument("--lr", type=float, default=1e-3)``."""
        named = {k.arg: k.value for k in call.keywords if k.arg}
        flags = [text for a in call.args if (text := text_of(a)).startswith("-")]
        if not flags or "default" not in named:
            return
        long = next((flag for flag in flags if flag.startswith("--")), flags[0])
        dest = text_of(named.get("dest")) or long.lstrip("-").partition("/")[0].replace("-", "_")
        if not dest.isidentifier():
            return
        why = self._is_given(flags) or ("set_defaults sets it" if dest in self._overridden("set_defaults") else "")
        kind, tuned = named.get("type"), not {"action", "nargs", "is_flag", "multiple"} & named.keys()
        one = Named(f"args.{dest}", named["default"], tuned, entry=dest, why=why, late=True)
        real = isinstance(kind, ast.Name) and kind.id == "float"
        yield from self._spread(replace(one, options=_choices(named.get("choices") or kind), real=real))

    def _is_given(self, flags: Collection[str]) -> str:
        """Why options are left alone that the run command has, also where it has them shortened."""
        for flag in flags:
            for word in self._given:
                if word == flag or (word.startswith("--") and len(word) > 2 and flag.startswith(word)):
                    return f"execution.run_command gives {word}"
        return ""

    def _defaults(self, function: Function) -> Iterator[Named]:
        """The defaults of a function: tuned are those that look like a part of the recipe."""
        arguments, owner = function.node.args, ".".join(function.owner)
        free = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        set_here = self._overridden(function.name, free[1 if function.bound else 0 :])
        for name, default in defaults_of(function.node):
            value = number_of(default)
            why = self._is_given([f"--{name}", f"--{name.replace('_', '-')}"])
            if is_not_own(owner):
                why = f"a default of {owner}, which is about data, results or logs"
            elif set_here & {name, _ALL}:
                why = _SET
            tuned = value is not None and is_recipe(name, value)
            yield from self._spread(Named(f"{owner}.{name}", default, tuned, why=why, late=True))

    # -- values

    def _spread(self, one: Named, suffix: str = "", depth: int = 0) -> Iterator[Named]:
        """What is in a value, each by itself. suffix: the number of the call."""
        node = one.node
        if depth > _MAX_DEPTH:
            return
        one = replace(one, why=one.why or self._why(node))
        inner: list[Named] = []
        match node:
            case ast.IfExp():
                applies = self._applies(node.test)
                branches = ((node.body, applies is True), (node.orelse, applies is False))
                inner = [replace(one, node=branch, tuned=one.tuned and own) for branch, own in branches]
            case ast.Subscript():
                inner = [replace(one, node=node.value)] if _is_by_profile(node.value) else []
            case ast.Tuple() | ast.List():
                numbers = all(number_of(e) is not None for e in node.elts) and len(node.elts) <= _MOST_ELEMENTS
                for i, element in enumerate(node.elts):
                    yield replace(one, name=f"{one.name}[{i}]{suffix}", node=element, tuned=one.tuned and numbers)
            case ast.Dict() if _is_by_profile(node):
                profiles = ("cuda", "gpu") if self._cuda else ("cpu",)
                inner = [replace(one, node=value, tuned=one.tuned and key in profiles) for key, value in entries(node)]
            case ast.Dict():
                inner = [replace(one, name=f"{one.name}.{key}", node=value, entry=key) for key, value in entries(node)]
            case ast.Call() if (default := _field(node)) is not None:
                inner = [replace(one, node=default)]
            case ast.Call() if last_name(node.func) in ("dict", "SimpleNamespace") and not suffix:
                tuned = one.tuned and getattr(node.func, "id", "") == "dict"
                pairs = [(k.arg, k.value) for k in node.keywords if k.arg]
                inner = [replace(one, name=f"{one.name}.{k}", node=v, entry=k, tuned=tuned) for k, v in pairs]
            case _:
                yield replace(one, name=one.name + suffix)
        for each in inner:
            yield from self._spread(each, suffix, depth + 1)

    def _why(self, node: ast.expr) -> str:
        return BY_COMMENT if self.source.keeps(node) else ""

    def _applies(self, test: ast.expr) -> bool | None:
        """Whether a condition on the profile holds; None where it is no such condition."""
        code = ast.unparse(test).lower()
        about_cuda, about_cpu = "cuda" in code or "gpu" in code, "cpu" in code
        if about_cuda == about_cpu or re.search(r"\b(?:and|or)\b", code):
            return None
        negated = code.startswith("not ") or "!=" in code
        return (self._cuda if about_cuda else not self._cuda) != negated


def _functions(node: ast.AST, within: tuple[str, ...], cls: str) -> Iterator[Function]:
    """The functions in a node. within: the names that it stands in; cls: the class that it is the body of."""
    for child in ast.iter_child_nodes(node):
        inner = (*within, child.name) if isinstance(child, (ast.ClassDef, Definition)) else within
        if isinstance(child, Definition):
            constructor = bool(cls) and child.name == "__init__"
            bound = bool(cls) and not any(getattr(d, "id", "") == "staticmethod" for d in child.decorator_list)
            yield Function(cls if constructor else child.name, within if constructor else inner, cls, bound, child)
        here = child.name if isinstance(child, ast.ClassDef) else "" if isinstance(child, Definition) else cls
        yield from _functions(child, inner, here)


def _is_by_profile(node: ast.expr) -> TypeGuard[ast.Dict]:
    keys = {key for key, _ in entries(node)} if isinstance(node, ast.Dict) else set()
    return isinstance(node, ast.Dict) and 0 < len(keys) == len(node.keys) and keys <= _PROFILES


def _field(node: ast.Call) -> ast.expr | None:
    """The default in ``field(default=…)`` of a dataclass, and in its like."""
    callee = last_name(node.func)
    first = node.args[0] if node.args and callee == "Field" else None
    return next((k.value for k in node.keywords if k.arg == "default"), first) if callee in _FIELDS else None


def _choices(node: ast.expr | None) -> tuple[Value, ...]:
    """The literals of a list or tuple, also as ``click.Choice`` has it; nothing where there is another entry."""
    if isinstance(node, ast.Call) and last_name(node.func) == "Choice" and node.args:
        node = node.args[0]
    if not isinstance(node, (ast.List, ast.Tuple)):
        return ()
    found = [text_of(e) or number_of(e) for e in node.elts]
    values = tuple(value for value in found if value is not None)
    return values if len(values) == len(found) else ()


# ---------------------------------------------------------------------- looking at nodes
def text_of(node: ast.expr | None) -> str:
    """A text that is written out, else nothing."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_literal(node: ast.expr) -> bool:
    """Whether a value is written out: a number, a text, a flag, arithmetic on such."""
    if isinstance(node, ast.UnaryOp):
        return is_literal(node.operand)
    if isinstance(node, ast.BinOp):
        return is_literal(node.left) and is_literal(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str))


def entries(node: ast.Dict) -> Iterator[tuple[str, ast.expr]]:
    """The entries of a dictionary whose keys can stand in a name."""
    for key, value in zip(node.keys, node.values, strict=True):
        if (text := text_of(key)).isidentifier():
            yield text, value


def defaults_of(node: Definition) -> Iterator[tuple[str, ast.expr]]:
    """Parameters with their defaults, also those in ``typer.Option(1e-3, "--lr")``."""
    arguments = node.args
    free = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(free[len(free) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    for argument, default in (*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        if isinstance(default, ast.Call) and last_name(default.func) in ("Option", "Argument"):
            named = (k.value for k in default.keywords if k.arg == "default")
            default = default.args[0] if default.args else next(named, None)
        if default is not None:
            yield argument.arg, default


def blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a statement."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for handler in getattr(node, "handlers", ()):
        yield handler.body


def assignments(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Names with the values that they get, in blocks of the same scope."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                    yield from ((left.id, right) for left, right in pairs if isinstance(left, ast.Name))
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            yield node.target.id, node.value
        elif isinstance(node, _BLOCKS):
            for block in blocks(node):
                yield from assignments(block)


def changed_names(body: Sequence[ast.stmt]) -> set[str]:
    """Names that are no constants of a function: assigned twice, added to, or run over."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    stored = Counter(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    added = {n.target.id for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    return added | {name for name, count in stored.items() if count > 1}
