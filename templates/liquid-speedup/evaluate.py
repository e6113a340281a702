"""The scorer of the `liquid-speedup` task: the edited engine's time, as a share of the reference's. Protected.

It never imports the edited file. That runs in another process (`serve.py`), is sent batches of templates and
returns what it made of them; how much processor time that took is read by a third (`meter.py`, which describes the
protocol and why that can be believed). The reference (`reference.py`) renders the same batches here, each right
after the other's answer, so that both meet the same machine.

Every batch is drawn from a seed of its own that the system gives (`secrets`) and is sent once: there is nothing to
recognise, and nothing to keep from one time to the next. The first batch tries every filter with every number of
arguments, and every fault. Output must be that of the reference, byte for byte, in all batches; else
`LABEL gate_miss`, exit 3.

`relative_time` is the median over the batches of the program's time by the reference's, 1 being the reference itself.
`combined_time_ms` is the median of the program's, parsing and rendering, in milliseconds of this machine.

Exit codes: 0 scored · 1 no score (one line on stderr says why) · 3 output that is not the reference's.
"""

from __future__ import annotations

import gc
import json
import os
import random
import secrets
import statistics
import sys
import time
from pathlib import Path

import reference
from exchange import EvaluationError, Exchange, Refused, tell
from meter import REPLY, REQUEST
from workload import batch, conformance, render_all, site

BATCHES = 160
WARM_UP = 10  # batches that are checked and not timed
START_TIMEOUT = 30.0  # seconds until the other process has opened its pipes
FIRST_TIMEOUT = 30.0  # seconds until the edited file has been imported
REPLY_TIMEOUT = 10.0


class Program(Exchange):
    """The edited program at the other end of the exchange folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "the program", START_TIMEOUT)
        self.ask(0, b"", 0, FIRST_TIMEOUT)

    def ask(self, number: int, payload: bytes, size: int, limit: float = REPLY_TIMEOUT) -> tuple[bytes, float]:
        """What comes back (nothing when it is not `size` bytes), and the seconds of processor time that it took."""
        os.pwrite(self.inputs, payload, 0)
        self.request(REQUEST.pack(number, len(payload)), f"batch {number}")
        answered, given, nanoseconds = REPLY.unpack(self.reply(REPLY.size, limit, f"batch {number}"))
        if answered != number:
            raise EvaluationError(f"the program answered batch {answered} when {number} was asked")
        return os.pread(self.outputs, size, 0) if given == size else b"", nanoseconds / 1e9


def time_reference(payload: bytes) -> tuple[bytes, float]:
    """What the reference makes of a batch, and seconds of processor time."""
    gc.collect()
    began = time.process_time_ns()
    said = render_all(reference.Template, reference.TemplateError, payload)
    return said, (time.process_time_ns() - began) / 1e9


def fresh() -> random.Random:
    """Random numbers that nobody can foresee, not even from those that were drawn before."""
    return random.Random(secrets.randbits(256))


def first_difference(said: bytes, wanted: bytes) -> str:
    """Where two outputs part, in words."""
    place = next((i for i, (a, b) in enumerate(zip(said, wanted, strict=False)) if a != b), min(len(said), len(wanted)))
    return f"{said[place : place + 40]!r} in the place of {wanted[place : place + 40]!r}" if said else "another length"


def metrics() -> dict[str, str]:
    """The program's time beside the reference's, and alone."""
    about = site(fresh())
    drawn = [conformance(fresh(), about, list(reference.FILTERS))]
    drawn += [batch(fresh(), about) for _ in range(WARM_UP - 1 + BATCHES)]
    payloads = [json.dumps(one).encode() for one in drawn]
    gc.freeze()  # what is here to stay is not looked through again
    ratios, times = list[float](), list[float]()
    program = Program(Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"]))
    for number, payload in enumerate(payloads, 1):
        wanted, seconds = time_reference(payload)
        said, took = program.ask(number, payload, len(wanted))
        if said != wanted:
            raise Refused("gate_miss", "correct=0", f"batch {number}: {first_difference(said, wanted)}")
        if number > WARM_UP:
            ratios.append(took / seconds)
            times.append(took)
    return {
        "relative_time": f"{statistics.median(ratios):.5f}",
        "combined_time_ms": f"{1000 * statistics.median(times):.4f}",
        "correct": "1",
    }


if __name__ == "__main__":
    sys.exit(tell(metrics))
