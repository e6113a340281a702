"""The scorer's end of the exchange folder, two files and two pipes, and how a scorer tells what it found. Protected.

`serving.py` and `meter.py` describe what is said over them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path


class EvaluationError(Exception):
    """No score: the text says why, in one line."""


class Refused(Exception):
    """The result means nothing. label: what to call it; metric: what is told of it, ``causal=0``."""

    def __init__(self, label: str, metric: str, what: str) -> None:
        super().__init__(what)
        self.label, self.metric = label, metric


def tell(score: Callable[[], Mapping[str, str]]) -> int:
    """Print the metrics that ``score`` gives, and how long it took, as `METRIC` lines; the exit code.

    1: there is no score; 3: the result is refused.
    """
    began, program = time.monotonic(), Path(sys.argv[0]).name
    try:
        found = score()
    except Refused as refused:
        print(f"METRIC {refused.metric}\nLABEL {refused.label}", flush=True)
        print(f"{program}: the score would mean nothing: {refused}", file=sys.stderr)
        return 3
    except KeyError as missing:
        print(f"{program}: {missing} is not set in the environment", file=sys.stderr)
        return 1
    except (EvaluationError, OSError, ValueError) as problem:
        print(f"{program}: {problem}", file=sys.stderr)
        return 1
    for name, value in found.items():
        print(f"METRIC {name}={value}")
    print(f"METRIC eval_seconds={time.monotonic() - began:.2f}")
    return 0


class Exchange:
    """Connected. who: the other process, in words; limit: seconds until it has opened its pipes; the rest: bytes."""

    def __init__(self, folder: Path, who: str, limit: float, inputs: int = 0, outputs: int = 0) -> None:
        self.who = who
        self.inputs, self.outputs = _file(folder / "inputs.bin", inputs), _file(folder / "outputs.bin", outputs)
        for name in ("replies", "requests"):
            os.mkfifo(folder / f".{name}", 0o600)
        self.replies = os.open(folder / ".replies", os.O_RDONLY | os.O_NONBLOCK)
        for name in ("replies", "requests"):  # the other process waits for `requests`, which appears last
            (folder / f".{name}").rename(folder / name)
        self.requests = self._connect(folder / "requests", limit)

    def _connect(self, path: Path, limit: float) -> int:
        deadline = time.monotonic() + limit
        while True:
            try:
                pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
                    raise EvaluationError("something else lies in the place of a pipe")
                return pipe
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            if time.monotonic() > deadline:
                raise EvaluationError(f"{self.who} did not start within {limit:.0f} s")
            time.sleep(0.005)

    def request(self, record: bytes, what: str) -> None:
        """Send a record. what: of which request, in words."""
        try:
            os.write(self.requests, record)
        except (BrokenPipeError, BlockingIOError):
            raise EvaluationError(f"{self.who} ended before {what}: its own output says why") from None

    def reply(self, size: int, limit: float, what: str) -> bytes:
        """The record of `size` bytes that the other process writes within `limit` seconds."""
        deadline, record = time.monotonic() + limit, b""
        poller = select.poll()
        poller.register(self.replies, select.POLLIN)
        while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            with contextlib.suppress(BlockingIOError):  # poll(2) may take a pipe that is being opened for ended
                record = os.read(self.replies, size)
                break
        else:
            raise EvaluationError(f"{self.who} gave no answer to {what} within {limit:.0f} s")
        if len(record) != size:
            raise EvaluationError(f"{self.who} ended in {what}: its own output says why")
        return record

    def read(self, into: memoryview, place: int = 0) -> None:
        """Fetch outputs, from byte `place`; a file that was cut short is an error and no fatal signal."""
        done = 0
        while done < len(into):
            count = os.preadv(self.outputs, [into[done:]], place + done)
            if count == 0:
                raise EvaluationError("the file of the outputs was cut short")
            done += count


def _file(path: Path, size: int) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.ftruncate(handle, size)
    return handle
