"""How simple a program is: the number of nodes in its syntax tree (the simplicity rule of the autoresearch-ml skill).

Nodes do not change with layout, comments, names, docstrings or the values of constants: another value is a change and
no simplification, however short it is. Nor can they be hidden: beside them text is weighed by its length, and a program
with more of it is not simpler, so that code moved into a string gains nothing. The text comes from a model and is only
parsed.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

_TEXT_PER_NODE = 2
"""Characters of a string constant that count as one more node; code has about three characters for each."""
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Size:
    """Of a program: nodes; weight: nodes, and the text of its string constants by its length."""

    nodes: int
    weight: int


def size(text: str) -> Size | None:
    """Of a Python program, docstrings left out; None when it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except _UNPARSABLE:
        return None
    documented = [node for node in map(_docstring, ast.walk(tree)) if node is not None]
    documentation = {id(part) for node in documented for part in (node, node.value)}
    counted = [node for node in ast.walk(tree) if id(node) not in documentation]
    return Size(len(counted), sum(map(_weight, counted)))


def is_simpler(new: Mapping[str, str], old: Mapping[str, str]) -> bool:
    """Whether a program has fewer nodes than another one; never where one of its changed files cannot be counted."""
    changed = [path for path in {**old, **new} if new.get(path) != old.get(path)]
    if not changed or not all(path.endswith(".py") for path in changed):
        return False
    nodes = weight = 0
    for path in changed:
        after, before = size(new.get(path, "")), size(old.get(path, ""))
        if after is None or before is None:
            return False
        nodes += after.nodes - before.nodes
        weight += after.weight - before.weight
    return nodes < 0 and weight < 0


def _docstring(node: ast.AST) -> ast.Expr | None:
    """The statement that documents a node."""
    first = node.body[0] if isinstance(node, _DOCUMENTED) and node.body else None
    value = first.value if isinstance(first, ast.Expr) else None
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return first if is_text and isinstance(first, ast.Expr) else None


def _weight(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return 1 + len(node.value) // _TEXT_PER_NODE
    return 1
