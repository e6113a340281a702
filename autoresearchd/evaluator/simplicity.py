"""How simple a program is: the number of nodes in its syntax tree (the simplicity rule of the autoresearch-ml skill).

Nodes do not change with layout, comments, names, docstrings or the values of constants: another value is a change and
no simplification, however short it is. Nor can they be hidden: beside them text is weighed by its length, and a program
with more of it is not simpler, so that code moved into a string gains nothing. A program that gains a mention of what
runs text as code or reads its own text (``hidden``) is never simpler; where one has them already, its docstrings are
weighed as well, and its comments if it could run them. The text comes from a model and is only parsed.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoresearchd.evaluator.hidden import reads_documentation, reads_text, runs_text, ways

_TEXT_PER_NODE = 2
"""Characters of a string constant that count as one more node; code has two or three characters for each."""
_BITS_PER_NODE = 64
"""Bits of a whole number that count as one more node: a number holds text as well as a string does."""
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
    per_node = 1 if runs_text(found) else _TEXT_PER_NODE  # code that is run from text counts in full, however dense
    weight = sum(_weight(node, per_node) for node in counted)
    if reads_documentation(found):
        weight += sum(_weight(node.value, per_node) for node in documented)
    if reads_text(found) and runs_text(found):
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


def _weight(node: ast.AST, per_node: int) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return 1 + len(node.value) // per_node
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return 1 + node.value.bit_length() // _BITS_PER_NODE
    return 1
