"""What is sent to the model process, and what comes back, checked. Protected.

`serving.py` describes the protocol. One request is under way at a time: nothing is sent before what was sent before
it is answered, so that a model cannot read ahead.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from exchange import EvaluationError, Exchange
from serving import RECORD

SYMBOLS = 256
START_TIMEOUT, FIRST_TIMEOUT, REPLY_TIMEOUT = 60.0, 120.0, 60.0  # seconds: pipes, first answer, any other

Inputs = npt.NDArray[np.uint8]
Logits = npt.NDArray[np.float32]


class Channel(Exchange):
    """The model at the other end. rows, width: of a batch."""

    def __init__(self, folder: Path, rows: int, width: int) -> None:
        self.shape = (rows, width)
        self.buffer: Logits = np.empty((rows, width, SYMBOLS), dtype=np.float32)
        super().__init__(folder, "the model process", START_TIMEOUT, rows * width, self.buffer.nbytes)
        self.number = 0

    def ask(self, batch: Inputs) -> Logits:
        """The model's logits (B, T, 256) for a batch (B, T), checked. The array is overwritten by the next call."""
        self.number += 1
        os.pwrite(self.inputs, np.ascontiguousarray(batch, dtype=np.uint8).tobytes(), 0)
        what, limit = f"request {self.number}", FIRST_TIMEOUT if self.number == 1 else REPLY_TIMEOUT
        self.request(RECORD.pack(self.number, 0, *self.shape, SYMBOLS, 1), what)
        number, _, *shape, _ = RECORD.unpack(self.reply(RECORD.size, limit, what))
        if number != self.number or tuple(shape) != (*self.shape, SYMBOLS):
            raise EvaluationError(f"the logits have another shape than {(*self.shape, SYMBOLS)}")
        self.read(memoryview(self.buffer.data).cast("B"))
        if not np.isfinite(self.buffer).all():
            raise EvaluationError("the logits hold NaN or infinite values")
        return self.buffer
