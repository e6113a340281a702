"""How simple a program is: the number of nodes in its syntax tree (the simplicity rule of the autoresearch-ml skill).

Nodes do not change with layout, comments, names or docstrings, and they cannot be hidden: long text counts by its
length, so that code moved into a string is not simpler. The text comes from a model and is only parsed.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping

_TEXT_PER_NODE = 2
"""Characters of a string constant that count as one more node; code has about three characters for each."""
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def node_count(text: str) -> int | None:
    """Nodes of a Python program, docstrings left out; None when it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except _UNPARSABLE:
        return None
    documented = [node for node in map(_docstring, ast.walk(tree)) if node is not None]
    documentation = {id(part) for node in documented for part in (node, node.value)}
    return sum(_weight(node) for node in ast.walk(tree) if id(node) not in documentation)


def is_simpler(new: Mapping[str, str], old: Mapping[str, str]) -> bool:
    """Whether a program has fewer nodes than another one; never where one of its changed files cannot be counted."""
    changed = [path for path in {**old, **new} if new.get(path) != old.get(path)]
    if not changed or not all(path.endswith(".py") for path in changed):
        return False
    counts = [(node_count(new.get(path, "")), node_count(old.get(path, ""))) for path in changed]
    after = [a for a, _ in counts if a is not None]
    before = [b for _, b in counts if b is not None]
    return len(after) == len(before) == len(counts) and sum(after) < sum(before)


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
