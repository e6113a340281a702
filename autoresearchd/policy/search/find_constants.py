"""The search space of a program: which literals of a file may be tuned, where they stand, and how they are replaced.

Found are top-level constants, the numbers of top-level tuples, entries of top-level dictionaries, field defaults of
configuration classes, defaults of functions and of command-line options, literal arguments of well-known constructors,
and choices: booleans, strings whose alternatives a comment lists, window patterns. A change replaces the bytes of the
literal and nothing else. Where a constant depends on the profile (``8 if CUDA else 4``, ``{"cpu": …, "cuda": …}``,
``if CUDA:``), the branch that applies is tuned. Of YAML, JSON and TOML files it is every number, boolean and text.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from autoresearchd.config.value_positions import MarkupError, kind_of, scalars
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Search
from autoresearchd.policy.search.constructors import GROUP_ARGUMENTS, POSITIONAL, arguments_of, is_recipe
from autoresearchd.policy.search.name_ranges import is_not_own, why_not
from autoresearchd.policy.search.parameter import Parameter, Value, number_of, write
from autoresearchd.policy.search.program_parts import last_name
from autoresearchd.policy.search.space_rules import BY_COMMENT, FIXED, Gatherer, Hints, Space, fixed_above

_PROFILES = frozenset({"cpu", "cuda", "gpu"})
_CONFIG_CLASS = re.compile(r"(?:config|args|arguments|hyperparameters|hparams|params|settings)$", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"\b(?:environ|getenv)\b")
_FIELDS = frozenset({"field", "Field", "ib", "attrib"})
_PLAIN_STRING = re.compile(r"""(["'])(?!\1\1)(?:\\.|(?!\1)[^\\\n])*\1""")
_OPENING = ("(", "[", "{")
_OPEN_BEFORE = re.compile(rb"[=,:(\[{]\s*(\()(?:\s|#[^\n]*\n)*$")
_CLOSED_AFTER = re.compile(rb"\s*\)")
_MOST_BEFORE = 300
_MAX_DEPTH = 4
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_SET = "a call in the file sets it"
_ALL = "*"


def searchable(path: str) -> bool:
    """Whether files of that name have constants that are found."""
    return path.endswith(".py") or kind_of(path) != ""


def find(
    text: str, *, path: str = "train.py", profile: str = "cpu", reasons: Mapping[str, str] = {}
) -> tuple[Parameter, ...]:
    """All that can be tuned in a file, in its order; PolicyError where the file cannot be parsed."""
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
    """As ``find``, with the constants that are left alone.

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
        return _look_at_config(text, path, hints)
    if text.startswith("\ufeff"):
        raise PolicyError(
            f"{path} cannot be searched for constants: it begins with a byte order mark",
            hint="save it as UTF-8 without the mark and commit it, or take another policy",
        )
    try:
        with warnings.catch_warnings(action="ignore"):  # a doubtful escape is the model's affair
            finder = _Finder(path, profile, text, hints)
            finder.walk()
    except _UNPARSABLE as error:
        why = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise PolicyError(
            f"{path} cannot be searched for constants: it is not valid Python ({why})",
            label=Label.ERROR,
            hint="correct the file, or take another policy",
        ) from error
    return finder.gathered.space()


def _look_at_config(text: str, path: str, hints: Hints) -> Space:
    """All constants of a YAML, JSON or TOML file that a program reads: ``config.yaml:optimizer.lr``."""
    try:
        found = scalars(path, text)
    except MarkupError as error:
        where = f"{path}, line {error.line}" if error.line else path
        raise PolicyError(
            f"{where}: the file cannot be searched for constants: {error.what}",
            label=Label.ERROR,
            hint="correct the file, or take another policy",
        ) from error
    gathered = Gatherer(path, text, hints, comments=kind_of(path) != "JSON")
    for scalar in found:
        fixed = any(fixed_above(gathered.above(a)) or FIXED.search(gathered.beside(b)) for a, b in scalar.heads)
        why = BY_COMMENT if fixed else ""
        if scalar.name in {word.lstrip("+") for word in hints.given}:
            why = f"execution.run_command gives {scalar.name}"
        group = scalar.name.rpartition(".")[0]
        against = f"in {group}, which is about data, results or logs" if group and is_not_own(group) else ""
        gathered.take(scalar.name, scalar.value, scalar.start, scalar.end, why=why, against=against)
    return gathered.space()


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
    """One pass over one Python file."""

    def __init__(self, path: str, profile: str, text: str, hints: Hints) -> None:
        self.cuda, self.given = profile in {"cuda", "gpu"}, hints.given
        self.gathered = Gatherer(path, text, hints)
        self.path, self.raw = path, self.gathered.raw
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.tree = ast.parse(text)
        self.calls = _Calls()
        self.calls.visit(self.tree)

    def walk(self) -> None:
        self._body(self.tree.body)
        counts: Counter[str] = Counter()
        for call in self.calls.calls:
            self._call(call, counts)
        for group in self.calls.groups:
            counts["group"] += 1
            why = self._fixed(group)
            for key, value in _entries(group):
                if key in GROUP_ARGUMENTS:
                    self._value(f"group.{key}", value, suffix=f"#{counts['group']}", why=why)
        for default in _defaults(self.calls, self.given):
            if default.name not in self.gathered:  # another constant may have its name
                self._value(default.name, default.node, why=default.why, options=default.options, real=default.real)

    # -- statements

    def _body(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                self._class(statement)
            elif isinstance(statement, ast.If):
                applies = self._applies(statement.test)
                if applies is not None:
                    self._body(statement.body if applies else statement.orelse)
            else:
                self._assignment(statement, "")

    def _assignment(self, node: ast.stmt, owner: str, why: str = "") -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            return
        if isinstance(target, ast.Name):
            self._value(owner + target.id, value, why=why)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for left, right in zip(target.elts, value.elts, strict=False):
                if isinstance(left, ast.Name):
                    self._value(owner + left.id, right, why=why)

    def _class(self, node: ast.ClassDef) -> None:
        decorated = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
        named = _CONFIG_CLASS.search(node.name) or any("NamedTuple" in ast.unparse(b) for b in node.bases)
        if not (decorated or named):
            return
        given = self.calls.overridden(node.name)
        for statement in node.body:
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            is_set = isinstance(target, ast.Name) and target.id in given
            self._assignment(statement, f"{node.name}.", _SET if is_set else "")

    def _call(self, node: ast.Call, counts: Counter[str]) -> None:
        callee = last_name(node.func)
        wanted = arguments_of(callee, frozenset(k.arg for k in node.keywords if k.arg)) if callee else frozenset()
        if not wanted:
            return
        counts[callee] += 1
        why = self._fixed(node)
        position, named = POSITIONAL.get(callee, (-1, ""))
        pairs = [(k.arg, k.value) for k in node.keywords]
        if 0 <= position < len(node.args):
            pairs.append((named, node.args[position]))
        for keyword, value in pairs:
            if keyword in wanted:
                self._value(f"{callee}.{keyword}", value, suffix=f"#{counts[callee]}", why=why)

    # -- values

    def _value(
        self,
        name: str,
        node: ast.expr,
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
        inner: list[tuple[str, ast.expr]] | None = None
        if isinstance(node, ast.IfExp):
            applies = self._applies(node.test)
            inner = [] if applies is None else [(name, node.body if applies else node.orelse)]
        elif isinstance(node, ast.Subscript):
            by_profile = isinstance(node.value, ast.Dict) and self._by_profile(node.value) is not None
            inner = [(name, node.value)] if by_profile else []
        elif isinstance(node, (ast.Tuple, ast.List)):
            if 1 <= len(node.elts) <= 16 and all(number_of(e) is not None for e in node.elts):
                for i, element in enumerate(node.elts):
                    self._literal(f"{name}[{i}]{suffix}", element, why)
            return
        elif isinstance(node, ast.Dict):
            chosen = self._by_profile(node)
            inner = [(name, chosen)] if chosen else [(f"{name}.{key}", value) for key, value in _entries(node)]
        elif isinstance(node, ast.Call) and (default := _field(node)) is not None:
            inner = [(name, default)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not suffix:
            inner = [(f"{name}.{k.arg}", k.value) for k in node.keywords if k.arg]
        if inner is None:
            self._literal(name + suffix, node, why, options, real=real)
        for label, value in inner or ():
            self._value(label, value, suffix=suffix, depth=depth + 1, why=why)

    def _by_profile(self, node: ast.Dict) -> ast.expr | None:
        """The value for the profile that applies, where all keys of a dictionary are profiles."""
        entries = dict(_entries(node))
        if not entries or len(entries) < len(node.keys) or not set(entries) <= _PROFILES:
            return None
        wanted = ("cuda", "gpu") if self.cuda else ("cpu",)
        return next((entries[w] for w in wanted if w in entries), None)

    def _applies(self, test: ast.expr) -> bool | None:
        """Whether a condition on the profile holds; None where it is no such condition."""
        code = ast.unparse(test).lower()
        about_cuda, about_cpu = "cuda" in code or "gpu" in code, "cpu" in code
        if about_cuda == about_cpu or re.search(r"\b(?:and|or)\b", code):
            return None
        negated = code.startswith("not ") or "!=" in code
        return (self.cuda if about_cuda else not self.cuda) != negated

    def _literal(
        self, name: str, node: ast.expr, why: str = "", options: tuple[Value, ...] = (), *, real: bool = False
    ) -> None:
        start, end = self._place(node)
        value = _literal_value(node, self.raw[start:end].decode())
        if value is not None:
            value = float(value) if real and isinstance(value, int) and not isinstance(value, bool) else value
            self.gathered.take(name, value, start, end, why=why, options=options)
        elif computed := _computed(name, node):
            self.gathered.leave(name, start, end, why or why_not(f"{self.path}:{name}") or computed)
        else:
            self.gathered.forget(name)

    def _fixed(self, node: ast.expr) -> str:
        """Why a value of several lines is kept as it is by a comment: above, behind its opening or closing bracket.

        A comment behind the last entry of a dictionary or call is that entry's own, behind that of a list all of it.
        """
        start, end = self._place(node)
        while (after := _CLOSED_AFTER.match(self.raw, end)) and (
            before := _OPEN_BEFORE.search(self.raw[max(0, start - _MOST_BEFORE) : start])
        ):  # parentheses around it
            start, end = max(0, start - _MOST_BEFORE) + before.start(1), after.end()
        if fixed_above(self.gathered.above(start)):
            return BY_COMMENT
        first, several, rest = self.raw[start:end].decode().partition("\n")
        if not several:
            return ""  # each literal looks at the comment of its line
        head, _, comment = first.partition("#")
        if head.rstrip().endswith(_OPENING) and FIXED.search(comment):
            return BY_COMMENT
        closes = not rest.rpartition("\n")[2].strip(" \t)]}")
        own = closes or isinstance(node, (ast.Tuple, ast.List))
        return BY_COMMENT if own and FIXED.search(self.gathered.beside(end)) else ""

    def _place(self, node: ast.expr) -> tuple[int, int]:
        """The bytes of a node."""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[end_line - 1] + end_column


def _literal_value(node: ast.expr | None, source: str) -> Value | None:
    """The value of a number, a boolean or a plain string between single quotes of either kind; None for all else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, str)):
        plain = isinstance(node.value, bool) or _PLAIN_STRING.fullmatch(source)
        return node.value if plain else None
    return number_of(node)


def _entries(node: ast.Dict) -> Iterator[tuple[str, ast.expr]]:
    """The entries of a dictionary whose keys can stand in a name."""
    for key, value in zip(node.keys, node.values, strict=True):
        if (text := _text(key)).isidentifier():
            yield text, value


def _field(node: ast.Call) -> ast.expr | None:
    """The default in ``field(default=…)`` of a dataclass, and in its like."""
    callee = last_name(node.func)
    if callee not in _FIELDS:
        return None
    named = next((k.value for k in node.keywords if k.arg == "default"), None)
    return node.args[0] if named is None and node.args and callee == "Field" else named


def _computed(name: str, node: ast.expr) -> str:
    """Why a value that is no literal is no constant to turn; empty where nobody would take it for one."""
    constant = name.isupper() or "." in name  # what a script computes on its way, it calls loss or x
    if constant and isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return "derived: computed from other values"
    if isinstance(node, ast.Call) and _ENVIRONMENT.search(ast.unparse(node)):
        return "read from the environment"
    return ""


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


# ---------------------------------------------------------------------- defaults of functions and options
@dataclass(frozen=True, slots=True)
class _Default:
    """A default. why: a reason to leave it alone; options: all that it may be; real: a fractional number, even as 1."""

    name: str
    node: ast.expr
    why: str = ""
    options: tuple[Value, ...] = ()
    real: bool = False


@dataclass(frozen=True, slots=True)
class _Function:
    """A function. name: as it is called; owner: the names that it stands in, itself among them; bound: a method."""

    name: str
    owner: tuple[str, ...]
    bound: bool
    node: ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class _Calls(ast.NodeVisitor):
    """Collects calls, dictionaries that look like optimiser groups, and functions, in the order of the file."""

    calls: list[ast.Call] = field(default_factory=list)
    groups: list[ast.Dict] = field(default_factory=list)
    functions: list[_Function] = field(default_factory=list)
    _within: list[tuple[str, bool]] = field(default_factory=list)
    _by_name: dict[str, list[ast.Call]] = field(default_factory=lambda: defaultdict(list))

    def visit(self, node: ast.AST) -> None:
        """Take a node and what is in it."""
        if isinstance(node, ast.Call):
            self.calls.append(node)
            self._by_name[last_name(node.func)].append(node)
            for value in (*node.args, *(k.value for k in node.keywords)):
                if isinstance(value, ast.Name):  # partial(f, lr=0.1), pool.submit(f, 0.1)
                    self._by_name[value.id].append(node)
        elif isinstance(node, ast.Dict) and "params" in map(_text, node.keys):
            self.groups.append(node)
        named = isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._function(node)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            self._within.append((node.name, isinstance(node, ast.ClassDef)))
        children: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, (ast.Call, ast.Dict, ast.IfExp, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            children = sorted(children, key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))
        for child in children:
            self.visit(child)
        if named:
            self._within.pop()

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        method = bool(self._within) and self._within[-1][1]
        free = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
        names = tuple(name for name, _ in self._within)
        own = method and node.name == "__init__"
        called = names[-1] if own else node.name
        self.functions.append(_Function(called, names if own else (*names, called), method and not free, node))

    def overridden(self, name: str, places: tuple[str, ...] = ()) -> set[str]:
        """Arguments that a call in this file gives to a function or class: their defaults have no effect.

        name: as it is called; a class's is that of its constructor. places: its arguments by position.
        """
        found: set[str] = set()
        for call in self._by_name[name]:
            found |= {k.arg or _ALL for k in call.keywords}
            found |= {_ALL} if any(isinstance(a, ast.Starred) for a in call.args) else set()
            free = [a for a in call.args if not isinstance(a, ast.Starred)]
            if last_name(call.func) == name:
                found |= set(places[: len(free)])
            else:  # handed on, maybe with its own arguments behind it
                own = next((i for i, a in enumerate(free) if getattr(a, "id", "") == name), len(free))
                found |= set(places[: len(free) - own - 1]) if own < len(free) else set()
        return found


def _defaults(calls: _Calls, given: Collection[str]) -> Iterator[_Default]:
    """Defaults that may be constants of the program, those of options first. given: options of the run command."""
    for call in calls.calls:
        if last_name(call.func) in ("add_argument", "option"):
            yield from _option(call, calls, given)
    for function in calls.functions:
        yield from _arguments(function, calls, given)


def _option(call: ast.Call, calls: _Calls, given: Collection[str]) -> Iterator[_Default]:
    """The default of ``add_argument("--lr", type=float, default=1e-3)``."""
    named = {k.arg: k.value for k in call.keywords if k.arg}
    flags = [text for a in call.args if (text := _text(a)).startswith("-")]
    if not flags or "default" not in named or {"action", "nargs", "is_flag", "multiple"} & named.keys():
        return
    long = next((flag for flag in flags if flag.startswith("--")), flags[0])
    dest = _text(named.get("dest")) or long.lstrip("-").partition("/")[0].replace("-", "_")
    if not dest.isidentifier():
        return
    why = _given(flags, given) or ("set_defaults sets it" if dest in calls.overridden("set_defaults") else "")
    kind = named.get("type")
    real = isinstance(kind, ast.Name) and kind.id == "float"
    yield _Default(f"args.{dest}", named["default"], why, _choices(named.get("choices") or kind), real)


def _choices(node: ast.expr | None) -> tuple[Value, ...]:
    """The literals of a list or tuple, also as ``click.Choice`` has it; nothing where there is another entry."""
    if isinstance(node, ast.Call) and last_name(node.func) == "Choice" and node.args:
        node = node.args[0]
    if not isinstance(node, (ast.List, ast.Tuple)):
        return ()
    found = [_text(e) or number_of(e) for e in node.elts]
    values = tuple(value for value in found if value is not None)
    return values if len(values) == len(found) else ()


def _given(flags: Collection[str], given: Collection[str]) -> str:
    """Why options are left alone that the run command has, also where it has them shortened."""
    for flag in flags:
        for word in given:
            if word == flag or (word.startswith("--") and len(word) > 2 and flag.startswith(word)):
                return f"execution.run_command gives {word}"
    return ""


def _arguments(function: _Function, calls: _Calls, given: Collection[str]) -> Iterator[_Default]:
    """The defaults of a function that look like a part of the recipe."""
    arguments = function.node.args
    free = [*arguments.posonlyargs, *arguments.args]
    set_here = calls.overridden(function.name, tuple(a.arg for a in free)[1 if function.bound else 0 :])
    owner = ".".join(function.owner)
    pairs = [*zip(free[len(free) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    for argument, default in (*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        name, node = argument.arg, _typed(default)
        value = number_of(node)
        if node is None or value is None or not is_recipe(name, value):
            continue
        why = _given([f"--{name}", f"--{name.replace('_', '-')}"], given)
        if is_not_own(owner):
            why = f"a default of {owner}, which is about data, results or logs"
        elif set_here & {name, _ALL}:
            why = _SET
        yield _Default(f"{owner}.{name}", node, why)


def _typed(default: ast.expr | None) -> ast.expr | None:
    """The default in ``typer.Option(1e-3, "--lr")``, else what is there."""
    if isinstance(default, ast.Call) and last_name(default.func) in ("Option", "Argument"):
        first = default.args[0] if default.args else None
        return first or next((k.value for k in default.keywords if k.arg == "default"), None)
    return default
