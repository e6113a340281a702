"""The scorer's end of the exchange folder: what is sent to the edited kernel, and what comes back. Protected.

`meter.py` describes the protocol.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from pathlib import Path

from meter import REPLY, REQUEST

START_TIMEOUT = 60.0  # seconds until the other process has opened its pipes
FIRST_TIMEOUT = 60.0  # seconds until the edited file has been imported


class EvaluationError(Exception):
    """No score: the text says why, in one line."""


class Channel:
    """Files and pipes, and the process at their other end."""

    def __init__(self, folder: Path, inputs: int, outputs: int) -> None:
        self.inputs = self._file(folder / "inputs.bin", inputs)
        self.outputs = self._file(folder / "outputs.bin", outputs)
        for name in ("replies", "requests"):
            os.mkfifo(folder / f".{name}", 0o600)
        self.replies = os.open(folder / ".replies", os.O_RDONLY | os.O_NONBLOCK)
        for name in ("replies", "requests"):  # the other process waits for `requests`, which appears last
            (folder / f".{name}").rename(folder / name)
        self.requests = self._connect(folder / "requests")
        self.ask(0, 0, FIRST_TIMEOUT)

    @staticmethod
    def _file(path: Path, size: int) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.ftruncate(handle, size)
        return handle

    @staticmethod
    def _connect(path: Path) -> int:
        deadline = time.monotonic() + START_TIMEOUT
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
                raise EvaluationError(f"the kernel's process did not start within {START_TIMEOUT:.0f} s")
            time.sleep(0.005)

    def _reply(self, size: int, limit: float) -> bytes | None:
        """What the other process wrote: nothing where it has ended, None after `limit` seconds."""
        deadline = time.monotonic() + limit
        poller = select.poll()
        poller.register(self.replies, select.POLLIN)
        while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            with contextlib.suppress(BlockingIOError):  # poll(2) may take a pipe that is being opened for ended
                return os.read(self.replies, size)
        return None

    def ask(self, number: int, what: int, limit: float = 30.0) -> tuple[int, float]:
        """The bytes that are said to lie in outputs, and the seconds that the answer is said to have taken."""
        try:
            os.write(self.requests, REQUEST.pack(number, what))
        except (BrokenPipeError, BlockingIOError):
            raise EvaluationError(f"the kernel's process ended before call {number}: its own output says why") from None
        record = self._reply(REPLY.size, limit)
        if record is None:
            raise EvaluationError(f"no answer to call {number} within {limit:.0f} s")
        if len(record) != REPLY.size:
            raise EvaluationError(f"the kernel's process ended in call {number}: its own output says why")
        answered, given, nanoseconds = REPLY.unpack(record)
        if answered != number:
            raise EvaluationError(f"call {answered} was answered when {number} was asked")
        return given, nanoseconds / 1e9

    def write(self, data: bytes | memoryview) -> None:
        """Put inputs where the other process finds them."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            done += os.pwrite(self.inputs, view[done:], done)

    def poison(self, data: bytes) -> None:
        """Fill the place of the outputs with what is no result."""
        os.pwrite(self.outputs, data, 0)

    def read(self, into: memoryview) -> None:
        """Fetch outputs; a file that was cut short is an error and no fatal signal."""
        done = 0
        while done < len(into):
            count = os.preadv(self.outputs, [into[done:]], done)
            if count == 0:
                raise EvaluationError("the shared memory of the outputs was cut short")
            done += count
