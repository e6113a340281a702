"""Base models: by their files on this disk, and by the names that they have at a hub or a server.

Versions are told to fit a model by its hash. A server of models does not tell one, only what it calls its model, so
that names have to do there; and the same model is called otherwise by whoever trained it and by whoever serves it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, UsageError
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.models import model_files

_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_CACHED = re.compile(rf"models--({_PART}?)(?:--({_PART}))?")
_HUB_NAME = re.compile(rf"{_PART}(/{_PART})?")
_REVISION = re.compile(r"[0-9a-f]{40}")
_FETCHED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""No pickled weights: loading them would run what they say."""


def model_place(name: str, folder: Path) -> Path | None:
    """The folder or file of a model; None where the name is one of a hub or a server.

    name: as ``--model`` has it, empty where it was not given. folder: what a relative path is relative to. Raises
    UsageError: it looks like a path, and nothing is there.
    """
    place = folder / Path(name).expanduser()
    if name and place.exists():
        return place
    if name.startswith(("/", "./", "../", "~")):
        raise UsageError(f"--model {name}: there is nothing at {place}", hint="give a folder with a model, or its name")
    return None


def base_model(place: Path) -> BaseModel:
    """A model on disk, with its hashes as they are recorded with its answers; a template inside GGUF is not read.

    Raises UsageError: it is no model, or its files cannot be read.
    """
    try:
        return replace(model_files.known_by_files(place), name=str(place))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the model in {place} cannot be read: {error}", hint="make its files readable, or load it anew"
        ) from error


def described(base: BaseModel) -> str:
    """A model for people: its name, and how its hash begins."""
    known = f"hash {base.model_hash[:8]}" if base.model_hash else "whose hash nobody tells"
    return f"{base.name or 'a model without a name'} ({known})"


def same_name(one: str, other: str) -> bool:
    """Whether two names are of one model, as far as names tell."""
    return bool(_names_of(one) & _names_of(other))


def _names_of(name: str) -> frozenset[str]:
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


def fetched(name: str) -> Path:
    """The folder of a hub's model, fetched once.

    Raises UsageError: no hub has names like that; MissingCapability: the package that fetches is missing;
    EnvironmentFailure: the hub cannot be reached, or has no such model.
    """
    if not _HUB_NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"--model {name[:100]} is neither a folder nor a model's name", hint="name a folder, or OWNER/NAME"
        )
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise MissingCapability(
            f"to fetch the model {name} needs the package huggingface_hub", hint="pip install 'autoresearchd[learn]'"
        ) from error
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(_FETCHED)))
    except Exception as error:  # whatever its HTTP library and its own tree of errors hold
        what = " ".join(str(error).split())[:200]
        raise EnvironmentFailure(
            f"the model {name} cannot be fetched from the hub: {type(error).__name__}: {what}",
            hint="look at the name and the network; or fetch it elsewhere, and name its folder with --model",
        ) from error
