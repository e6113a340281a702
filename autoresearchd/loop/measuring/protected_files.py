"""Seals of folders for `autoresearchd.evaluator.rules.integrity`: what the protected files are right now."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import Measurement, RunResult
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.measure.measurement import EVALUATION
from autoresearchd.evaluator.rules.legality import CODE_SUFFIXES, Seal, broken, evaluator_version, tampering


class ProtectedFiles:
    """What the metric of a run rests on: the pristine copy (as it is now), and the protected files in a worktree.

    Contents are read once; later a file is read again only where its stamp has changed. restore: writes the pristine
    copy anew where it was altered.
    """

    def __init__(self, task: Task, pristine: Path, restore: Callable[[], object]) -> None:
        self._task, self._pristine, self._restore = task, pristine, restore
        evaluation = task.evaluation
        self._data = frozenset((*task.data, *(evaluation.private if evaluation else ())))
        self._known: dict[Path, tuple[tuple[int, ...], str]] = {}
        self._reference = self.read_pristine()
        self.version = evaluator_version(task, self._reference)

    def seal(self, workspace: Path) -> Seals:
        """A run is about to start. Raises EnvironmentFailure when the pristine copy is not what it was."""
        sealed = self.read_pristine()
        if self._altered(sealed):
            self._restore()
            sealed = self.read_pristine()
            if altered := self._altered(sealed):
                raise EnvironmentFailure(
                    f"the pristine copy in {self._pristine} has been altered: {'; '.join(altered[:3])}",
                    hint="stop the session and resume it: the copy is then made anew",
                )
        return Seals(self, workspace, sealed, self.read(workspace))

    def with_version(self, result: RunResult) -> RunResult:
        """The facts of a run with the version of the evaluator that measured it."""
        stages = [
            replace(s, detail=f"evaluator {self.version}") if s.name == EVALUATION and not s.detail else s
            for s in result.stages
        ]
        return replace(result, stages=tuple(stages))

    def _altered(self, sealed: Seal) -> list[str]:
        return broken(replace(self._reference, stamps={}), sealed)

    def read_pristine(self) -> Seal:
        """The pristine copy as it is now, with the names of all that could run in it."""
        return self.read(self._pristine, code=True)

    def read(self, folder: Path, *, code: bool = False) -> Seal:
        digests: dict[str, str] = {}
        stamps: dict[str, tuple[int, ...]] = {}
        for path in self._task.protected:
            for place in _files(folder / path):
                name = place.relative_to(folder).as_posix()
                if name in self._data:
                    continue
                found = place.lstat()
                stamps[name] = (found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                if self._known.get(place, ((), ""))[0] != stamps[name]:
                    self._known[place] = stamps[name], _digest(place, found.st_mode)
                digests[name] = self._known[place][1]
        return Seal(digests, stamps, frozenset(self._code(folder)) if code else frozenset())

    def _code(self, folder: Path) -> Iterator[str]:
        """Files that could run; what the executor links in as data is not among them."""
        data = {folder / name for name in self._data}
        for base, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if Path(base, name) not in data]
            for name in names:
                place = Path(base, name)
                if name.endswith(CODE_SUFFIXES) and place not in data:
                    yield place.relative_to(folder).as_posix()


@dataclass(frozen=True, slots=True)
class Seals:
    """The protected files as they were when a run began."""

    files: ProtectedFiles
    workspace: Path
    pristine: Seal
    edited: Seal

    def check(self, measurement: Measurement) -> Measurement:
        """What a run gave, unless something was tampered with; the same whenever it is asked again."""
        differs = {"the pristine copy": broken(self.pristine, self.files.read_pristine())}
        if self.workspace.is_dir():
            differs["the worktree"] = broken(self.edited, self.files.read(self.workspace))
        return tampering(measurement, differs)


def _files(place: Path) -> Iterator[Path]:
    """A file, or all files of a folder; compiled Python beside its source is not looked at."""
    if place.is_dir() and not place.is_symlink():
        for base, folders, names in os.walk(place):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield from (Path(base, name) for name in names)
    elif os.path.lexists(place):
        yield place


def _digest(place: Path, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return f"link:{place.readlink()}"
    if not stat.S_ISREG(mode):
        return "no file"
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
