"""A daemon that dies at any instant loses nothing, repeats nothing and leaves nothing unjudged on the branch.

The daemon is made to die before and after every call that it makes to the store, to git and to the executor: at each
such instant a BaseException ends it, a new one is composed over the same store and repository, and the session must end
as if nothing had happened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.labels import Label, Phase, Status
from tests.fakes.bench import Doom, run_until_killed
from tests.integration.bench import Bench

EXPERIMENTS = 3


def check(bench: Bench) -> None:
    found = bench.experiments()
    assert [e.number for e in found] == list(range(EXPERIMENTS + 1)), "no gap, no double"
    assert all(e.phase is Phase.DECIDED and e.decision is not None for e in found)
    kept = [e.commit for e in found if e.decision and e.decision.status is Status.KEEP and e.number]
    assert bench.line()[1:] == kept, "kept commits only"
    for e in found:
        good = [run for run in e.runs if run.label is Label.NONE]
        own = [run for run in good if run.of is None]
        keep = e.decision is not None and e.decision.status is Status.KEEP
        assert len(own) == (3 if e.number == 0 else 2 if keep else 1), "measured once, and a keep twice"
        assert len(good) - len(own) <= 1, "and a keep is compared with one run of the incumbent beside it"
        assert len({(run.seed, run.of) for run in good}) == len(good)
        if e.commit:
            assert bench.git("rev-parse", f"refs/autoresearch/t/{e.number}") == e.commit
    assert bench.git("status", "--porcelain") == ""
    assert bench.git("rev-parse", "--abbrev-ref", "HEAD") == "main"


def outcome(bench: Bench) -> list[tuple[Any, ...]]:
    """What must not depend on where the daemon died."""
    return [(e.number, e.decision.status, e.decision.value) for e in bench.experiments() if e.decision]


@pytest.mark.parametrize("part", [0, *(pytest.param(p, marks=pytest.mark.nightly) for p in range(1, 6))])
def test_death_at_any_instant_changes_nothing(tmp_path: Path, part: int) -> None:
    count = Doom(at=-1)
    reference = Bench(tmp_path / "reference")
    run_until_killed(reference, count)
    for at in range(1 + part, count.count + 1, 6):
        bench = Bench(tmp_path / str(at))
        assert run_until_killed(bench, Doom(at=at)), f"instant {at}"
        run_until_killed(bench, Doom(at=-1))
        check(bench)
        assert outcome(bench) == outcome(reference), f"instant {at}"
        bench.close()
    reference.close()


@pytest.mark.parametrize("step", [3, 7, 13, 29])
def test_death_again_and_again_during_recovery_itself(tmp_path: Path, step: int) -> None:
    bench = Bench(tmp_path)
    deaths = 0
    while run_until_killed(bench, Doom(at=step + deaths // 2)):
        deaths += 1
        assert deaths < 500
    check(bench)
    bench.close()
