"""A promoted version answers from the next experiment on, and never from the middle of one."""

from __future__ import annotations

import threading
from dataclasses import replace

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Proposal, Repair
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.policy.model_renewal import Following
from tests.fakes.policies import make_state

STATE = make_state("LR = 1\n")


class Client:
    def __init__(self) -> None:
        self.looks = 0

    def renew(self) -> None:
        self.looks += 1


class Asking:
    """A policy that tells how often its client had looked when it was asked."""

    name, repairs = "local:m", 2

    def __init__(self, client: Client) -> None:
        self._client = client

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        if state.number == 13:
            raise PolicyError("no usable answer")
        return Proposal({}, str(self._client.looks), self.name)


def looks(states: list[ResearchState]) -> list[str]:
    policy = Following(Asking(client := Client()), client)
    return [policy.propose(state, threading.Event()).hypothesis for state in states]


def test_each_round_looks_once_and_a_repair_not_at_all() -> None:
    repair = Repair(1, {}, "error", "a typo")
    states = [
        replace(STATE, number=1, round_id="t/1"),
        replace(STATE, number=2, round_id="t/1"),
        replace(STATE, number=2, round_id="t/1/2/1", repair=repair),
        replace(STATE, number=3, round_id="t/3"),
        replace(STATE, number=3, round_id="t/3/3/1", repair=repair),
        replace(STATE, number=4, round_id="t/3"),
    ]
    assert looks(states) == ["1", "1", "1", "2", "2", "2"]


def test_without_rounds_each_experiment_looks() -> None:
    assert looks([replace(STATE, round_id="")] * 3) == ["1", "2", "3"]
