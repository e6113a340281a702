"""Specialists take turns, edits can be made on other experiments than the best, and rounds begin from one state."""

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
GROUP = TASK + "proposing: {group: 3}\n"


class Endless:
    """The n-th value for experiment n; then never the same program twice, and never a better one than the first."""

    name, repairs = "endless", 0

    def __init__(self, *values: float) -> None:
        self._values, self.states = values or (2.0,), list[ResearchState]()

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        self.states.append(state)
        value = self._values[state.number - 1] if state.number <= len(self._values) else 3.0 + state.number
        text = re.sub(r"SCALE = .*", f"SCALE = {value}", state.code["train.py"])
        origin = {"role": state.role, "state_id": state.state_id, "round_id": state.round_id}
        return Proposal({"train.py": text}, "h", self.name, f"→ {value}", **origin)


def test_roles_take_turns_and_each_turn_is_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK + ROLES)
    bench.policy = Endless()
    bench.run(5)
    assert [e.proposal.role for e in bench.experiments()[1:]] == ["a", "b", "c", "a", "b"]


def test_with_puct_edits_are_made_on_other_experiments_than_the_best_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK + PUCT)
    policy = bench.policy = Endless()
    bench.run(12)
    assert len({state.parent for state in policy.states}) >= 3
    assert len({state.incumbent for state in policy.states[2:]}) == 1
    assert sum(bench.store.visits(bench.session.id).values()) >= 10
    assert [e.number for e in bench.experiments() if e.decision.status == "keep"] == [0, 1]
    assert bench.workspace().tip() == bench.store.session("t").incumbent


class Climber:
    """On whatever parent: moves half of the way to the best program."""

    name, repairs = "climber", 0

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        scale = float(re.search(r"SCALE = (.*)", state.code["train.py"])[1])
        value = round((scale + 2.0) / 2 + 1e-3 * state.number, 6)
        return Proposal({"train.py": f"SCALE = {value}\n"}, "h", self.name, f"→ {value}")


def test_a_keep_on_an_older_parent_is_committed_on_the_incumbent(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK + PUCT)
    bench.policy = Climber()
    bench.run(10)
    kept = [e for e in bench.experiments() if e.decision.status is Status.KEEP]
    assert bench.line()[-len(kept) :] == [e.commit for e in kept]
    for e in kept[1:]:
        assert bench.workspace().read(e.commit, "train.py") == bench.experiment(e.number).proposal.files["train.py"]


def test_members_of_a_round_see_one_state_and_build_on_one_commit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=GROUP)
    policy = bench.policy = Endless(1.5, 2.0, 1.8, 1.9)
    bench.run(4)
    first = policy.states[:3]
    assert len({(state.state_id, state.round_id, state.parent) for state in first}) == 1
    assert len({state.seed for state in first}) == 3, "or they would all propose the same"
    assert all(state.code["train.py"] == "SCALE = 1.0\n" for state in first)
    assert policy.states[3].round_id != first[0].round_id
    assert policy.states[3].code["train.py"] == "SCALE = 2.0\n", "the next round builds on the best of this one"


def test_the_best_of_a_round_stays_whichever_came_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=GROUP)
    bench.policy = Endless(1.5, 2.0, 1.8)
    bench.run(3)
    status = [e.decision.status for e in bench.experiments()]
    assert status == [Status.KEEP, Status.KEEP, Status.KEEP, Status.DISCARD]
    assert bench.program() == "SCALE = 2.0\n"
