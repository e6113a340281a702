"""By which names a base model is known: a folder, a name of a hub, the folder that a hub's model is kept in.

Versions are told to fit a model by its hash. A server of models does not tell one, only what it calls its model, so
that names have to do there; and the same model is called otherwise by whoever trained it and by whoever serves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from autoresearchd.domain.policy_versions import BaseModel, PolicyVersion

_CACHED = re.compile(r"models--([A-Za-z0-9][\w.-]{0,95}?)(?:--([A-Za-z0-9][\w.-]{0,95}))?")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_REVISION = re.compile(r"[0-9a-f]{40}")
_SHOWN = 8
"""Digits of a hash that are shown."""


def names_of(name: str) -> frozenset[str]:
    """All names that a model has, from one of them; empty: none.

    A folder is also what it is a link to, and a snapshot in the cache of the Hugging Face hub also the model that it is
    one of (``models--OWNER--NAME/snapshots/<revision>``: huggingface.co/docs/huggingface_hub/guides/manage-cache).
    """
    text = name.strip().rstrip("/")
    if not text:
        return frozenset()
    found = {text}
    place = Path(text).expanduser()
    if place.is_absolute():
        found |= {str(place), str(place.resolve())}
        parts = place.parts
        for at in range(len(parts) - 2):
            match = _CACHED.fullmatch(parts[at])
            if match and parts[at + 1] == "snapshots":
                found.add("/".join(part for part in match.groups() if part))
    return frozenset(found)


def same_name(one: str, other: str) -> bool:
    """Whether two names are of one model, as far as names tell."""
    return bool(names_of(one) & names_of(other))


def cached(name: str, environment: Mapping[str, str]) -> Path | None:
    """The folder that a hub's model of this name is kept in on this machine; None where it is not, or is no such name.

    name: as the hub has it, ``OWNER/NAME``. environment: says where the cache is, as it does to huggingface_hub.
    """
    if not _HUB_NAME.fullmatch(name) or ".." in name:
        return None
    home = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    place = Path(environment.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    repository = place / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text("ascii", "replace").strip()
        folder = repository / "snapshots" / revision
        return folder if _REVISION.fullmatch(revision) and folder.is_dir() else None
    except OSError:
        return None


def described(base: BaseModel) -> str:
    """A model for people: its name, and how its hash begins."""
    known = f"hash {base.model_hash[:_SHOWN]}" if base.model_hash else "whose hash nobody tells"
    return f"{base.name or 'a model without a name'} ({known})"


def for_others(versions: Iterable[tuple[PolicyVersion, str]]) -> str:
    """Which versions are in use for which models, on one line.

    versions: each with the name of the model that it was learned on.
    """
    found = (f"{version.version} for {described(BaseModel(name, version.model_hash))}" for version, name in versions)
    return ", ".join(found)
