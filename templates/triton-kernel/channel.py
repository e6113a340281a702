"""What is sent to the edited kernel, and what comes back. Protected.

`meter.py` describes the protocol.
"""

from __future__ import annotations

import os
from pathlib import Path

from exchange import EvaluationError, Exchange
from meter import REPLY, REQUEST

START_TIMEOUT = 60.0  # seconds until the other process has opened its pipes
FIRST_TIMEOUT = 60.0  # seconds until the edited file has been imported


class Channel(Exchange):
    """The process of the kernel at the other end. inputs, outputs: bytes at the most."""

    def __init__(self, folder: Path, inputs: int, outputs: int) -> None:
        super().__init__(folder, "the kernel's process", START_TIMEOUT, inputs, outputs)
        self.ask(0, 0, FIRST_TIMEOUT)

    def ask(self, number: int, what: int, limit: float = 30.0) -> tuple[int, float]:
        """The bytes that are said to lie in outputs, and the seconds that the answer is said to have taken."""
        self.request(REQUEST.pack(number, what), f"call {number}")
        answered, given, nanoseconds = REPLY.unpack(self.reply(REPLY.size, limit, f"call {number}"))
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
