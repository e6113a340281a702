"""A program that ignores the daemon's seed shows no noise, and a session says that this is none that was seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.ports import RunRequest
from autoresearchd.loop.session import SessionLoop
from tests.fakes.bench import PROGRAM, Bench
from tests.fakes.executors import Script

READS = 'import os\nSEED = os.environ["AUTORESEARCHD_SEED"]\n' + PROGRAM


def steady(request: RunRequest) -> Script | str:
    found = re.search(r"SCALE = (.*)", (request.workspace / "train.py").read_text())
    assert found is not None
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
