"""What a program prints or logs as its metric: the expressions, as they are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from autoresearchd.policy.flow_syntax import last_name

_PRINTS = frozenset({"print", "write", "info", "echo"})
_LOGS = frozenset({"log", "log_metric", "report", "add_scalar"})


class Printed:
    """Finds what stands behind the name of a metric."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._name = re.compile(rf"(?<!\w){re.escape(metric)}(?!\w)")

    def named(self, value: object) -> bool:
        """Whether a text has the name of the metric in it."""
        return bool(self._metric) and isinstance(value, str) and self._name.search(value) is not None

    def by_dict(self, node: ast.Dict) -> Iterator[ast.expr]:
        """The entry of a dictionary under the name of the metric."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and self.named(key.value):
                yield value

    def by_call(self, node: ast.Call) -> Iterator[ast.expr]:
        """What a call prints or logs under the name of the metric."""
        callee = last_name(node.func)
        yield from (k.value for k in node.keywords if k.arg and k.arg == self._metric)
        if callee in _LOGS and node.args and isinstance(node.args[0], ast.Constant) and self.named(node.args[0].value):
            yield from node.args[1:2]
        if callee not in _PRINTS:
            return
        for i, argument in enumerate(node.args):
            if isinstance(argument, ast.JoinedStr):
                yield from self._behind(argument)
            elif any(isinstance(n, ast.Constant) and self.named(n.value) for n in ast.walk(argument)):
                if isinstance(argument, ast.Constant):
                    yield from node.args[i + 1 : i + 2]
                else:
                    yield from _filled(argument)

    def _behind(self, text: ast.JoinedStr) -> Iterator[ast.expr]:
        """The field that stands behind the metric's name in an f-string."""
        named = False
        for part in text.values:
            if isinstance(part, ast.Constant):
                named = self.named(part.value)
            elif named and isinstance(part, ast.FormattedValue):
                yield part.value
                return


def all_of(node: ast.Call) -> Iterator[ast.expr]:
    """All that a call prints, each field of an f-string by itself."""
    for argument in node.args if last_name(node.func) in _PRINTS else ():
        if isinstance(argument, ast.JoinedStr):
            yield from (part.value for part in argument.values if isinstance(part, ast.FormattedValue))
        else:
            yield argument


def _filled(node: ast.expr) -> Iterator[ast.expr]:
    """What is filled into a text by % or format, or joined to it."""
    if isinstance(node, ast.Call) and last_name(node.func) in ("format", "join"):
        yield from (*node.args, *(k.value for k in node.keywords))
    elif isinstance(node, ast.BinOp):
        yield from _filled(node.left)
        yield node.right
