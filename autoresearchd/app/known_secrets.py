"""What a session knows to be secret: all that this process does, what its jobs are given, and its models' keys."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from autoresearchd import keys
from autoresearchd.config.settings import ModelSettings, load_settings
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.redaction import Redactor, secret_parts, secrets_of_environment


def session_redactor(root: Path, given: Mapping[str, str], settings: ModelSettings | None = None) -> Redactor:
    """given: ``execution.env`` of the session's task. settings: None: read; what cannot be read names no key in use."""
    if settings is None:
        settings = ModelSettings()
        with contextlib.suppress(UsageError):
            settings = load_settings(os.environ)
    return keys.redactor(folder=root).with_values((*secrets_of_environment(given), *model_secrets(settings)))


def model_secrets(settings: ModelSettings) -> list[str]:
    """All keys that lie in files which the settings name; a file that cannot be read holds none that was used."""
    from autoresearchd.models.openai_client import read_key

    found: list[str] = []
    for path in (settings.local.key_file, *settings.key_files.values()):
        if path:
            with contextlib.suppress(UsageError):
                found.extend(secret_parts(read_key(path)))
    return found
