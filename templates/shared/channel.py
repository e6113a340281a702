"""The scorer's end of the exchange folder: what is sent to the model process, and what comes back. Protected.

`serving.py` describes the protocol. One request is under way at a time: nothing is sent before what was sent before
it is answered, so that a model cannot read ahead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from serving import RECORD

SYMBOLS = 256
START_TIMEOUT, FIRST_TIMEOUT, REPLY_TIMEOUT = 60.0, 120.0, 60.0  # seconds: pipes, first answer, any other

Inputs = npt.NDArray[np.uint8]
Logits = npt.NDArray[np.float32]


class EvaluationError(Exception):
    """No score: the text says why, in one line."""


class Channel:
    """Files and pipes, and the model at their other end. rows, width: of a batch."""

    def __init__(self, folder: Path, rows: int, width: int) -> None:
        self.shape = (rows, width)
        self.buffer: Logits = np.empty((rows, width, SYMBOLS), dtype=np.float32)
        self.inputs = self._file(folder / "inputs.bin", rows * width)
        self.outputs = self._file(folder / "outputs.bin", self.buffer.nbytes)
        for name in ("replies", "requests"):
            os.mkfifo(folder / f".{name}", 0o600)
        self.replies = os.open(folder / ".replies", os.O_RDONLY | os.O_NONBLOCK)
        for name in ("replies", "requests"):  # the model waits for `requests`, which appears last
            (folder / f".{name}").rename(folder / name)
        self.requests = self._connect(folder / "requests")
        self.number = 0

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
                    raise EvaluationError("the model process put something else in the place of a pipe")
                return pipe
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            if time.monotonic() > deadline:
                raise EvaluationError(f"the model process did not start within {START_TIMEOUT:.0f} s")
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

    def ask(self, batch: Inputs) -> Logits:
        """The model's logits (B, T, 256) for a batch (B, T), checked. The array is overwritten by the next call."""
        self.number += 1
        os.pwrite(self.inputs, np.ascontiguousarray(batch, dtype=np.uint8).tobytes(), 0)
        try:
            os.write(self.requests, RECORD.pack(self.number, 0, *self.shape, SYMBOLS, 1))
        except (BrokenPipeError, BlockingIOError):
            raise EvaluationError("the model process ended: its own output says why") from None
        limit = FIRST_TIMEOUT if self.number == 1 else REPLY_TIMEOUT
        record = self._reply(RECORD.size, limit)
        if record is None:
            raise EvaluationError(f"the model process gave no answer within {limit:.0f} s")
        if len(record) != RECORD.size:
            raise EvaluationError("the model process ended: its own output says why")
        number, _, *shape, _ = RECORD.unpack(record)
        if number != self.number or tuple(shape) != (*self.shape, SYMBOLS):
            raise EvaluationError(f"the logits have another shape than {(*self.shape, SYMBOLS)}")
        view = memoryview(self.buffer.data).cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(self.outputs, [view[done:]], done)
            if count == 0:
                raise EvaluationError("the file of the logits was cut short")
            done += count
        if not np.isfinite(self.buffer).all():
            raise EvaluationError("the logits hold NaN or infinite values")
        return self.buffer
