"""What this process knows to be secret: its environment's keys, and those in the files where tools keep theirs.

The files are read so that their keys can be recognised, and for nothing else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from autoresearchd.domain.redaction import (
    Redactor,
    find_secrets,
    is_secret,
    is_telling,
    secrets_of_environment,
    secrets_of_file,
)
from autoresearchd.store import shared

MAX_BYTES = 64 * 1024

_AT_HOME = (
    ".netrc", ".git-credentials", ".npmrc", ".pypirc", ".aws/credentials", ".docker/config.json",
    ".config/gh/hosts.yml", ".cache/huggingface/token", ".huggingface/token", ".kaggle/kaggle.json", ".modal.toml",
    ".replicate/auth", ".config/gcloud/application_default_credentials.json", ".config/git/credentials",
    ".cloudflared/cert.pem",
)  # fmt: skip
"""Key files of Git, GitHub, npm, PyPI, AWS, Docker, Hugging Face, Kaggle, Google Cloud; ``.netrc`` is also wandb's."""


def redactor(*, environment: Mapping[str, str] | None = None, folder: Path | None = None) -> Redactor:
    """A redactor that knows the secrets of an environment (default: this process's) and of the key files.

    A variable may name one (``GOOGLE_APPLICATION_CREDENTIALS``); ``folder`` may hold a ``.env``, as LLM libraries load.
    """
    variables = os.environ if environment is None else environment
    store = variables.get(shared.VARIABLE, "")
    of_store = filter(is_secret, shared.passwords(store))
    telling = {name: value for name, value in variables.items() if name != shared.VARIABLE or not shared.is_open(store)}
    return Redactor([*secrets_of_environment(telling), *of_store, *_of_files(variables, folder)])


def _of_files(variables: Mapping[str, str], folder: Path | None) -> Iterator[str]:
    for path in _key_files(variables, folder):
        text = _read(path)
        yield from secrets_of_file(text)
        yield from (text[begin:end] for begin, end, _ in find_secrets(text))


def _key_files(variables: Mapping[str, str], folder: Path | None) -> Iterator[Path]:
    home = variables.get("HOME")
    if home:
        yield from (Path(home, name) for name in _AT_HOME)
    if variables.get("HF_HOME"):
        yield Path(variables["HF_HOME"], "token")
    if folder is not None:
        yield folder / ".env"
    for name, value in variables.items():
        if is_telling(name.removesuffix("_FILE").removesuffix("_PATH")) and value.startswith("/"):
            yield Path(value)


def _read(path: Path) -> str:
    """Text of a small regular file, empty where it is none or may not be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        data = os.read(handle, MAX_BYTES) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
    except OSError:
        data = b""
    finally:
        os.close(handle)
    return data.decode("utf-8", "replace")
