"""The living ``autoresearch.md`` of a session on disk: read for each prompt, kept up by the daemon, the user's to edit.

The daemon writes between its own marks only, at once after it has read the file anew; what the user wrote stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from autoresearchd.domain.task import Task
from autoresearchd.loop.measuring.run_files import open_plain
from autoresearchd.policy.prompt import digest

MOST_BYTES = 256 * 1024
LEVELS = 3
"""Folders above the file that are the daemon's own: ``.autoresearchd/sessions/<tag>``."""


class Memo:
    """The file, or none (``path`` None). Failures to read or to write it are nothing that an experiment should mind."""

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.failed = path, ""

    def read(self) -> str:
        """Its text, empty where there is none; bounded."""
        try:
            return self._bytes(self.path, MOST_BYTES).decode("utf-8", "replace") if self.path else ""
        except OSError as error:
            self.failed = "" if isinstance(error, FileNotFoundError) else f"{self.path}: {error.strerror}"
            return ""

    def keep_up(self, task: Task, learnings: str) -> None:
        """Write the daemon's own section anew; a file that is not there is begun."""
        if self.path is None:
            return
        try:
            raw = b""
            with contextlib.suppress(FileNotFoundError):
                raw = self._bytes(self.path, MOST_BYTES + 1)
            if len(raw) > MOST_BYTES:
                self.failed = f"{self.path} is larger than {MOST_BYTES // 1024} KiB and is not kept up any more"
                return
            before = raw.decode("utf-8")
            after = digest.update(before or digest.render_memo(task), learnings)
            if after != before:
                self._write(self.path, after)
                self.failed = ""
        except UnicodeDecodeError as error:  # written back it would lose bytes that are the user's
            self.failed = f"{self.path} is not UTF-8 (byte {error.start})"
        except OSError as error:
            self.failed = f"{self.path}: {error.strerror}"

    def _bytes(self, path: Path, most: int) -> bytes:
        """The beginning of the file: a plain one, reached without links, for a repository may bring others along."""
        _refuse_links(path)
        with open_plain(path) as file:
            return file.read(most)

    def _write(self, path: Path, text: str) -> None:
        _refuse_links(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
        handle, partial = tempfile.mkstemp(prefix=".autoresearch.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            Path(partial).chmod(mode)
            Path(partial).replace(path)
        except OSError:
            Path(partial).unlink(missing_ok=True)
            raise


def _refuse_links(path: Path) -> None:
    """Raise OSError where the file, or a folder of the daemon's on the way to it, is a link."""
    for place in (path, *path.parents[:LEVELS]):
        if place.is_symlink():
            raise OSError(errno.ELOOP, f"{place.name} is a link, which is not followed")
