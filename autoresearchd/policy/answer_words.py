"""What an answer and its edit say: the words of its JSON object, bounded, and the constants that the edit changes."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from autoresearchd.config.value_positions import kind_of
from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.outlook import PASSED_BY, UNUSED
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.proposal import ASI, Cost, Proposal
from autoresearchd.domain.quantities import counted, some_of
from autoresearchd.evaluator.re_added import KEY
from autoresearchd.policy.search.parameter import Value, number_of

MAX_TEXT = 2000
MAX_LINE = 160
_MAX_KEYS = 20
_MAX_EXTRA = 2000
_LARGEST = 1e12
_OWN = frozenset({"hypothesis", "description", "expected_delta", "arch_change", "next_action_hint"})
_COST = frozenset({"cost_usd", "tokens_in", "tokens_out"})
_DAEMONS = frozenset({
    "result", "failure", "refused", "off_surface", "claimed_parent", "incumbent", "warning", KEY, PASSED_BY,
    UNUSED,
})  # fmt: skip
"""What the daemon says of an experiment, and nobody else."""
_CONSTANT = re.compile(
    r"(?P<indent>[ \t]*)(?P<name>[A-Za-z_]\w{0,80})[ \t]*(?::[^=#]{1,60})?=(?!=)[ \t]*(?P<value>.{1,200})"
)
_NAMED = 3
_MAX_FACTS = 50


def last_object(output: str) -> dict[str, Any]:
    """The last line when it is a JSON object, else nothing. Blank lines after it do not count."""
    line = next((s for s in reversed(output.split("\n")) if s.strip()), "").strip()
    if not line.startswith("{"):
        return {}
    try:
        found: dict[str, Any] = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return found


def propose(state: ResearchState, files: Mapping[str, str], said: Mapping[str, Any], policy: str) -> Proposal:
    """The proposal of an edit, in the words that are said of it; where there are none, in what it does."""
    description = clean(said.get("description"), MAX_LINE)
    hypothesis = clean(said.get("hypothesis"), MAX_TEXT) or description
    if not hypothesis and state.repair is not None:
        hypothesis = clean(state.repair.description, MAX_LINE)
    hypothesis = hypothesis or describe(state.code, files)
    return Proposal(
        files=dict(files),
        hypothesis=hypothesis,
        policy=policy,
        description=description or clean(hypothesis, MAX_LINE),
        expected_delta=number(said.get("expected_delta")),
        changes=changes(state.code, files),
        role=state.role,
        asi=asi_of(said, hypothesis),
        state_id=state.state_id,
        round_id=state.round_id,
    )


def asi_of(said: Mapping[str, Any], hypothesis: str) -> ASI:
    """The ASI in an answer; keys and values beyond the bounds are left out or cut."""
    extra: dict[str, Any] = {}
    for raw, value in said.items():
        name = clean(raw, 40)  # as it will stand: an invisible character makes no other key
        bounded = _bounded(value)
        if "".join(name.split()) not in _OWN | _COST | _DAEMONS and bounded is not None and len(extra) < _MAX_KEYS:
            extra[name or "key"] = bounded
    return ASI(
        hypothesis=hypothesis,
        arch_change=clean(said.get("arch_change"), MAX_TEXT),
        next_action_hint=clean(said.get("next_action_hint"), MAX_TEXT),
        extra=extra,
    )


def cost_of(said: Mapping[str, Any], seconds: float) -> Cost:
    """What the tool says that it cost; the price is unknown where it says nothing."""
    usd, tokens_in, tokens_out = (number(said.get(key)) for key in ("cost_usd", "tokens_in", "tokens_out"))
    return Cost(
        usd=usd if usd is not None and usd >= 0 else None,
        tokens_in=max(0, int(tokens_in or 0)),
        tokens_out=max(0, int(tokens_out or 0)),
        seconds=seconds,
    )


def number(value: object) -> float | None:
    """A finite number of reasonable size, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _LARGEST and math.isfinite(value) else None


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return clean(value, _MAX_EXTRA)
    if isinstance(value, bool) or number(value) is not None:
        return value
    if not isinstance(value, (list, dict)):
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        return None
    return value if len(text) <= _MAX_EXTRA else None


# ---------------------------------------------------------------------- what the edit does
class _Changed(NamedTuple):
    """A line ``NAME = literal`` with another literal: as both are written, and what they are worth."""

    name: str
    old: str
    new: str
    was: Value | tuple[Value, ...]
    now: Value | tuple[Value, ...]
    at_top_level: bool


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
            name, was, now = f"{path}:{changed.name}", changed.was, changed.now
            if isinstance(now, tuple):
                if not isinstance(was, tuple) or len(was) != len(now):
                    return {}
                values = {f"{name}[{i}]": b for i, (a, b) in enumerate(zip(was, now, strict=True)) if a != b}
            else:
                values = {name: now}
            if not changed.at_top_level or found.keys() & values.keys():
                return {}
            found.update(values)
    return found if len(found) <= _MAX_FACTS else {}


def describe(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What the edit does, in a line: ``Change LR 0.1 → 0.2 in train.py``."""
    return clean("; ".join(_describe(path, before.get(path, ""), after[path]) for path in sorted(after)), MAX_LINE)


def _describe(path: str, old: str, new: str) -> str:
    pairs = _constants(path, old, new)
    if pairs:
        return f"Change {some_of([f'{c.name} {c.old} → {c.new}' for c in pairs], _NAMED)} in {path}"
    gone, come = Counter(old.splitlines()), Counter(new.splitlines())
    added, removed = come - gone, gone - come
    first = next((line.strip() for line in new.splitlines() if line in added and line.strip()), "")
    words = f"Change {path}: {counted(added.total(), 'line')} added, {removed.total()} removed"
    return f"{words}, from `{first}`" if first else words


def _constants(path: str, old: str, new: str) -> list[_Changed] | None:
    """The constants with another literal; None where anything else differs but comments and blank lines."""
    lines, others = _code(old), _code(new)
    if kind_of(path) or len(lines) != len(others):  # ``lr = 0.1`` is another constant in each table of a TOML file
        return None
    found = []
    for line, other in zip(lines, others, strict=True):
        if line == other:
            continue
        was, now = _CONSTANT.fullmatch(line), _CONSTANT.fullmatch(other)
        if was is None or now is None or (was["indent"], was["name"]) != (now["indent"], now["name"]):
            return None
        (old_source, old_value), (new_source, new_value) = _literal(was["value"]), _literal(now["value"])
        if old_value is None or new_value is None:
            return None
        if old_value != new_value or type(old_value) is not type(new_value):
            found.append(_Changed(was["name"], old_source, new_source, old_value, new_value, not was["indent"]))
    return found


def _code(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _literal(text: str) -> tuple[str, Value | tuple[Value, ...] | None]:
    """A literal without the comma or the comment after it, and its value: of simple arithmetic, too, and of tuples."""
    text = text.strip()
    with warnings.catch_warnings(action="ignore"):  # a doubtful escape in a string is the model's affair
        try:
            node = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text, None
    source = (ast.get_source_segment(text, node) or text).rstrip(",")
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [_value(element) for element in node.elts]
        return source, None if None in values else tuple(value for value in values if value is not None)
    return source, _value(node)


def _value(node: ast.expr) -> Value | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, str)):
        return node.value if not isinstance(node.value, str) or node.value.isprintable() else None
    return number_of(node)
