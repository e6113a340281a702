"""A machine too busy to tell gains, and a program that ignores the seed, are each warned of once."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.ports import RunRequest
from autoresearchd.loop.session import SessionLoop
from tests.fakes.bench import PROGRAM, Bench, ByNumber
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


READS = 'import os\nSEED = os.environ["AUTORESEARCHD_SEED"]\n' + PROGRAM


def steady(request: RunRequest) -> Script | str:
    found = re.search(r"SCALE = (.*)", (request.workspace / "train.py").read_text())
    return f"score: {(float(found[1]) - 2.0) ** 2:.6f}\n"


@pytest.mark.parametrize("ignores", [True, False])
def test_a_baseline_whose_seed_is_its_own_is_warned_of_once_and_not_said_to_have_no_noise(
    tmp_path: Path, ignores: bool
) -> None:
    """Else the luck of one seed is kept, and the reason assures the user that there is no luck."""
    bench = Bench(tmp_path, program=PROGRAM if ignores else READS)
    bench.job = steady
    SessionLoop(bench.laboratory(), Limits(max_experiments=2)).run()
    warned = [e.message for e in bench.events.events if e.kind is EventKind.WARNING]
    reasons = [e.decision.reason for e in bench.experiments()[1:] if e.decision]
    bench.close()
    assert sum("does not read AUTORESEARCHD_SEED: no noise is seen" in said for said in warned) == ignores
    assert len(reasons) == 2
    assert all(("no noise seen: the program ignores AUTORESEARCHD_SEED" in said) is ignores for said in reasons)
    assert all(("the metric has no noise" in said) is not ignores for said in reasons)
