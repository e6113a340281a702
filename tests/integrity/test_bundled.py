"""The bundled task's own evaluation: it catches models that look where they may not, and refuses no honest edit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autoresearchd.app.tasks.check_task import Extent, check_held
from autoresearchd.config import load_task
from autoresearchd.evaluator.rules.legality import check_edit, code_hash, required_symbols
from autoresearchd.resources import bundled
from autoresearchd.sandbox.tiers import available
from tests.integrity.bundled_cheats import CHEATS
from tests.integrity.cheat import Cheat
from tests.integrity.honest_edits import HONEST
from tests.integrity.session import CheatSession, Outcome
from tests.integrity.test_cheats import judge

pytest.importorskip("torch")

TEMPLATE = bundled("templates") / "autoresearch"
SHORT = [("  budget: 15 ", "  budget: 1.5 "), ("      budget: 15\n", "      budget: 1.5\n")]
SHORT += [("  startup_grace: 30 ", "  startup_grace: 120 ")]  # a machine that does other work as well is no cheat
LESS_TEXT = """['python -c "import prepare as p; p.prepare(p.Path(\\"data\\"), \\"cpu\\", 400_000, 160_000)"']"""
PROBE_SHARE = 0.2
WITHIN_REACH = 1.5
"""Bits per byte that no honest model gets to in so short a time."""


def run(folder: Path, cheats: list[Cheat], *more: tuple[str, str]) -> tuple[list[Outcome], float]:
    session = CheatSession(folder, cheats, tier=available()[0].name.value)
    outcomes = session.run(session.build(TEMPLATE, [*SHORT, *more]), timeout=300 + 240 * len(cheats))
    for outcome in outcomes:
        print(f"{outcome.cheat.name:50} {outcome.label:14} {outcome.value} {outcome.detail[:100]}")
    return outcomes, session.results[0]["value"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_task_is_scored_in_the_best_tier_and_a_model_that_looks_ahead_is_caught(place: Path) -> None:
    tier = available()[0].name.value
    session = CheatSession(place, [], tier=tier)
    session.build(TEMPLATE, [*SHORT, ("[python prepare.py]", LESS_TEXT)])
    held = check_held(session.repo, extent=Extent(runs=1, edits=0, cheats=1, hurried=True), sandbox=tier)
    assert (held.tier, held.faults) == (tier, ())
    assert held.values[0] > WITHIN_REACH
    assert [cheat.label for cheat in held.cheats] == ["not_causal"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_model_that_looks_where_it_may_not_is_caught(place: Path) -> None:
    outcomes, baseline = run(place, CHEATS)
    assert baseline > WITHIN_REACH
    wrong = [f"{o.cheat.name}: {why}" for o in outcomes if (why := judge(o, o.tier, WITHIN_REACH))]
    assert not wrong


def test_every_change_that_was_kept_in_a_real_night_is_legal() -> None:
    task, honest = load_task(TEMPLATE), (TEMPLATE / "train.py").read_text()
    required = required_symbols(task, {path: (TEMPLATE / path).read_text() for path in task.protected})
    assert required == {"train.py": frozenset({"load_model"})}
    before, seen = honest, {code_hash({"train.py": honest})}
    assert len(HONEST) == 22
    for change in HONEST:
        after = change.edit(honest)
        check_edit(task, {"train.py": before}, {"train.py": after}, required=required)
        seen.add(code_hash({"train.py": after}))
        before = after
    assert len(seen) == 1 + len(HONEST), "none is taken for a duplicate of another"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_change_that_was_kept_in_a_real_night_is_scored(place: Path) -> None:
    outcomes, _ = run(place, HONEST, ("  abort: true", "  abort: false"))  # all are to be scored
    refused = [f"{o.cheat.name}: {o.label} {o.detail}" for o in outcomes if o.label not in o.cheat.expected]
    assert not refused
    assert all(o.value is not None for o in outcomes)


@pytest.mark.nightly
def test_the_probes_take_a_seventh_of_the_evaluation_at_most() -> None:
    program = Path(__file__).parents[2] / "benchmarks" / "probes.py"
    done = subprocess.run(
        [sys.executable, str(program), "--rounds", "3"],
        capture_output=True, text=True, timeout=250, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    print(done.stdout)
    found = re.search(r"^share: +([0-9.]+) %", done.stdout, re.MULTILINE)
    assert float(found[1]) <= 100 * PROBE_SHARE
