"""The manifest of a version of the local policy: what its folder holds, by hash, and where it comes from.

A manifest is written last, into a folder whose files are on disk. It is read as what may have been damaged since: every
value is checked before it is believed, and every file before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, StrictStr, StringConstraints, TypeAdapter

from autoresearchd.domain.errors import AdapterDamaged
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.store.schema import codec

NAME = "manifest.json"
CONFIG = "adapter_config.json"
"""What peft reads first; a folder without it is no adapter."""

_FORMAT = 1
_VERSION = r"^v([1-9][0-9]{0,8})-[0-9a-f]{8}$"
_FILE = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
HINT = "`autoresearchd adapters rollback` goes back to the version before it; `autoresearchd learn` makes a new one"
"""How to get away from a version whose files are damaged."""

Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Version = Annotated[str, StringConstraints(pattern=_VERSION)]
FileName = Annotated[str, StringConstraints(pattern=_FILE)]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file is known by."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    bytes: Count


@dataclass(frozen=True, slots=True)
class Made:
    """Where a version comes from. parent: the version that training began with. data: what it learned from."""

    base: BaseModel
    algo: StrictStr
    parent: Version | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    learner_run: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Made):
    """What is known of a version beside the database.

    pruned: when its files were removed to free their room, None: they are there. The rest is known beyond that.
    """

    version: Version
    created: AwareDatetime
    files: Mapping[FileName, FileFacts]
    pruned: AwareDatetime | None = None


_MANIFEST = TypeAdapter(Manifest)


def number_of(version: str) -> int | None:
    """The number of a version by its name, None where it is not a name of ours."""
    found = re.fullmatch(_VERSION, version)
    return int(found[1]) if found else None


def digest_of(files: Mapping[str, FileFacts]) -> str:
    """One hash over the names and contents of files."""
    text = "".join(f"{name}\0{files[name].sha256}\n" for name in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()


def measure(folder: Path) -> dict[str, FileFacts]:
    """The files of a folder, each flushed and hashed; AdapterDamaged where they are not what a learner writes."""
    found: dict[str, FileFacts] = {}
    for path in sorted(folder.iterdir()):
        if path.name == NAME or path.is_symlink() or not path.is_file() or not re.fullmatch(_FILE, path.name):
            raise AdapterDamaged(f"{path} is not a file that an adapter may hold")
        flush(path)
        found[path.name] = _facts(path)
    if CONFIG not in found:
        raise AdapterDamaged(f"{folder} holds no LoRA adapter: there is no {CONFIG}")
    return found


def write(folder: Path, manifest: Manifest) -> None:
    """Put a manifest into a folder, whole or not at all, and flush both to the disk."""
    pruned = None if manifest.pruned is None else manifest.pruned.isoformat()
    document = {"format": _FORMAT, **asdict(manifest), "created": manifest.created.isoformat(), "pruned": pruned}
    partial = folder / f"{NAME}.part"
    partial.write_text(json.dumps(codec.jsonable(document), indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")
    flush(partial)
    partial.rename(folder / NAME)
    flush(folder)
    read(folder)  # what cannot be read back is not kept


def read(folder: Path) -> Manifest:
    """The manifest of a folder, believed no further than it can be checked; AdapterDamaged names what is wrong."""
    path = folder / NAME
    if folder.is_symlink() or path.is_symlink():  # what it leads to is not ours: it may change, and be pruned
        raise AdapterDamaged(f"{path} is a link, or in one", hint=HINT)
    if not path.is_file():  # nor a pipe, which nobody writes into
        raise AdapterDamaged(f"{path} is gone", hint=HINT)
    try:
        document = json.loads(path.read_bytes())
        if document.pop("format") != _FORMAT:
            raise ValueError("its form is not known")
        found = _MANIFEST.validate_python(document)
        if CONFIG not in found.files or NAME in found.files:
            raise ValueError("the files are not those of an adapter")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise AdapterDamaged(f"{path} is damaged: {type(error).__name__}", hint=HINT) from error
    return found


def prune(folder: Path, manifest: Manifest, at: datetime) -> int:
    """Remove the files of a version; how many bytes that frees.

    The manifest, which says so, is written first: killed in between, the next call removes what is left.
    """
    there = {path: path.lstat().st_size for path in folder.iterdir() if path.name != NAME}
    write(folder, replace(manifest, pruned=manifest.pruned or at))
    for path in there:
        path.unlink(missing_ok=True)
    flush(folder)
    return sum(there.values())


def check(folder: Path, manifest: Manifest, *, contents: bool = True) -> None:
    """Raise AdapterDamaged where a folder does not hold exactly the files of its manifest; contents: hash them, too."""
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
    with path.open("rb") as stream:
        return FileFacts(hashlib.file_digest(stream, "sha256").hexdigest(), stream.tell())
