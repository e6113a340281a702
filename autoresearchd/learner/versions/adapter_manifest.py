"""The manifest of a version of the local policy: what its folder holds, by hash, and where it comes from.

A manifest is written last, into a folder whose files are on disk. It is read as what may have been damaged since: every
value is checked before it is believed, and every file before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import AdapterDamaged
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.store.schema import codec

NAME = "manifest.json"
CONFIG = "adapter_config.json"
"""What peft reads first; a folder without it is no adapter."""

_FORMAT = 1
_MOST_BYTES = 4 * 1024 * 1024
_CHUNK = 1024 * 1024
_VERSION = re.compile(r"v([1-9][0-9]{0,8})-[0-9a-f]{8}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
HINT = "`autoresearchd adapters rollback` goes back to the version before it; `autoresearchd learn` makes a new one"
"""How to get away from a version whose files are damaged."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file is known by."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a version beside the database.

    parent: the version that it was trained from, None: the plain model. data: what it learned from (sessions, counts).
    learner_run: id of the run that made it. pruned: when its files were removed to free their room, None: they are
    there. What it learned from is known beyond that, for the versions that were trained from it.
    """

    version: str
    base: BaseModel
    algo: str
    created: datetime
    files: Mapping[str, FileFacts]
    parent: str | None = None
    learner_run: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    pruned: datetime | None = None

    @property
    def digest(self) -> str:
        """One hash over the names and contents of all files."""
        return digest_of(self.files)

    def as_json(self) -> str:
        """As it is written."""
        pruned = None if self.pruned is None else self.pruned.isoformat()
        document = {"format": _FORMAT, **asdict(self), "created": self.created.isoformat(), "pruned": pruned}
        return json.dumps(codec.jsonable(document), indent=1, sort_keys=True, allow_nan=False) + "\n"


def number_of(version: str) -> int | None:
    """The number of a version by its name, None where it is not a name of ours."""
    found = _VERSION.fullmatch(version)
    return int(found[1]) if found else None


def digest_of(files: Mapping[str, FileFacts]) -> str:
    """One hash over the names and contents of files."""
    text = "".join(f"{name}\0{files[name].sha256}\n" for name in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()


def measure(folder: Path) -> dict[str, FileFacts]:
    """The files of a folder, each flushed to the disk and hashed.

    Raises AdapterDamaged where they are not what a learner writes: a folder in it, a link, no ``adapter_config.json``.
    """
    found: dict[str, FileFacts] = {}
    for path in sorted(folder.iterdir()):
        if path.name == NAME or path.is_symlink() or not path.is_file() or not _FILE.fullmatch(path.name):
            raise AdapterDamaged(f"{path} is not a file that an adapter may hold")
        flush(path)
        found[path.name] = _facts(path)
    if CONFIG not in found:
        raise AdapterDamaged(f"{folder} holds no LoRA adapter: there is no {CONFIG}")
    return found


def write(folder: Path, manifest: Manifest) -> None:
    """Put a manifest into a folder, and flush both to the disk."""
    path = folder / NAME
    path.write_text(manifest.as_json(), "utf-8")
    read(folder)  # what cannot be read back is not kept
    flush(path)
    flush(folder)


def read(folder: Path) -> Manifest:
    """The manifest of a folder, believed no further than it can be checked; AdapterDamaged names what is wrong."""
    path = folder / NAME
    if folder.is_symlink():  # what it leads to is not ours: it may change, and `prune` would remove it
        raise AdapterDamaged(f"{folder} is a link, and no folder of a version", hint=HINT)
    try:
        # Nobody writes into a pipe that somebody has put there: opening it would wait for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise AdapterDamaged(f"{path} is no file", hint=HINT)
            with os.fdopen(handle, "rb", closefd=False) as stream:
                text = stream.read(_MOST_BYTES + 1)
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        raise AdapterDamaged(f"{path} is gone", hint=HINT) from error
    except OSError as error:
        raise AdapterDamaged(f"{path} cannot be read: {error.strerror}", hint=HINT) from error
    try:
        if len(text) > _MOST_BYTES:
            raise ValueError("it is too long")
        return _parsed(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise AdapterDamaged(f"{path} is damaged: {type(error).__name__}", hint=HINT) from error


def prune(folder: Path, manifest: Manifest, at: datetime) -> int:
    """Remove the files of a version and keep its manifest, which says so; how many bytes that frees.

    The manifest is written first: killed in between, the version is known as one that is not to be used any more, and
    the next call removes what is left.
    """
    there = {path: path.lstat().st_size for path in folder.iterdir() if path.name != NAME}
    text = replace(manifest, pruned=manifest.pruned or at).as_json()
    partial = folder / f"{NAME}.part"
    partial.write_text(text, "utf-8")
    flush(partial)
    partial.rename(folder / NAME)
    flush(folder)
    for path in there:
        path.unlink(missing_ok=True)
    flush(folder)
    return sum(there.values())


def check(folder: Path, manifest: Manifest, *, contents: bool = True) -> None:
    """Raise AdapterDamaged where a folder does not hold exactly the files of its manifest.

    contents: hash them as well; without, their sizes alone are looked at.
    """
    if manifest.version != folder.name:
        raise AdapterDamaged(f"{folder / NAME} is that of {manifest.version}", hint=HINT)
    if manifest.pruned is not None:
        gone = f"the files of {manifest.version} were removed by `adapters prune` on {manifest.pruned:%Y-%m-%d}"
        raise AdapterDamaged(gone, hint=HINT)
    try:
        there = {path.name for path in folder.iterdir() if path.name != NAME}
        for name in sorted(there - set(manifest.files)):
            raise AdapterDamaged(f"{folder / name} does not belong there", hint=f"remove it, or: {HINT}")
        for name, facts in manifest.files.items():
            path = folder / name
            if name not in there:
                raise AdapterDamaged(f"{path} is gone", hint=HINT)
            whole = not path.is_symlink() and path.is_file() and path.stat().st_size == facts.bytes
            if not whole or (contents and _facts(path) != facts):
                raise AdapterDamaged(f"{path} is damaged: it is not the file that was written", hint=HINT)
    except OSError as error:
        raise AdapterDamaged(f"{error.filename or folder} cannot be read: {error.strerror}", hint=HINT) from error


def flush(path: Path) -> None:
    """Make what was written to a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _facts(path: Path) -> FileFacts:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileFacts(digest.hexdigest(), size)


def _parsed(document: Any) -> Manifest:
    """A manifest from its JSON; ValueError, TypeError or KeyError where a value is not what was written."""
    if document["format"] != _FORMAT:
        raise ValueError(f"the form {document['format']!r} is not known")
    base, parent, run = document["base"], document["parent"], document["learner_run"]
    pruned = document.get("pruned")
    names = ("model_hash", "tokenizer_hash", "template_hash")
    files = {_matched(_FILE, name): _file_facts(facts) for name, facts in document["files"].items()}
    if CONFIG not in files or NAME in files:
        raise ValueError("the files are not those of an adapter")
    return Manifest(
        version=_matched(_VERSION, document["version"]),
        base=BaseModel(_text(base["name"]), *(None if base[n] is None else _text(base[n]) for n in names)),
        algo=_text(document["algo"]),
        created=_moment(document["created"]),
        files=files,
        parent=None if parent is None else _matched(_VERSION, parent),
        learner_run=None if run is None else _count(run),
        data=dict(document["data"]),
        metrics=dict(document["metrics"]),
        pruned=None if pruned is None else _moment(pruned),
    )


def _file_facts(found: Any) -> FileFacts:
    return FileFacts(_matched(_SHA256, found["sha256"]), _count(found["bytes"]))


def _matched(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(_text(value)):
        raise ValueError("a name or a hash is none")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return value


def _moment(value: Any) -> datetime:
    found = datetime.fromisoformat(_text(value))
    if found.tzinfo is None:
        raise ValueError("a time without a time zone")
    return found


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError("a number was expected")
    return value
