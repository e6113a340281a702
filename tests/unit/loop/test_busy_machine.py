"""A machine that gets too busy to tell gains is a warning, once; so is that it is quiet again."""

from __future__ import annotations

import random
import re
from pathlib import Path

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.ports import RunRequest
from tests.fakes.bench import Bench, ByNumber
from tests.fakes.executors import Script


class Unlike(ByNumber):
    """No two proposals are the same program."""

    values = tuple(float(number) for number in range(100))


def test_noise_that_has_grown_fivefold_is_warned_of_once_and_taken_back(tmp_path: Path) -> None:
    """Else all is discarded for hours, and the log does not say that hardly anything could have been kept."""
    bench, chance, spread = Bench(tmp_path), random.Random(1), 0.05
    bench.policy = Unlike()

    def job(request: RunRequest) -> Script | str:
        found = re.search(r"SCALE = (.*)", (request.workspace / "train.py").read_text())
        assert found is not None
        gain = 3 * float(found[1]) if float(found[1]) > 6 else 0.0  # each then is run again, beside the one before
        return f"score: {1000 - gain + chance.uniform(-spread, spread):.6f}\n"

    bench.job = job

    def warnings(experiments: int) -> list[str]:
        """Those of all daemons so far, when the session has so many experiments: each time by a daemon of its own."""
        bench.run(experiments)
        return [e.message for e in bench.events.events if e.kind is EventKind.WARNING and "σ" in e.message]

    assert warnings(3) == []
    spread = 0.5
    warnings(6)
    spread = 0.05
    told = warnings(7)
    assert len(told) == 1 and "when the baseline was first measured" in told[0], told
    told = warnings(18)
    assert len(told) == 2 and "can be told again" in told[1], told
