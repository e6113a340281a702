"""Literals of a Python program as libcst has them: their values, and the keys of dictionaries."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import libcst as cst

from autoresearchd.policy.parameter import Value

_OPERATORS: dict[type[cst.BaseBinaryOp], Callable[[int | float, int | float], int | float]] = {
    cst.Multiply: operator.mul,
    cst.Divide: operator.truediv,
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
}


def literal(node: cst.BaseExpression, source: str) -> Value | None:
    """The value of a number, a boolean or a plain string between single quotes of either kind; None for all else."""
    number = number_of(node)
    if number is not None:
        return number
    if isinstance(node, cst.Name) and node.value in {"True", "False"}:
        return node.value == "True"
    if isinstance(node, cst.SimpleString) and source[:1] in "\"'" and not source.startswith(('"""', "'''")):
        text = node.evaluated_value
        return text if isinstance(text, str) else None
    return None


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


def key_of(element: cst.BaseDictElement) -> str:
    """The key of a dictionary entry where it is a plain string, else nothing."""
    if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
        key = element.key.evaluated_value
        return key if isinstance(key, str) else ""
    return ""
