"""What an OpenAI-compatible server tells of the models that it serves (``GET /v1/models``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from autoresearchd.policy import provider

MAX_NAME = 300


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that a server lists. root: what it was loaded from; parent: the model that it is an adapter of."""

    name: str
    context: int | None = None
    root: str = ""
    parent: str = ""


def listed_models(found: Mapping[str, Any]) -> list[Listed]:
    """The models that a server lists, with what it tells of them."""
    data = found.get("data")
    models = []
    for entry in data if isinstance(data, list) else ():
        name = entry.get("id") if isinstance(entry, dict) else None
        if _is_name(name):
            context = provider.count(entry.get("max_model_len"))
            root, parent = (value if _is_name(value := entry.get(key)) else "" for key in ("root", "parent"))
            models.append(Listed(name, context or None, root, parent))
    return models


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()
