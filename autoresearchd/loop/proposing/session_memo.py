"""The living ``autoresearch.md`` of a session on disk: read for each prompt, kept up by the daemon, the user's to edit.

The daemon writes between its own marks only, at once after it has read the file anew; what the user wrote stays.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.task import Task
from autoresearchd.policy.prompt import memo_text

MOST_BYTES = 256 * 1024
LEVELS = 3
"""Folders above the file that are the daemon's own: ``.autoresearchd/sessions/<tag>``."""


class Memo:
    """The file, or none (``path`` None). Failures to read or to write it are nothing that an experiment should mind."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.failed = ""

    @property
    def path(self) -> Path | None:
        """Where it lies."""
        return self._path

    def read(self) -> str:
        """Its text, empty where there is none; bounded."""
        if self._path is None:
            return ""
        try:
            return self._bytes(MOST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            self.failed = "" if isinstance(error, FileNotFoundError) else f"{self._path}: {error.strerror}"
            return ""

    def keep_up(
        self,
        task: Task,
        recent: Sequence[Experiment],
        top: Sequence[Experiment],
        failures: Mapping[str, int],
        sigma: float | None = None,
    ) -> None:
        """Write the daemon's own section anew; a file that is not there is begun."""
        if self._path is None:
            return
        try:
            try:
                raw = self._bytes(MOST_BYTES + 1)
            except FileNotFoundError:
                raw = b""
            if len(raw) > MOST_BYTES:
                self.failed = f"{self._path} is larger than {MOST_BYTES // 1024} KiB and is not kept up any more"
                return
            before = raw.decode("utf-8")
            text = memo_text.learnings(recent, top, failures, sigma=sigma)
            after = memo_text.update(before or memo_text.render_memo(task), text)
            if after == before:
                return
            self._write(after)
            self.failed = ""
        except UnicodeDecodeError as error:  # written back it would lose bytes that are the user's
            self.failed = f"{self._path} is not UTF-8 (byte {error.start})"
        except OSError as error:
            self.failed = f"{self._path}: {error.strerror}"

    def _bytes(self, most: int) -> bytes:
        """The beginning of the file: a plain one, reached without links, for a repository may bring others along."""
        assert self._path is not None
        self._refuse_links(self._path)
        handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            return file.read(most)

    def _write(self, text: str) -> None:
        assert self._path is not None
        self._refuse_links(self._path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(self._path.stat().st_mode) if self._path.exists() else 0o644
        handle, partial = tempfile.mkstemp(prefix=".autoresearch.", dir=self._path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            place = Path(partial)
            place.chmod(mode)
            place.replace(self._path)
        except OSError:
            Path(partial).unlink(missing_ok=True)
            raise

    @staticmethod
    def _refuse_links(path: Path) -> None:
        """Raise OSError where the file, or a folder of the daemon's on the way to it, is a link."""
        for place in (path, *path.parents[:LEVELS]):
            if place.is_symlink():
                raise OSError(errno.ELOOP, f"{place.name} is a link, which is not followed")
