"""Specialists take turns, edits can be made on other experiments than the best, and a long streak changes something."""

from __future__ import annotations

import re
from pathlib import Path

from autoresearchd.domain.labels import Status
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.research_state import ResearchState
from tests.fakes.bench import TASK, Bench

ROLES = "roles: [{name: a, surface: SCALE}, {name: b, surface: WIDTH}, {name: c}]\n"
PUCT = "proposing: {parents: puct}\n"


class Endless:
    """Never the same program twice, and never a better one than the first keep."""

    name, repairs = "endless", 0

    def __init__(self) -> None:
        self.states: list[ResearchState] = []

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        self.states.append(state)
        value = 2.0 if state.number == 1 else 3.0 + state.number
        text = re.sub(r"SCALE = .*", f"SCALE = {value}", state.code["train.py"])
        return Proposal({"train.py": text}, "h", self.name, f"→ {value}", role=state.role)


def test_roles_take_turns_and_each_turn_is_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK + ROLES)
    bench.policy = Endless()
    bench.run(5)
    stored = [e.proposal.role for e in bench.experiments()[1:] if e.proposal]
    assert stored == ["a", "b", "c", "a", "b"]


def test_with_puct_edits_are_made_on_other_experiments_than_the_best_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK + PUCT)
    policy = bench.policy = Endless()
    bench.run(12)
    assert len({state.parent for state in policy.states}) >= 3
    incumbents = {state.incumbent for state in policy.states[2:]}
    assert len(incumbents) == 1
    assert sum(bench.store.visits(bench.session.id).values()) >= 10
    kept = [e.number for e in bench.experiments() if e.decision and e.decision.status == "keep"]
    assert kept == [0, 1]
    assert bench.workspace().tip() == bench.store.session("t").incumbent


class Climber:
    """On whatever parent: moves half of the way to the best program."""

    name, repairs = "climber", 0

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        found = re.search(r"SCALE = (.*)", state.code["train.py"])
        assert found is not None
        value = round((float(found[1]) + 2.0) / 2 + 1e-3 * state.number, 6)
        return Proposal({"train.py": f"SCALE = {value}\n"}, "h", self.name, f"→ {value}")


def test_a_keep_on_an_older_parent_is_committed_on_the_incumbent(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK + PUCT)
    bench.policy = Climber()
    bench.run(10)
    experiments = bench.experiments()
    kept = [e for e in experiments if e.decision and e.decision.status is Status.KEEP]
    line = bench.line()
    assert line[-len(kept) :] == [e.commit for e in kept]
    for e in kept[1:]:
        assert e.proposal is not None
        assert e.commit is not None
        assert bench.workspace().read(e.commit, "train.py") == e.proposal.files["train.py"]
