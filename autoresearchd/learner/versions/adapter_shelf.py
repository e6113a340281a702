"""The registry of versions of the local policy: files that are whole before they are listed, and checked before use.

A version is written into a staging folder (``.staging-<random>``), flushed, renamed, and only then listed in the store.
Killed before the rename it leaves a staging folder, which is swept away; killed after it, a whole version that is not
listed yet, which is then listed as a candidate: it may have taken hours to learn.
"""

from __future__ import annotations

import contextlib
import errno
import math
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import AdapterDamaged, AutoresearchdError, EnvironmentFailure, UsageError
from autoresearchd.domain.policy_versions import BaseModel, PolicyVersion, VersionStatus
from autoresearchd.learner.versions import adapter_manifest
from autoresearchd.learner.versions.adapter_manifest import Made, Manifest
from autoresearchd.loop.context import SystemClock
from autoresearchd.models.model_files import described
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.store.journal.version_records import VersionRecords
from autoresearchd.store.schema import health
from autoresearchd.workspace import layout

_LOCK = ".lock"
_STAGING = ".staging-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
FOUND = "it was learned, but its learner ended before it was judged"
"""Why a version is a candidate that nobody listed."""
PRUNED = "its files were removed by `adapters prune`"
"""Why a rollback passes a version over."""


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
    def of(cls, root: Path, store: VersionRecords) -> AdapterShelf:
        """The versions of the repository whose checkout is at ``root``."""
        return cls(layout.adapters_dir(root), store, SystemClock().now)

    # -- making
    def add(self, save: Callable[[Path], None], made: Made) -> PolicyVersion:
        """Keep a version, as a candidate. save: writes the adapter into an empty folder, as peft does.

        The same files for the same model, kept once more by a learner that went on after it was killed, are the version
        that is there already.
        """
        with self._explained(), self._locked():
            staging = self._folder / f"{_STAGING}{secrets.token_hex(8)}"
            staging.mkdir()
            try:
                save(staging)
                files = adapter_manifest.measure(staging)
                digest = adapter_manifest.digest_of(files)
                self._list_forgotten()
                known = self._store.versions()
                for each in known:
                    if (each.digest, each.model_hash, each.parent) == (digest, made.base.model_hash, made.parent):
                        return each
                # No number is given twice, whether the version of that number is listed or only lies there.
                names = [*(each.version for each in known), *(path.name for path in self._folder.iterdir())]
                number = 1 + max((adapter_manifest.number_of(name) or 0 for name in names), default=0)
                written = Manifest(
                    **{each.name: getattr(made, each.name) for each in fields(made)},
                    version=f"v{number}-{digest[:8]}",
                    created=self._now(),
                    files=files,
                )
                adapter_manifest.write(staging, written)
                staging.rename(self._folder / written.version)
                adapter_manifest.flush(self._folder)
                return self._list(written)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def _list(self, written: Manifest, reason: str = "") -> PolicyVersion:
        return self._store.add_version(
            written.version,
            adapter_manifest.digest_of(written.files),
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
            number = adapter_manifest.number_of(version.version)
            if name.strip().lower() in (version.version, f"v{number}", str(number)):
                return version
        names = ", ".join(version.version for version in known[-10:])
        hint = f"known here: {names}" if known else "`autoresearchd learn` makes one"
        raise UsageError(f"there is no version {name[:60]!r}", hint=hint)

    def folder_of(self, version: PolicyVersion) -> Path:
        """The folder of a version, all of whose files were found whole; AdapterDamaged names one that was not."""
        place = self._folder / version.folder
        if adapter_manifest.number_of(version.folder) is None:
            raise AdapterDamaged(f"the database names no folder of ours for {version.version}", hint=health.HINT)
        found = adapter_manifest.read(place)
        if adapter_manifest.digest_of(found.files) != version.digest:
            what = f"{place / adapter_manifest.NAME} is not the one that was written with {version.version}"
            raise AdapterDamaged(what, hint=adapter_manifest.HINT)
        adapter_manifest.check(place, found)
        return place

    def manifest_of(self, version: PolicyVersion) -> Manifest:
        """What is known of a version beside the database."""
        return adapter_manifest.read(self._folder / version.folder)

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
                if version.version in kept or adapter_manifest.number_of(version.folder) is None:
                    continue
                place = self._folder / version.folder
                try:
                    known = adapter_manifest.read(place)
                    size = sum(path.lstat().st_size for path in place.iterdir() if path.name != adapter_manifest.NAME)
                except AdapterDamaged:  # whoever looks at it is told; what lies there is not ours to remove
                    continue
                if not size or any(path.is_dir() and not path.is_symlink() for path in place.iterdir()):
                    continue
                found.append(Pruned(version, size if dry_run else adapter_manifest.prune(place, known, self._now())))
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
        numbers = {path.name: adapter_manifest.number_of(path.name) for path in self._folder.iterdir()}
        listed = []
        for _, name in sorted((n, name) for name, n in numbers.items() if n is not None and name not in known):
            with contextlib.suppress(AdapterDamaged):
                found = adapter_manifest.read(self._folder / name)
                adapter_manifest.check(self._folder / name, found)
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
