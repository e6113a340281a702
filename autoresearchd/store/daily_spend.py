"""What a user's models cost in a day, in all repositories together, which a daily cap needs: a file for each day."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.sandbox.file_locks import hold
from autoresearchd.store.backups import sync

_MOST_BYTES = 64 * 2**20
_MOST_WORDS = 500
_MOST_USD = 1e12


class DailySpend:
    """Amounts by day (UTC), in ``spend-2026-11-22.jsonl`` and so on. A line is on disk when ``add`` returns.

    One that a crash has cut short counts nothing, and takes no other with it. patience: seconds that a writer waits for
    another one; a daemon that somebody has stopped may hold the lock.
    """

    def __init__(self, folder: Path, *, patience: float = 2.0) -> None:
        self._folder, self._patience = folder, patience

    def add(self, at: datetime, usd: float, what: str, *, again: bool = False) -> None:
        """Write an amount down (``again``: unless it is there already). OSError: it does not count, add it again."""
        line = json.dumps({"at": at.astimezone(UTC).isoformat(), "usd": usd, "for": what[:_MOST_WORDS]}) + "\n"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.path(at)
        new = not path.exists()
        busy = BlockingIOError(errno.EAGAIN, f"{path} is locked by another program")
        flags = os.O_APPEND | os.O_NONBLOCK
        with hold(path, patience=self._patience, busy=lambda: busy, flags=flags) as file:
            if again and (at, usd) in self.entries(at):
                return
            end = os.lseek(file, 0, os.SEEK_END)
            whole = end == 0 or os.pread(file, 1, end - 1) == b"\n"
            written = (line if whole else "\n" + line).encode("ascii")
            try:
                if os.write(file, written) != len(written):
                    raise OSError(f"{path} takes no more")
                os.fsync(file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file, end)  # what is added again must not count twice
                raise
        if new:
            with contextlib.suppress(OSError):  # some file systems cannot; the amount is written, and counts
                sync(self._folder)

    def spent(self, at: datetime) -> float:
        """US dollars of the day of ``at``. OSError where the file is there and cannot be read."""
        return math.fsum(usd for _, usd in self._lines(at))

    def entries(self, at: datetime) -> frozenset[tuple[datetime, float]]:
        """When the amounts of the day of ``at`` were spent, and what they were. OSError as for ``spent``."""
        return frozenset((when, usd) for when, usd in self._lines(at) if when is not None and usd)

    def path(self, at: datetime) -> Path:
        return self._folder / f"spend-{at.astimezone(UTC):%Y-%m-%d}.jsonl"

    def _lines(self, at: datetime) -> list[tuple[datetime | None, float]]:
        try:
            file = os.open(self.path(at), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return []
        with os.fdopen(file, "rb") as stream:
            return [_entry(line) for line in stream.read(_MOST_BYTES).splitlines()]


def _entry(line: bytes) -> tuple[datetime | None, float]:
    """When an amount was spent, None where the line does not say; and what it was, 0 where it is none."""
    when, amount = None, 0.0
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
        entry = json.loads(line)
        usd = entry["usd"]
        if isinstance(usd, (int, float)) and not isinstance(usd, bool) and 0 < usd < _MOST_USD:
            amount = float(usd)
            when = datetime.fromisoformat(entry["at"])
    return when if when is not None and when.tzinfo is not None else None, amount
