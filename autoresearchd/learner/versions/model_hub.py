"""A base model by its name on a hub: fetched once, then found on this disk."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, UsageError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""No pickled weights: loading them would run what they say."""


def fetched(name: str) -> Path:
    """The folder of a model of that name.

    Raises:
        UsageError: no hub has names like that.
        MissingCapability: the package that fetches is missing.
        EnvironmentFailure: the hub cannot be reached, or has no such model.
    """
    if not _NAME.fullmatch(name) or ".." in name:
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
        return Path(hub.snapshot_download(name, allow_patterns=list(_FILES)))
    except Exception as error:  # whatever its HTTP library and its own tree of errors hold
        what = " ".join(str(error).split())[:200]
        raise EnvironmentFailure(
            f"the model {name} cannot be fetched from the hub: {type(error).__name__}: {what}",
            hint="look at the name and the network; or fetch it elsewhere, and name its folder with --model",
        ) from error
