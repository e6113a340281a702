"""The living ``autoresearch.md`` of a session on disk: read for each prompt, kept up by the daemon, the user's to edit.

The daemon writes between its own marks only, at once after it has read the file anew; what the user wrote stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.task import Task
from autoresearchd.policy import memo

MOST_BYTES = 256 * 1024


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
            with self._path.open("rb") as file:
                return file.read(MOST_BYTES).decode("utf-8", "replace")
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
            if self._path.exists() and self._path.stat().st_size > MOST_BYTES:
                self.failed = f"{self._path} is larger than {MOST_BYTES // 1024} KiB and is not kept up any more"
                return
            before = self._path.read_bytes().decode("utf-8") if self._path.exists() else ""
            text = memo.learnings(recent, top, failures, sigma=sigma)
            after = memo.update(before or memo.render_memo(task), {memo.LEARNINGS: text})
            if after == before:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_name(f".{self._path.name}.new")
            partial.write_text(after, encoding="utf-8", newline="")
            partial.replace(self._path)
            self.failed = ""
        except UnicodeDecodeError as error:  # written back it would lose bytes that are the user's
            self.failed = f"{self._path} is not UTF-8 (byte {error.start})"
        except OSError as error:
            self.failed = f"{self._path}: {error.strerror}"
