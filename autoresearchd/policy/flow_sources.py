"""The constants of a program under the names that the search space gives them, and its functions and classes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from autoresearchd.policy.calls import arguments_of
from autoresearchd.policy.flow_syntax import (
    assignments,
    blocks,
    calls_in,
    changed_names,
    is_literal,
    is_model_class,
    is_setting,
    last_name,
    makes_data,
    trained_names,
)
from autoresearchd.policy.flow_value import NOTHING, Constant, Strength, Value, join


@dataclass(slots=True)
class Scope:
    """A function, or the module. gives: what it returns; owner: class of a method; trained: what it trains."""

    name: str
    node: ast.AST
    names: dict[str, Value] = field(default_factory=dict)
    local: frozenset[str] = frozenset()
    params: tuple[str, ...] = ()
    gives: Value = NOTHING
    owner: str = ""
    trained: frozenset[str] = frozenset()
    prints: bool = False


class Sources:
    """What there is in one program.

    constants: in the order found; by_node: values of what is written out, by the node's id; attributes: of objects, by
    class; entries: of dictionaries and of the options of a command line, by name.
    """

    def __init__(self, tree: ast.Module, text: str) -> None:
        self._tree = tree
        self._raw = text.encode()
        self._starts = [0]
        for line in self._raw.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.constants: list[Constant] = []
        self.by_node: dict[int, Value] = {}
        self.functions: dict[str, Scope] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.attributes: dict[tuple[str, str], Value] = {}
        self.entries: dict[tuple[str, str], Value] = {}
        self._definitions(tree.body, "")
        self._sources()

    def _definitions(self, body: Sequence[ast.stmt], owner: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = node.args
                params = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                name = f"{owner}.{node.name}" if owner else node.name
                outside = frozenset(
                    n for s in ast.walk(node) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names
                )
                local = frozenset(
                    n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                ) | frozenset(params)
                self.functions.setdefault(
                    name,
                    Scope(
                        name,
                        node,
                        local=local - outside,
                        params=tuple(params),
                        owner=owner,
                        trained=trained_names(node.body),
                        prints=node.name in ("main", "run")
                        or any(last_name(call.func) == "print" for call in calls_in(node)),
                    ),
                )
                self._definitions(node.body, "")
            elif isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
                if not is_model_class(node):
                    self._definitions(node.body, node.name)
            elif isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
                for block in blocks(node):
                    self._definitions(block, owner)

    def _place(self, node: ast.expr) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end_column

    def _source(self, name: str, node: ast.expr, *, inline: bool = False) -> Value:
        start, end = self._place(node)
        self.constants.append(Constant(name, start, end, self._raw[start:end].decode(), inline))
        value = Value({len(self.constants) - 1: Strength.NUMBER})
        self.by_node[id(node)] = value
        return value

    def _sources(self) -> None:
        """Every constant under the name that the search space gives it."""
        for name, node in assignments(self._tree.body):
            self._named_value(name, node)
        for cls in self.classes.values():
            for name, node in assignments(cls.body):
                value = self._named_value(f"{cls.name}.{name}", node)
                self.attributes[cls.name, name] = value
        for scope in self.functions.values():
            self._defaults(scope)
        counts: dict[str, int] = {}
        for call in calls_in(self._tree):
            callee = last_name(call.func)
            if callee == "add_argument":
                self._argument(call)
                continue
            wanted = arguments_of(callee, frozenset(k.arg for k in call.keywords if k.arg)) if callee else frozenset()
            if wanted:
                counts[callee] = counts.get(callee, 0) + 1
            for keyword in call.keywords:
                if is_literal(keyword.value) and id(keyword.value) not in self.by_node:
                    mark = f"#{counts[callee]}" if keyword.arg in wanted else ""
                    self._source(f"{callee}.{keyword.arg}{mark}", keyword.value, inline=not mark)
            for i, argument in enumerate(call.args):
                if is_literal(argument) and id(argument) not in self.by_node and makes_data(callee):
                    self._source(f"{callee}({i})", argument, inline=True)
        for cut in ast.walk(self._tree):
            if isinstance(cut, ast.Slice):
                for bound in (cut.lower, cut.upper):
                    if bound is not None and is_literal(bound):
                        self._source("[:]", bound, inline=True)

    def _named_value(self, name: str, node: ast.expr) -> Value:
        """The constants in a value; an object with named entries is known by its name."""
        if isinstance(node, (ast.Tuple, ast.List)) and node.elts and all(is_literal(e) for e in node.elts):
            value = join(*(self._source(f"{name}[{i}]", e) for i, e in enumerate(node.elts)))
        elif isinstance(node, ast.Dict) and node.keys and all(isinstance(k, ast.Constant) for k in node.keys):
            for key, entry in zip(node.keys, node.values, strict=True):
                text = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
                if not text.isidentifier():
                    continue
                self.entries[name, text] = self._named_value(f"{name}.{text}", entry)
            value = Value(kinds=frozenset({f"dict {name}"}))
        elif (
            isinstance(node, ast.Call)
            and last_name(node.func) in ("dict", "SimpleNamespace", "field")
            and not node.args
        ):
            if last_name(node.func) == "field":
                default = next((k.value for k in node.keywords if k.arg == "default"), None)
                return self._named_value(name, default) if default is not None else NOTHING
            for keyword in node.keywords:
                if keyword.arg:
                    self.entries[name, keyword.arg] = self._named_value(f"{name}.{keyword.arg}", keyword.value)
            value = Value(kinds=frozenset({f"dict {name}"}))
        elif is_literal(node):
            value = self._source(name, node)
        else:
            return NOTHING
        self.by_node[id(node)] = value
        return value

    def _defaults(self, scope: Scope) -> None:
        """Defaults of parameters, and what a function calls by a name that it never changes."""
        node = scope.node
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        positional = [*node.args.posonlyargs, *node.args.args]
        pairs = list(zip(positional[len(positional) - len(node.args.defaults) :], node.args.defaults, strict=True))
        pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
        for argument, default in pairs:
            if is_literal(default):
                scope.names[argument.arg] = self._source(
                    f"{scope.name.removesuffix('.__init__')}.{argument.arg}", default
                )
        changed = changed_names(node.body)
        for name, value in assignments(node.body):
            if name not in changed and is_setting(value) and id(value) not in self.by_node:
                self._source(name, value)

    def _argument(self, call: ast.Call) -> None:
        """The default of an option of argparse, by the name of its attribute."""
        default = next((k.value for k in call.keywords if k.arg == "default"), None)
        dest = next(
            (k.value.value for k in call.keywords if k.arg == "dest" and isinstance(k.value, ast.Constant)), None
        )
        flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        flag = next((f for f in flags if f.startswith("--")), flags[0] if flags else "")
        name = str(dest) if dest else flag.lstrip("-").replace("-", "_")
        if default is not None and name.isidentifier() and is_literal(default):
            self.entries["argparse", name] = self._source(f"args.{name}", default)
