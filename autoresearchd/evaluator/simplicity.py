"""How simple a program is: the number of nodes in its syntax tree (the simplicity rule of the autoresearch-ml skill).

Nodes do not change with layout, comments, names, docstrings or the values of constants: another value is a change and
no simplification, however short it is. Nor can they be hidden: beside them text, numbers and long names are weighed by
their length, and a program with more of that is not simpler, so that code moved into a string gains nothing. A
program that gains a mention of what runs text as code or reads its own text (``hidden``) is never simpler; where one
has a way to run text already, its docstrings and comments are weighed as well. The text comes from a model and is only
parsed.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autoresearchd.evaluator.hidden import reads_documentation, runs_text, ways

_TEXT_PER_NODE = 2
"""Characters of a string constant that count as one more node; code has two or three characters for each."""
_BITS_PER_CHARACTER = 8
"""Of a number, which holds text as well as a string does."""
_FREE_NAME = 40
"""Bytes of a name that are not weighed: text is read from a longer one (``[*dict(a=0)]``, ``NameError.name``)."""
_FREE_NAME_WHERE_TEXT_RUNS = 12
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Size:
    """Of a program: nodes; weight: nodes, and the text of its constants by its length; ways: see ``hidden``."""

    nodes: int
    weight: int
    ways: Counter[str] = field(default_factory=Counter)


def size(text: str) -> Size | None:
    """Of a Python program, docstrings weighed only where something may read them; None when it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.removeprefix("\ufeff"))
    except _UNPARSABLE:
        return None
    documented = [node for node in map(_docstring, ast.walk(tree)) if node is not None]
    documentation = {id(part) for node in documented for part in (node, node.value)}
    counted = [node for node in ast.walk(tree) if id(node) not in documentation]
    found = ways(tree)
    runs = runs_text(found)
    per_node = 1 if runs else _TEXT_PER_NODE  # code that is run from text counts in full, however dense
    free = _FREE_NAME_WHERE_TEXT_RUNS if runs else _FREE_NAME
    weight = sum(_weight(node, per_node, free) for node in counted)
    if runs or reads_documentation(found):
        weight += sum(_weight(node.value, per_node, free) for node in documented)
    if runs:  # by which file it could read them is not followed
        weight += _comments(text)
    return Size(len(counted), weight, found)


def is_simpler(new: Mapping[str, str], old: Mapping[str, str]) -> bool:
    """Whether a program has fewer nodes than another one; never where one of its changed files cannot be counted."""
    changed = [path for path in {**old, **new} if new.get(path) != old.get(path)]
    if not changed or not all(path.endswith(".py") for path in changed):
        return False
    nodes = weight = 0
    gained: Counter[str] = Counter()
    for path in changed:
        after, before = size(new.get(path, "")), size(old.get(path, ""))
        if after is None or before is None:
            return False
        nodes += after.nodes - before.nodes
        weight += after.weight - before.weight
        gained.update(after.ways)
        gained.subtract(before.ways)
    return nodes < 0 and weight < 0 and max(gained.values(), default=0) <= 0


def _docstring(node: ast.AST) -> ast.Expr | None:
    """The statement that documents a node."""
    first = node.body[0] if isinstance(node, _DOCUMENTED) and node.body else None
    value = first.value if isinstance(first, ast.Expr) else None
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return first if is_text and isinstance(first, ast.Expr) else None


def _comments(text: str) -> int:
    """Characters of the comments in a program that parses."""
    tokens = tokenize.generate_tokens(io.StringIO(text.removeprefix("\ufeff")).readline)
    try:
        return sum(len(token.string) for token in tokens if token.type == tokenize.COMMENT)
    except (tokenize.TokenError, SyntaxError):  # the parser is more lenient: then all of it counts
        return len(text)


def _weight(node: ast.AST, per_node: int, free: int) -> int:
    if not isinstance(node, ast.Constant):
        return 1 + sum(_name_weight(node, name, free) for name in _names(node)) // per_node
    match node.value:
        case str(text):
            return 1 + len(text.encode("utf-8", "surrogatepass")) // per_node
        case bytes(data):
            return 1 + len(data) // per_node
        case int(number):
            return 1 + number.bit_length() // (_BITS_PER_CHARACTER * per_node)
        case float() | complex() as number:
            return 1 + len(repr(number)) // (2 * per_node)  # a digit is a third of a byte, a short one is no text
        case _:
            return 1


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a node itself holds: of a variable, an attribute, an argument, a module."""
    for field_name in node._fields:
        value = getattr(node, field_name, None)
        for name in value if isinstance(value, list) else (value,):
            if isinstance(name, str):
                yield name


def _name_weight(node: ast.AST, name: str, free: int) -> int:
    """Bytes of a name beyond those that are free; of an argument's in a call all of them, as of the key of a dict."""
    return max(0, len(name.encode("utf-8", "surrogatepass")) - (0 if isinstance(node, ast.keyword) else free))
