"""What an answer and its edit say: the words of its JSON object, bounded, and the constants that the edit changes."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from autoresearchd.config.value_positions import kind_of
from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.proposal import ASI, Cost
from autoresearchd.domain.quantities import counted
from autoresearchd.policy.search.parameter import Value, number_of

MAX_TEXT = 2000
MAX_LINE = 160
_MAX_KEYS = 20
_MAX_EXTRA = 2000
_OWN = frozenset({"hypothesis", "description", "expected_delta", "arch_change", "next_action_hint"})
_DAEMONS = frozenset({"result", "failure", "refused", "off_surface", "claimed_parent", "incumbent", "warning"})
"""What the daemon says of an experiment, and nobody else."""
_COST = frozenset({"cost_usd", "tokens_in", "tokens_out"})
_CONSTANT = re.compile(
    r"(?P<indent>[ \t]*)(?P<name>[A-Za-z_]\w{0,80})[ \t]*(?::[^=#]{1,60})?=(?!=)[ \t]*(?P<value>.{1,200})"
)
_NAMED = 3
_MAX_FACTS = 50


def last_object(output: str) -> dict[str, Any]:
    """The last line when it is a JSON object, else nothing. Blank lines after it do not count."""
    line = next((s for s in reversed(output.splitlines()) if s.strip()), "").strip()
    if not line.startswith("{"):
        return {}
    try:
        found = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def asi_of(found: Mapping[str, Any], hypothesis: str) -> ASI:
    """The ASI in an answer; keys and values beyond the bounds are left out or cut."""
    extra: dict[str, Any] = {}
    for raw, value in found.items():
        key = "".join(clean(raw, 40).split()) or "key"  # as it will stand: an invisible character makes no other key
        if key in _OWN or key in _COST or key in _DAEMONS or len(extra) >= _MAX_KEYS:
            continue
        bounded = _bounded(value)
        if bounded is not None:
            extra[clean(raw, 40) or "key"] = bounded
    return ASI(
        hypothesis=hypothesis,
        arch_change=clean(found.get("arch_change"), MAX_TEXT),
        next_action_hint=clean(found.get("next_action_hint"), MAX_TEXT),
        extra=extra,
    )


def cost_of(found: Mapping[str, Any], seconds: float) -> Cost:
    """What the tool says that it cost; the price is unknown where it says nothing."""
    usd = number(found.get("cost_usd"))
    return Cost(
        usd=usd if usd is not None and usd >= 0 else None,
        tokens_in=_count(found.get("tokens_in")),
        tokens_out=_count(found.get("tokens_out")),
        seconds=seconds,
    )


def number(value: object) -> float | None:
    """A finite number of reasonable size, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e12 and math.isfinite(value) else None


def _count(value: object) -> int:
    found = number(value)
    return int(found) if found is not None and 0 <= found < 1e12 else 0


def _bounded(value: object) -> object:
    """A JSON value small enough to keep, else None."""
    if isinstance(value, str):
        return clean(value, _MAX_EXTRA)
    if isinstance(value, bool) or number(value) is not None:
        return value
    if isinstance(value, (list, dict)):
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            text.encode()
        except (ValueError, RecursionError):
            return None
        return value if len(text) <= _MAX_EXTRA else None
    return None


# ---------------------------------------------------------------------- what the edit does
class _Changed(NamedTuple):
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


def _constants(path: str, old: str, new: str) -> list[_Changed] | None:
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
            found.append(_Changed(path, was["name"], _source(was["value"]), _source(now["value"]), not was["indent"]))
    return found


def _code(text: str) -> Iterator[str]:
    return (line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _values(changed: _Changed) -> dict[str, Value] | None:
    """The new value by its name; of a tuple of the same length the entries that differ."""
    name, old, new = f"{changed.path}:{changed.name}", _literal(changed.old), _literal(changed.new)
    if isinstance(new, tuple):
        if not isinstance(old, tuple) or len(old) != len(new):
            return None
        return {f"{name}[{i}]": value for i, (was, value) in enumerate(zip(old, new, strict=True)) if was != value}
    return None if new is None else {name: new}


def _literal(text: str) -> Value | tuple[Value, ...] | None:
    """Value of a literal, of simple arithmetic on numbers, or of a tuple or list of such; None for all else."""
    node = _parsed(text)
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [_value(element) for element in node.elts]
        return None if None in values else tuple(value for value in values if value is not None)
    return _value(node)


def _parsed(text: str) -> ast.expr | None:
    with warnings.catch_warnings(action="ignore"):  # a doubtful escape in a string is the model's affair
        try:
            return ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _value(node: ast.expr | None) -> Value | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, str)):
        return node.value if not isinstance(node.value, str) or node.value.isprintable() else None
    return number_of(node)


def _source(text: str) -> str:
    """A literal as it was written, without the comma or the comment after it."""
    node = _parsed(text)
    return ((node and ast.get_source_segment(text.strip(), node)) or text.strip()).rstrip(",")
