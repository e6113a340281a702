"""What a user's models cost in a day, whatever repository they were asked for: a file of lines for each day.

A repository's journal holds its own answers with their prices; a cap on a day is the user's, and needs them all.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.sandbox.file_locks import hold

_MOST_BYTES = 64 * 2**20
_MOST_WORDS = 500
_MOST_USD = 1e12


class DailySpend:
    """Amounts by day (UTC), in ``spend-2026-11-22.jsonl`` and so on; shared by all daemons of a user.

    A line is on disk when ``add`` returns. One that a crash has cut short counts nothing, and takes no other with it.

    Args:
        folder: where the files lie; made when it is first written to.
        patience: seconds that a writer waits for another one; a daemon that somebody has stopped may hold the lock.
    """

    def __init__(self, folder: Path, *, patience: float = 2.0) -> None:
        self._folder, self._patience = folder, patience

    def add(self, at: datetime, usd: float, what: str, *, again: bool = False) -> None:
        """Write an amount down.

        Args:
            at: when it was spent.
            usd: the amount.
            what: for whom reads the file.
            again: it may be in the book already, and is not added then.

        Raises:
            OSError: that cannot be done. The amount does not count then: whoever still has it adds it again.
        """
        line = json.dumps({"at": at.astimezone(UTC).isoformat(), "usd": usd, "for": what[:_MOST_WORDS]}) + "\n"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.path(at)
        new = not path.exists()
        # The lock of the file itself: a daemon of an earlier version takes it, too.
        busy = BlockingIOError(errno.EAGAIN, f"{path} is locked by another program")
        flags = os.O_APPEND | os.O_NONBLOCK
        with hold(path, patience=self._patience, busy=lambda: busy, flags=flags) as file:
            _check_regular(file, path)
            if again and (at, usd) in self.entries(at):
                return
            end = os.lseek(file, 0, os.SEEK_END)
            whole = end == 0 or os.pread(file, 1, end - 1) == b"\n"
            try:
                _append(file, (line if whole else "\n" + line).encode("ascii"), path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file, end)  # what is added again must not count twice
                raise
        if new:
            with contextlib.suppress(OSError):  # some file systems cannot; the amount is written, and counts
                _sync_folder(self._folder)

    def spent(self, at: datetime) -> float:
        """US dollars of the day of ``at``. OSError where the file is there and cannot be read."""
        return math.fsum(map(_amount, self._lines(at)))

    def entries(self, at: datetime) -> frozenset[tuple[datetime, float]]:
        """When the amounts of the day of ``at`` were spent, and what they were. OSError as for ``spent``."""
        found = ((_time(line), _amount(line)) for line in self._lines(at))
        return frozenset((when, usd) for when, usd in found if when is not None and usd)

    def _lines(self, at: datetime) -> list[bytes]:
        path = self.path(at)
        try:
            file = io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))
        except FileNotFoundError:
            return []
        with file:
            _check_regular(file.fileno(), path)
            return file.read(_MOST_BYTES).splitlines()

    def path(self, at: datetime) -> Path:
        """The file of a day."""
        return self._folder / f"spend-{at.astimezone(UTC):%Y-%m-%d}.jsonl"


def _append(file: int, written: bytes, path: Path) -> None:
    """On disk when it returns."""
    if os.write(file, written) != len(written):
        raise OSError(f"{path} takes no more")
    os.fsync(file)


def _amount(line: bytes) -> float:
    """The amount in a line; nothing where it is none."""
    usd = _field(line, "usd")
    if isinstance(usd, bool) or not isinstance(usd, (int, float)):
        return 0.0
    return float(usd) if 0 < usd < _MOST_USD else 0.0


def _time(line: bytes) -> datetime | None:
    """When the amount in a line was spent; None where it does not say."""
    try:
        found = datetime.fromisoformat(str(_field(line, "at")))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _field(line: bytes, name: str) -> object:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found.get(name) if isinstance(found, dict) else None


def _check_regular(file: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(f"{path} is no regular file")


def _sync_folder(folder: Path) -> None:
    """Have a new name in a folder survive a power cut."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
