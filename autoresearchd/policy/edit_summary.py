"""What an edit says of itself: the constants that it changes, and a plain hypothesis for an answer without words."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoresearchd.config.value_positions import kind_of
from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.quantities import counted
from autoresearchd.policy.answer_words import MAX_LINE
from autoresearchd.policy.search.parameter import Value, number_of

_CONSTANT = re.compile(
    r"(?P<indent>[ \t]*)(?P<name>[A-Za-z_]\w{0,80})[ \t]*(?::[^=#]{1,60})?=(?!=)[ \t]*(?P<value>.{1,200})"
)
_NAMED = 3
_MAX_FACTS = 50


@dataclass(frozen=True, slots=True)
class Changed:
    """A line ``NAME = literal`` with another literal. top: whether it stands at the top level of its file."""

    path: str
    name: str
    old: str
    new: str
    top: bool


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Value]:
    """Constant → new value, named as the search names them (``train.py:LR``, ``train.py:BETAS[1]``).

    Empty unless the edit does nothing but give constants at the top level other literals: only then do two edits with
    equal changes do the same.
    """
    found: dict[str, Value] = {}
    for path in sorted(after):
        pairs = _constants(path, before.get(path, ""), after[path])
        if pairs is None:
            return {}
        for changed in pairs:
            values = _values(changed) if changed.top else None
            if values is None or found.keys() & values.keys():
                return {}
            found.update(values)
    return found if len(found) <= _MAX_FACTS else {}


def hypothesis(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What the edit does, in a line: ``Change LR 0.1 → 0.2 in train.py``."""
    return clean("; ".join(_told(path, before.get(path, ""), after[path]) for path in sorted(after)), MAX_LINE)


def _told(path: str, old: str, new: str) -> str:
    pairs = _constants(path, old, new)
    if pairs:
        more = f" and {len(pairs) - _NAMED} more" if len(pairs) > _NAMED else ""
        return f"Change {', '.join(f'{c.name} {c.old} → {c.new}' for c in pairs[:_NAMED])}{more} in {path}"
    gone, come = Counter(old.splitlines()), Counter(new.splitlines())
    added, removed = come - gone, gone - come
    first = next((line.strip() for line in new.splitlines() if line in added and line.strip()), "")
    words = f"Change {path}: {counted(added.total(), 'line')} added, {removed.total()} removed"
    return f"{words}, from `{first}`" if first else words


def _constants(path: str, old: str, new: str) -> list[Changed] | None:
    """The constants with another literal; None where anything else differs but comments and blank lines."""
    if kind_of(path):  # ``lr = 0.1`` is another constant in each table of a TOML file
        return None
    lines, others = list(_code(old)), list(_code(new))
    if len(lines) != len(others):
        return None
    found = []
    for line, other in zip(lines, others, strict=True):
        if line == other:
            continue
        was, now = _CONSTANT.fullmatch(line), _CONSTANT.fullmatch(other)
        if was is None or now is None or (was["indent"], was["name"]) != (now["indent"], now["name"]):
            return None
        literals = _literal(was["value"]), _literal(now["value"])
        if literals[0] is None or literals[1] is None:
            return None
        if literals[0] != literals[1] or type(literals[0]) is not type(literals[1]):
            found.append(Changed(path, was["name"], _source(was["value"]), _source(now["value"]), not was["indent"]))
    return found


def _code(text: str) -> Iterator[str]:
    return (line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _values(changed: Changed) -> dict[str, Value] | None:
    """The new value by its name; of a tuple of the same length the entries that differ."""
    name, old, new = f"{changed.path}:{changed.name}", _literal(changed.old), _literal(changed.new)
    if isinstance(new, tuple):
        if not isinstance(old, tuple) or len(old) != len(new):
            return None
        return {f"{name}[{i}]": value for i, (was, value) in enumerate(zip(old, new, strict=True)) if was != value}
    return None if new is None else {name: new}


# ---------------------------------------------------------------------- literals
def _literal(text: str) -> Value | tuple[Value, ...] | None:
    """Value of a literal, of simple arithmetic on numbers, or of a tuple or list of such; None for all else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful escape in a string is the model's affair
            node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [_value(element) for element in node.elts]
        return None if None in values else tuple(value for value in values if value is not None)
    return _value(node)


def _value(node: ast.expr) -> Value | None:
    match node:
        case ast.Constant(value=bool() as flag):
            return flag
        case ast.Constant(value=str() as text):
            return text if text.isprintable() else None
        case _:
            return number_of(node)


def _source(text: str) -> str:
    """A literal as it was written, without the comma or the comment after it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = ast.parse(text.strip(), mode="eval").body
        return (ast.get_source_segment(text.strip(), node) or text.strip()).rstrip(",")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text.strip()
