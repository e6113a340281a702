"""Rounds: several proposals from one frozen state, all of them run, and the best of them is what stays."""

from __future__ import annotations

import re
from pathlib import Path

from autoresearchd.domain.labels import Status
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.research_state import ResearchState
from tests.fakes.bench import TASK, Bench

GROUP = TASK + "proposing: {group: 3}\n"


class InTurn:
    """Experiment n gets the n-th value; remembers what it was shown."""

    name, repairs = "in turn", 0

    def __init__(self, *values: float) -> None:
        self._values, self.states = values, list[ResearchState]()

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        self.states.append(state)
        value = self._values[state.number - 1]
        text = re.sub(r"SCALE = .*", f"SCALE = {value}", state.code["train.py"])
        return Proposal(
            {"train.py": text}, "h", self.name, f"→ {value}", state_id=state.state_id, round_id=state.round_id
        )


def test_members_of_a_round_see_one_state_and_build_on_one_commit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=GROUP)
    policy = bench.policy = InTurn(1.5, 2.0, 1.8, 1.9)
    bench.run(4)
    first = policy.states[:3]
    assert len({state.state_id for state in first}) == 1
    assert len({state.round_id for state in first}) == 1
    assert len({state.parent for state in first}) == 1
    assert len({state.seed for state in first}) == 3, "or they would all propose the same"
    assert all(state.code["train.py"] == "SCALE = 1.0\n" for state in first)
    assert policy.states[3].round_id != first[0].round_id
    assert policy.states[3].code["train.py"] == "SCALE = 2.0\n", "the next round builds on the best of this one"


def test_the_best_of_a_round_stays_whichever_came_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=GROUP)
    bench.policy = InTurn(1.5, 2.0, 1.8)
    bench.run(3)
    status = [e.decision.status for e in bench.experiments() if e.decision]
    assert status == [Status.KEEP, Status.KEEP, Status.KEEP, Status.DISCARD]
    assert bench.program() == "SCALE = 2.0\n"
