"""The registry of versions of the local policy: files that are whole before they are listed, and checked before use.

A version is written into a staging folder (``.staging-<random>``), flushed, renamed, and only then listed in the store.
Killed before the rename it leaves a staging folder, which is swept away; killed after it, a whole version that is not
listed yet, which is then listed as a candidate: it may have taken hours to learn.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, Field, StrictStr, StringConstraints, TypeAdapter

from autoresearchd.domain.errors import AdapterDamaged, AutoresearchdError, EnvironmentFailure, UsageError
from autoresearchd.domain.policy_versions import BaseModel, PolicyVersion, VersionStatus
from autoresearchd.loop.context import SystemClock
from autoresearchd.models.model_files import described
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.store.backups import sync
from autoresearchd.store.journal.version_records import VersionRecords
from autoresearchd.store.schema import codec, health
from autoresearchd.workspace import layout

NAME = "manifest.json"
CONFIG = "adapter_config.json"
"""What peft reads first; a folder without it is no adapter."""

_FORMAT = 1
_VERSION = r"^v([1-9][0-9]{0,8})-[0-9a-f]{8}$"
_FILE = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
HINT = "`autoresearchd adapters rollback` goes back to the version before it; `autoresearchd learn` makes a new one"
"""How to get away from a version whose files are damaged."""
_LOCK = ".lock"
_STAGING = ".staging-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
FOUND = "it was learned, but its learner ended before it was judged"
"""Why a version is a candidate that nobody listed."""
PRUNED = "its files were removed by `adapters prune`"
"""Why a rollback passes a version over."""


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


@dataclass(frozen=True, slots=True)
class Pruned:
    """A version whose files are removed, and how many bytes they were."""

    version: PolicyVersion
    bytes: int


class AdapterShelf:
    """The versions of a repository, whose folders are in ``folder``; they are listed in ``store``."""

    def __init__(self, folder: Path, store: VersionRecords, now: Callable[[], datetime]) -> None:
        self._folder, self._store, self._now = folder, store, now

    @classmethod
    def of(cls, root: Path, store: VersionRecords) -> Self:
        """The versions of the repository whose checkout is at ``root``."""
        return cls(layout.adapters_dir(root), store, SystemClock().now)

    # -- making
    def add(self, save: Callable[[Path], None], made: Made) -> PolicyVersion:
        """Keep a version, as a candidate. save: writes the adapter into an empty folder, as peft does.

        The same files for the same model, kept once more after the learner was killed, are the version that is there.
        """
        with self._explained(), self._locked():
            staging = self._folder / f"{_STAGING}{secrets.token_hex(8)}"
            staging.mkdir()
            try:
                save(staging)
                files = measure_files(staging)
                digest = digest_of(files)
                self._list_forgotten()
                known = self._store.versions()
                for each in known:
                    if (each.digest, each.model_hash, each.parent) == (digest, made.base.model_hash, made.parent):
                        return each
                # No number is given twice, whether the version of that number is listed or only lies there.
                names = [*(each.version for each in known), *(path.name for path in self._folder.iterdir())]
                number = 1 + max((number_of(name) or 0 for name in names), default=0)
                written = Manifest(
                    **{each.name: getattr(made, each.name) for each in fields(made)},
                    version=f"v{number}-{digest[:8]}",
                    created=self._now(),
                    files=files,
                )
                write_manifest(staging, written)
                staging.rename(self._folder / written.version)
                sync(self._folder)
                return self._list(written)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def _list(self, written: Manifest, reason: str = "") -> PolicyVersion:
        return self._store.add_version(
            written.version,
            digest_of(written.files),
            written.base,
            written.created,
            parent=written.parent,
            learner_run_id=written.learner_run,
            metrics=written.metrics,
            reason=reason,
        )

    # -- deciding
    def promote(self, version: str, reason: str = "", metrics: Mapping[str, Any] | None = None) -> PolicyVersion:
        """Put a version to use from the next experiment on; AdapterDamaged where its files are not whole."""
        found = self.find(version)
        self.folder_of(found)
        return self._store.promote_version(found.version, self._now(), reason=reason, metrics=metrics)

    def refuse(self, version: str, reason: str = "", metrics: Mapping[str, Any] | None = None) -> PolicyVersion:
        """Keep a candidate and do not use it."""
        return self._store.refuse_version(self.find(version).version, reason=reason, metrics=metrics)

    def roll_back(self, version: str, reason: str = "") -> PolicyVersion | None:
        """Go back from the version in use to the one before it whose files are there; None: to the plain model."""
        restored = self._store.roll_back_version(self.find(version).version, reason=reason)
        while restored is not None and self._is_pruned(restored):
            restored = self._store.roll_back_version(restored.version, reason=PRUNED)
        return restored

    # -- using
    def find(self, name: str) -> PolicyVersion:
        """A version by its name or its number (``v3``); UsageError where there is none."""
        known = self._store.versions()
        for version in known:
            number = number_of(version.version)
            if name.strip().lower() in (version.version, f"v{number}", str(number)):
                return version
        names = ", ".join(version.version for version in known[-10:])
        hint = f"known here: {names}" if known else "`autoresearchd learn` makes one"
        raise UsageError(f"there is no version {name[:60]!r}", hint=hint)

    def folder_of(self, version: PolicyVersion) -> Path:
        """The folder of a version, all of whose files were found whole; AdapterDamaged names one that was not."""
        place = self._folder / version.folder
        if number_of(version.folder) is None:
            raise AdapterDamaged(f"the database names no folder of ours for {version.version}", hint=health.HINT)
        found = read_manifest(place)
        if digest_of(found.files) != version.digest:
            what = f"{place / NAME} is not the one that was written with {version.version}"
            raise AdapterDamaged(what, hint=HINT)
        check_files(place, found)
        return place

    def manifest_of(self, version: PolicyVersion) -> Manifest:
        """What is known of a version beside the database."""
        return read_manifest(self._folder / version.folder)

    def ancestors(self, version: PolicyVersion) -> list[PolicyVersion]:
        """All that a version comes from, whatever became of them, nearest first."""
        known = {each.version: each for each in self._store.versions() if each.version != version.version}
        found = [version]
        while parent := known.pop(found[-1].parent or "", None):  # taken out, so that no damage makes a circle
            found.append(parent)
        return found[1:]

    def lineage(self, version: PolicyVersion) -> list[PolicyVersion]:
        """The versions in whose place this one came, nearest first: its ancestors that have been in use."""
        used = (VersionStatus.PROMOTED, VersionStatus.RETIRED)
        return [each for each in self.ancestors(version) if each.status in used]

    def in_use(self) -> str:
        """Which versions are in use for which models, on one line; empty: none is."""
        promoted = self._store.promoted_versions()
        return ", ".join(f"{each.version} for {self.model_of(each)}" for each in promoted)

    def model_of(self, version: PolicyVersion) -> str:
        """The model that a version was learned on, for people; without a name where that cannot be read any more."""
        name = ""
        with contextlib.suppress(AdapterDamaged):
            name = self.manifest_of(version).base.name
        return described(BaseModel(name, version.model_hash))

    # -- freeing room
    def prune(self, keep: int, needed: Collection[str] = (), *, dry_run: bool = False) -> Sequence[Pruned]:
        """Remove the files of versions that nothing needs any more; their rows and manifests stay.

        Kept are those in use, those not judged, the last of those that were in use (``keep`` for each base model), of
        each of these the parent that would answer in its place if it were damaged, and those ``needed`` otherwise.
        """
        if not self._folder.is_dir():
            return []
        with self._explained(), self._locked():
            kept = self._kept(keep, needed)
            found = []
            for version in self._store.versions():
                if version.version in kept or number_of(version.folder) is None:
                    continue
                place = self._folder / version.folder
                try:
                    known = read_manifest(place)
                    size = sum(path.lstat().st_size for path in place.iterdir() if path.name != NAME)
                except AdapterDamaged:  # whoever looks at it is told; what lies there is not ours to remove
                    continue
                if not size or any(path.is_dir() and not path.is_symlink() for path in place.iterdir()):
                    continue
                found.append(Pruned(version, size if dry_run else remove_files(place, known, self._now())))
            return found

    def _kept(self, keep: int, needed: Collection[str]) -> set[str]:
        """Names of the versions whose files stay."""
        versions = list(self._store.versions())
        kept = {v.version for v in versions if v.status in (VersionStatus.PROMOTED, VersionStatus.CANDIDATE)} | {
            *needed
        }
        retired = [v for v in versions if v.status is VersionStatus.RETIRED]
        retired.sort(key=lambda v: (v.promoted_at is not None, v.promoted_at), reverse=True)
        for base in {v.model_hash for v in retired}:
            kept |= {v.version for v in [v for v in retired if v.model_hash == base][:keep]}
        parents = [next(iter(self.lineage(v)), None) for v in versions if v.version in kept]
        return kept | {parent.version for parent in parents if parent is not None}

    def _is_pruned(self, version: PolicyVersion) -> bool:
        try:
            return self.manifest_of(version).pruned is not None
        except AdapterDamaged:  # it is damaged, which is told when it is to answer
            return False

    # -- fixing
    def sweep(self) -> tuple[str, ...]:
        """Remove what killed learners left, and list what they had finished; nothing while a version is being made."""
        if not self._folder.is_dir():
            return ()
        with self._explained(), contextlib.suppress(BlockingIOError), self._locked(wait=False):
            for path in self._folder.glob(f"{_STAGING}*"):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:  # no learner made it; what a link leads to stays
                    path.unlink()
            return self._list_forgotten()
        return ()

    def _list_forgotten(self) -> tuple[str, ...]:
        """List the whole versions that lie there without being listed, oldest first; what is damaged stays unlisted."""
        known = {version.version for version in self._store.versions()}
        numbers = {path.name: number_of(path.name) for path in self._folder.iterdir()}
        listed = []
        for _, name in sorted((n, name) for name, n in numbers.items() if n is not None and name not in known):
            with contextlib.suppress(AdapterDamaged):
                found = read_manifest(self._folder / name)
                check_files(self._folder / name, found)
                self._list(found, FOUND)
                listed.append(name)
        return tuple(listed)

    # -- the folder
    @contextlib.contextmanager
    def _locked(self, *, wait: bool = True) -> Iterator[None]:
        """Nobody else makes or sweeps versions; the lock dies with its process."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with hold(self._folder / _LOCK, patience=math.inf if wait else 0):
            yield

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what a full disk means, whichever library has met it; what else goes wrong is raised as it is."""
        try:
            yield
        except AutoresearchdError:
            raise
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in _FULL
            if full or any(f"(os error {number})" in str(error) for number in _FULL):  # safetensors' words
                raise EnvironmentFailure(
                    f"the disk of {self._folder} is full: the adapter was not kept",
                    hint="free some disk space; then learn again, which goes on from the last checkpoint",
                ) from error
            if not isinstance(error, OSError):
                raise
            raise EnvironmentFailure(
                f"the adapter cannot be kept in {self._folder}: {error.strerror or error}",
                hint="make the folder writable for this user",
            ) from error


# ---------------------------------------------------------------------- manifests
def number_of(version: str) -> int | None:
    """The number of a version by its name, None where it is not a name of ours."""
    found = re.fullmatch(_VERSION, version)
    return int(found[1]) if found else None


def digest_of(files: Mapping[str, FileFacts]) -> str:
    """One hash over the names and contents of files."""
    text = "".join(f"{name}\0{files[name].sha256}\n" for name in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()


def measure_files(folder: Path) -> dict[str, FileFacts]:
    """The files of a folder, each flushed and hashed; AdapterDamaged where they are not what a learner writes."""
    found: dict[str, FileFacts] = {}
    for path in sorted(folder.iterdir()):
        if path.name == NAME or path.is_symlink() or not path.is_file() or not re.fullmatch(_FILE, path.name):
            raise AdapterDamaged(f"{path} is not a file that an adapter may hold")
        sync(path)
        found[path.name] = _facts(path)
    if CONFIG not in found:
        raise AdapterDamaged(f"{folder} holds no LoRA adapter: there is no {CONFIG}")
    return found


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a manifest into a folder, whole or not at all, and flush both to the disk."""
    pruned = None if manifest.pruned is None else manifest.pruned.isoformat()
    document = {"format": _FORMAT, **asdict(manifest), "created": manifest.created.isoformat(), "pruned": pruned}
    partial = folder / f"{NAME}.part"
    partial.write_text(json.dumps(codec.jsonable(document), indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")
    sync(partial)
    partial.rename(folder / NAME)
    sync(folder)
    read_manifest(folder)  # what cannot be read back is not kept


def read_manifest(folder: Path) -> Manifest:
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


def remove_files(folder: Path, manifest: Manifest, at: datetime) -> int:
    """Remove the files of a version; how many bytes that frees.

    The manifest, which says so, is written first: killed in between, the next call removes what is left.
    """
    there = {path: path.lstat().st_size for path in folder.iterdir() if path.name != NAME}
    write_manifest(folder, replace(manifest, pruned=manifest.pruned or at))
    for path in there:
        path.unlink(missing_ok=True)
    sync(folder)
    return sum(there.values())


def check_files(folder: Path, manifest: Manifest, *, contents: bool = True) -> None:
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


def _facts(path: Path) -> FileFacts:
    with path.open("rb") as stream:
        return FileFacts(hashlib.file_digest(stream, "sha256").hexdigest(), stream.tell())
