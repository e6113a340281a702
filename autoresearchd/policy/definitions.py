"""Which top-level definitions of a Python file an edit touches.

A file is cut into its top-level statements by their first columns; only those that differ are parsed, so that a look at
an edit of a file of a thousand lines takes a few milliseconds.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_TOP = re.compile(r"\n(?=(?!(?:else|elif|except|finally)\b)[^\s)\]}#])")
_LEXEME = re.compile(r'"""|\'\'\'|"(?:[^"\\\n]|\\[\s\S])*+"?|\'(?:[^\'\\\n]|\\[\s\S])*+\'?|#[^\n]*+')
_HEADER = re.compile(r"^(?:async\s+def|def|class)\s+(\w+)", re.MULTILINE)
_CONFIG = re.compile(r"^class\s+\w*(?:config|args|arguments|params|settings)\b", re.MULTILINE | re.IGNORECASE)
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_MOST_CHARACTERS = 400_000
_LARGEST = 1e15


@dataclass(slots=True)
class _Definition:
    """What stands under a name. value: of the last number assigned to it; texts: its statements, without comments."""

    value: int | float | None = None
    texts: list[str] = field(default_factory=list)


def touched(before: str, after: str) -> dict[str, int | float | None]:
    """Names that an edit changed or removed, with the numbers that they stood for, None where that is no number.

    Entries of dictionaries and fields of classes of settings have names of their own: ``CONFIG.lr``. New names are not
    among them. Nothing where a file cannot be parsed or is larger than any program.
    """
    if max(len(before), len(after)) > _MOST_CHARACTERS:
        return {}
    old, new = Counter(_statements(before)), Counter(_statements(after))
    try:
        was, became = _definitions((old - new).elements()), _definitions((new - old).elements())
    except _UNPARSABLE:
        try:
            was, became = _definitions([before]), _definitions([after])
        except _UNPARSABLE:
            return {}
    changed = (name for name in was if name not in became or was[name].texts != became[name].texts)
    return {name: was[name].value for name in sorted(changed)}


# ---------------------------------------------------------------------- statements
def _statements(text: str) -> Iterator[str]:
    """The top-level statements, as text; two that cannot be told apart without a parser stay in one piece."""
    parts: list[str] = []
    quotes = ""
    for part in _TOP.split(text.replace("\r\n", "\n")):
        parts.append(part)
        quotes = _quotes_after(part, quotes)
        if not quotes and not part.startswith("@"):
            yield "\n".join(parts)
            parts.clear()
    if parts:
        yield "\n".join(parts)


def _quotes_after(part: str, quotes: str) -> str:
    """The triple quotes that are open at the end of a part, given those that are open at its beginning."""
    if '"""' not in part and "'''" not in part:
        return quotes
    at = 0
    while True:
        if quotes:
            end = part.find(quotes, at)
            if end < 0:
                return quotes
            at, quotes = end + 3, ""
        lexeme = _LEXEME.search(part, at)
        if lexeme is None:
            return ""
        at = lexeme.end()
        if lexeme[0] in ('"""', "'''"):
            quotes = lexeme[0]


# ---------------------------------------------------------------------- definitions
def _definitions(statements: Iterable[str]) -> dict[str, _Definition]:
    found: dict[str, _Definition] = {}
    for text in statements:
        header = _HEADER.search(text) if text.startswith(("def ", "class ", "async ", "@")) else None
        if header is not None and not _CONFIG.search(text) and "\ndef " not in text and "\nclass " not in text:
            found.setdefault(header[1], _Definition()).texts.append(_bare(text))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful escape is the model's affair
            tree = ast.parse(text.removeprefix("\ufeff"))
        _collect(tree.body, text.removeprefix("\ufeff").split("\n"), "", found)
    return found


def _collect(body: Iterable[ast.stmt], lines: list[str], context: str, found: dict[str, _Definition]) -> None:
    """Take the definitions of a block; ``context``: the conditions under which it applies."""
    for node in body:
        if isinstance(node, ast.ClassDef) and _CONFIG.search(f"class {node.name}"):
            _collect_fields(node, lines, found)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            text = "\n".join(lines[first - 1 : node.end_lineno])
            found.setdefault(node.name, _Definition()).texts.append(context + _bare(text))
        elif isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            inner = context + _source(getattr(node, "test", None), lines)
            for block in ("body", "orelse", "finalbody"):
                _collect(getattr(node, block, ()), lines, f"{inner}/{block}:", found)
            for handler in getattr(node, "handlers", ()):
                _collect(handler.body, lines, f"{inner}/except:", found)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            _collect_assignment(node, "", lines, context, found)


def _collect_fields(node: ast.ClassDef, lines: list[str], found: dict[str, _Definition]) -> None:
    """The fields of a class of settings count each by itself, the rest of it together."""
    rest = []
    for inner in node.body:
        if isinstance(inner, (ast.Assign, ast.AnnAssign)):
            _collect_assignment(inner, f"{node.name}.", lines, "", found)
        elif not (isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant)):
            rest.append(_source(inner, lines))
    found.setdefault(node.name, _Definition()).texts.extend(map(_bare, rest))


def _collect_assignment(
    node: ast.Assign | ast.AnnAssign | ast.AugAssign,
    owner: str,
    lines: list[str],
    context: str,
    found: dict[str, _Definition],
) -> None:
    kind = type(node.op).__name__ if isinstance(node, ast.AugAssign) else "="
    for name, held in _bindings(node):
        for key, value in _entries(owner + name, held):
            definition = found.setdefault(key, _Definition())
            definition.texts.append(context + kind + _source(value, lines))
            number = _number(value) if kind == "=" else None
            definition.value = definition.value if number is None else number


def _bindings(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[tuple[str, ast.expr | None]]:
    """Names and what is assigned to each."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        value = node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = zip(target.elts, value.elts, strict=True)
            yield from ((left.id, right) for left, right in pairs if isinstance(left, ast.Name))
        else:
            yield from ((n.id, value) for n in ast.walk(target) if isinstance(n, ast.Name))


def _entries(name: str, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    """What a name holds: each entry of a dictionary by itself."""
    keys = [_key(k) for k in value.keys] if isinstance(value, ast.Dict) else []
    if isinstance(value, ast.Dict) and keys and all(keys):
        for key, entry in zip(keys, value.values, strict=True):
            yield from _entries(f"{name}.{key}", entry)
    else:
        yield name, value


def _key(node: ast.expr | None) -> str:
    """A key that can stand in a name, else nothing."""
    found = node.value if isinstance(node, ast.Constant) else None
    return found if isinstance(found, str) and found.isidentifier() else ""


def _number(node: ast.expr | None) -> int | float | None:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < _LARGEST else None


def _source(node: ast.AST | None, lines: list[str]) -> str:
    """The lines of a node, cut to the node where it is all on one."""
    if not isinstance(node, (ast.expr, ast.stmt)) or node.end_lineno is None:
        return ""
    own = lines[node.lineno - 1 : node.end_lineno]
    if len(own) == 1:  # places count bytes of UTF-8
        return own[0].encode()[node.col_offset : node.end_col_offset].decode(errors="replace")
    return _bare("\n".join(own))


def _bare(text: str) -> str:
    """Without blank lines and comments of their own line, and without those after code that has no strings."""
    kept = []
    for line in text.split("\n"):
        code = line.partition("#")[0] if "#" in line and '"' not in line and "'" not in line else line
        if code.strip() and not code.lstrip().startswith("#"):
            kept.append(code.rstrip())
    return "\n".join(kept)
