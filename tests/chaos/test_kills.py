"""Daemons that are killed again and again lose nothing, repeat nothing, leave nothing; the checks would notice."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.chaos.harness import CONFIRMING, LATE, TRANSITIONS, Death, Harness, schedule
from tests.chaos.invariants import Breaches, check_after_death, check_end, check_user, processes_of
from tests.chaos.mortal import Fate
from tests.timing import wait_until

KILLS = 10
DAYS = 6
"""The seed of what is tried by day, so that one undisturbed session tells of all."""
STEP_S = 60.0
"""How long a life may take to the step that it is to die at."""


@pytest.mark.parametrize(
    "seed", [DAYS, pytest.param(102, marks=pytest.mark.nightly), pytest.param(103, marks=pytest.mark.nightly)]
)
def test_killed_anywhere_a_session_ends_as_if_nothing_had_happened(harness: Harness, seed: int) -> None:
    skipped = itertools.islice(itertools.cycle(TRANSITIONS), seed % 3 * 12, None)
    harness.session(seed, schedule(seed, KILLS, skipped))
    assert harness.tally.lines() == [], f"replay: python benchmarks/chaos.py --seed {seed}"
    assert harness.tally.total >= KILLS - LATE - 1, "few sessions end before their deaths are used up"


@pytest.mark.parametrize(("seed", "history"), [(DAYS, "refs"), pytest.param(102, "revert", marks=pytest.mark.nightly)])
def test_killed_at_every_step_of_a_confirmation_a_session_decides_the_same(
    harness: Harness, seed: int, history: str
) -> None:
    falls = [Fate("workspace.fall_back", moment) for moment in ("before", "after")] if history == "revert" else []
    deaths = [Death(fate, delay=STEP_S) for fate in (*CONFIRMING[:8], *falls, *CONFIRMING[8:])]
    harness.session(seed, deaths, history=history)
    assert harness.tally.lines() == []
    assert harness.tally.total == len(deaths)
    assert harness.tally.kills["confirming"] >= 5


def test_killed_while_it_packs_git_or_copies_its_journal_a_session_loses_nothing(harness: Harness) -> None:
    fates = [Fate("workspace.pack", "before"), Fate("workspace.pack", "after"), Fate("store.backup", "before")]
    harness.session(DAYS, [Death(fate) for fate in fates])
    assert harness.tally.lines() == []
    assert harness.tally.kills["housekeeping"] == len(fates)


def test_every_breach_of_a_promise_is_noticed(harness: Harness) -> None:
    world = harness.world("world", seed=1, experiments=2)
    users = world.users_files()
    breaches = Breaches()
    harness.finish(world, breaches, "")
    before = check_end(world, 2, None, breaches, "")
    check_user(users, world, breaches, "")
    assert breaches.lines() == []

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={"X": f"{world.root}/x"})
    wait_until(lambda: processes_of(world.root))
    harness.check_orphans(world, breaches, "")
    child.kill()
    child.wait()
    assert breaches.found["orphans"]

    (world.root / "untracked.txt").write_text("not mine\n")
    check_user(users, world, breaches, "")
    assert breaches.found["user_files"]

    base = before.session.base_commit
    stranger = world.git("commit-tree", "-m", "x", "-p", base, f"{base}^{{tree}}")
    world.git("update-ref", "refs/heads/autoresearch/night", stranger)
    check_after_death(world, before, breaches, "")
    assert breaches.found["unconfirmed"]

    world.git("update-ref", "-d", "refs/autoresearch/night/1")
    breaches.found["lost"].clear()
    check_end(world, 2, None, breaches, "")
    assert any("ref of experiment 1" in line for line in breaches.found["lost"])

    other = replace(before, experiments=(*before.experiments[:2], before.experiments[1]))
    check_after_death(world, other, breaches, "")
    check_end(world, 3, other, breaches, "")
    assert breaches.found["repeated"] and any("numbers [0, 1, 2]" in line for line in breaches.found["lost"])
