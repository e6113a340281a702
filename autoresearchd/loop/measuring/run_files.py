"""What lies on disk around a run: logs to read, outputs to throw away, and seals of what its metric rests on.

A seal is taken before a run and compared after it. It holds a digest of the content of each protected file and, while
one daemon watches, the stamp that the kernel keeps of it (inode, size, times): a file that was altered and put
back has the old content and a new stamp, for nobody but the kernel sets the time of a status change (inode(7), ctime).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import Measurement, RunResult
from autoresearchd.domain.labels import RULES, Label
from autoresearchd.domain.quantities import some_of
from autoresearchd.domain.redaction import Redactor, StreamRedactor
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.measure.measurement import EVALUATION
from autoresearchd.evaluator.rules.legality import digest_of
from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.workspace.files import read_tail

LOG_BYTES = 16 * 2**20
RESULT_BYTES = 2**20
PIECE_CHARACTERS = 2**18
_SECRET_BYTES = 32 * 1024
"""Of a log, before what is shown of it: a secret of many lines is known by the first."""
CODE_SUFFIXES = (".py", ".pyc", ".pyd", ".so", ".pth", ".sh")
"""What could run in the place of something else when it appears beside the evaluation."""
_NAMED = 5

_AS_BYTES: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
"""Text that is written back byte for byte."""


def open_plain(path: Path) -> BinaryIO:
    """A file to read. OSError where a link or something else lies there; a pipe is not waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(handle, "rb")


def read_logs(result: RunResult) -> dict[str, str]:
    """Text of each stage's log, the rotated part before the current one."""
    logs = {}
    for stage in result.stages:
        path = Path(stage.log_path)
        logs[stage.name] = read_tail(path.with_name(path.name + ".1"), LOG_BYTES // 2) + read_tail(path, LOG_BYTES)
    return logs


def clean_logs(run_dir: Path, redactor: Redactor) -> None:
    """Take secrets out of the logs of a run that has ended. EnvironmentFailure when a clean log cannot be written."""
    for log in sorted({path.with_name(path.name.removesuffix(".1")) for path in run_dir.glob("*.log*")}):
        # It is rotated wherever it is full, in the middle of a secret too: both files are one text.
        parts = [part for part in (log.with_name(log.name + ".1"), log) if part.is_file() and not part.is_symlink()]
        stream = StreamRedactor(redactor)
        deque(_through(stream, parts), maxlen=0)
        if stream.hidden:
            clean = {part: part.with_name(f".{part.name}.clean") for part in parts}
            try:
                with ExitStack() as stack:
                    files = {part: stack.enter_context(clean[part].open("w", **_AS_BYTES)) for part in parts}
                    for part, text in _through(StreamRedactor(redactor), parts):
                        files[part].write(text)
                for part in parts:
                    clean[part].replace(part)
            except OSError as error:
                for target in clean.values():
                    target.unlink(missing_ok=True)
                raise EnvironmentFailure(
                    f"the log {log} holds secrets and cannot be cleaned: {error.strerror}", hint="free some space"
                ) from error


def _through(stream: StreamRedactor, parts: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """A log in pieces, redacted, and the file of each; the end of a file that is not certain yet goes to the next."""
    for part in parts:
        with part.open(**_AS_BYTES) as log:
            while piece := log.read(PIECE_CHARACTERS):
                yield part, stream.feed(piece)
    if parts:
        yield parts[-1], stream.close()


def read_end(path: Path, redactor: Redactor, most: int) -> str:
    """The last ``most`` characters of a log, also of a run that goes on, without secrets. OSError: as `open_plain`."""
    with open_plain(path) as file:
        begin = max(0, file.seek(0, 2) - most - _SECRET_BYTES)
        file.seek(begin)
        text = file.read(most + _SECRET_BYTES).decode("utf-8", "replace")
    if begin:  # half a line may be half a secret, which nothing knows as one
        text = re.sub(r"\A[^\r\n]*", "", text)
    return redactor.text(text)[-most:].replace("\r", "\n")


def read_result_file(task: Task, run_dir: Path) -> str | None:
    """Text of the result file that the task names, None when it names none or the job wrote none."""
    if task.scoring.result_file is None:
        return None
    output = (run_dir / "output").resolve()
    path = output / task.scoring.result_file
    # The job wrote this folder: a link in it could point at anything that the daemon can read.
    if path.resolve() != path or not path.is_file():
        return None
    return read_tail(path, RESULT_BYTES)


def read_sources(task: Task, pristine: Path) -> dict[str, str]:
    """Text of the protected Python files, by path; those in a protected folder too."""
    found = {}
    for path in task.protected:
        place = pristine / path
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if file.suffix == ".py" and file.is_file():
                found[file.relative_to(pristine).as_posix()] = read_tail(file, RESULT_BYTES)
    return found


def discard_outputs(experiment_dir: Path, *, keep: int | None) -> None:
    """Remove the outputs (checkpoints) of an experiment's runs, but for those of the run ``keep``."""
    if not experiment_dir.is_dir():
        return
    for run_dir in experiment_dir.iterdir():
        if run_dir.name != str(keep):
            remove_tree(str(run_dir / "output"))


# ---------------------------------------------------------------------- what the metric rests on
@dataclass(frozen=True, slots=True)
class Seal:
    """The state of a folder. digests: of the protected files, by path; stamps: theirs; code: what else could run."""

    digests: Mapping[str, str]
    stamps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    code: frozenset[str] = frozenset()


def broken(before: Seal, after: Seal) -> list[str]:
    """What differs between two seals, in words; stamps are compared where both have them (not across restarts)."""
    found: dict[str, str] = {}
    for path in {*before.digests, *after.digests}:
        old, new = before.digests.get(path), after.digests.get(path)
        if old != new:
            found[path] = "appeared" if old is None else "is gone" if new is None else "was changed"
        elif path in before.stamps and path in after.stamps and before.stamps[path] != after.stamps[path]:
            found[path] = "was changed and put back"
    found.update((path, "appeared") for path in after.code - before.code if path not in found)
    return [f"{path} {what}" for path, what in sorted(found.items())]


def evaluator_version(task: Task, seal: Seal) -> str:
    """Names the evaluator: 16 hexadecimal digits of a SHA-256 over the protected files and its commands."""
    evaluation = task.evaluation
    commands = (evaluation.command, evaluation.model_command or "") if evaluation else ()
    return digest_of((*commands, *(f"{path}={seal.digests[path]}" for path in sorted(seal.digests))))[:16]


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
        reference = replace(self._reference, stamps={})
        if broken(reference, self.read_pristine()):
            self._restore()
        sealed = self.read_pristine()
        if altered := broken(reference, sealed):
            what = f"the pristine copy in {self._pristine} has been altered: {'; '.join(altered[:3])}"
            raise EnvironmentFailure(what, hint="stop the session and resume it: the copy is then made anew")
        return Seals(self, workspace, sealed, self.read(workspace))

    def with_version(self, result: RunResult) -> RunResult:
        """The facts of a run with the version of the evaluator that measured it."""
        told = f"evaluator {self.version}"
        stages = (replace(s, detail=told) if s.name == EVALUATION and not s.detail else s for s in result.stages)
        return replace(result, stages=tuple(stages))

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
                facts = place.lstat()
                stamps[name] = (facts.st_ino, facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
                if self._known.get(place, ((), ""))[0] != stamps[name]:
                    self._known[place] = stamps[name], _digest(place, facts.st_mode)
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
        found = [f"{what} in the pristine copy" for what in broken(self.pristine, self.files.read_pristine())]
        if self.workspace.is_dir():
            found += [f"{what} in the worktree" for what in broken(self.edited, self.files.read(self.workspace))]
        if not found or RULES[measurement.label] is None:
            return measurement
        detail = f"what the metric rests on did not stay as it was: {some_of(found, _NAMED, '; ')}"
        return Measurement(Label.METRIC_TAMPERING, detail=detail, curve=measurement.curve)


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
