"""Follows the log of a running job: its learning curve so far, as shares of the budget."""

from __future__ import annotations

import codecs
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from autoresearchd.domain.experiment import CurvePoint
from autoresearchd.evaluator.curve import CurveParser

MOST_BYTES = 8 * 2**20
"""Read at one look; a log that grows faster is caught up with at the next ones."""

_PIECE = 2**18


class LogFollower:
    """Reads what a log has got since the last time, also when it was rotated to ``<name>.1`` in between."""

    def __init__(self, path: Path, pattern: str, budget: float) -> None:
        self._path = path
        self._parser = CurveParser(pattern, budget)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._file: BinaryIO | None = None

    def read(self) -> None:
        """Take in what is new. OSError when the log cannot be read."""
        left = MOST_BYTES
        while left > 0:
            if self._file is None:
                self._file = self._open()
                if self._file is None:
                    return
            piece = self._file.read(min(_PIECE, left))
            left -= len(piece)
            if piece:
                self._parser.feed(self._decoder.decode(piece))
            elif self._rotated():
                self.close()
            else:
                return

    @property
    def started(self) -> bool:
        """Whether the log shows any point yet."""
        return bool(self._parser.points or self._parser.non_finite)

    def close(self) -> None:
        """Let go of the log; another ``read`` opens what is there then from its beginning."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def curve(self, elapsed: float) -> tuple[list[float], list[float]]:
        """Progress and losses so far. elapsed: share of the budget that has gone by, for logs that do not say."""
        points = list(self._parser.points)
        if self._parser.diverged:
            points = sorted([*points, *self._parser.non_finite], key=lambda p: p.step)
        return curve_of(points, elapsed)

    def _open(self) -> BinaryIO | None:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a job without a sandbox may have put anything there
            os.close(descriptor)
            raise OSError(f"{self._path} is no file")
        return os.fdopen(descriptor, "rb")

    def _rotated(self) -> bool:
        if self._file is None:
            return False
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file.fileno())
        return (found.st_dev, found.st_ino) != (mine.st_dev, mine.st_ino)


def curve_of(points: Sequence[CurvePoint], end: float = 1.0) -> tuple[list[float], list[float]]:
    """Progress and losses of a curve; of the training loss where both kinds are logged.

    Where the log does not say how much of the budget is gone, steps are taken to be evenly spread up to ``end``.
    """
    training = [p for p in points if not p.validation]
    chosen = training if len(training) > 1 else list(points)
    if not chosen:
        return [], []
    if all(p.progress is not None and math.isfinite(p.progress) for p in chosen):
        return [p.progress for p in chosen if p.progress is not None], [p.loss for p in chosen]
    last = max(p.step for p in chosen)
    return [p.step / last * end if last > 0 else end for p in chosen], [p.loss for p in chosen]
