"""What a tool printed about its proposal: the last line that is a JSON object, checked and bounded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.proposal import ASI, Cost

MAX_TEXT = 2000
MAX_LINE = 160
_MAX_KEYS = 20
_MAX_EXTRA = 2000
_OWN = frozenset({"hypothesis", "description", "expected_delta", "arch_change", "next_action_hint"})
_DAEMONS = frozenset({"result", "failure", "refused", "off_surface", "claimed_parent", "incumbent", "warning"})
"""What the daemon says of an experiment, and nobody else."""
_COST = frozenset({"cost_usd", "tokens_in", "tokens_out"})


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
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value if number(value) is not None else None
    if isinstance(value, (list, dict)):
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            text.encode()
        except (ValueError, RecursionError):
            return None
        return value if len(text) <= _MAX_EXTRA else None
    return None
