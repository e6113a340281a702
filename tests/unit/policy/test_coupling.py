"""Constants that fit nothing by themselves cost a night: they are left alone, held to a divisor, or moved together."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from autoresearchd.domain.experiment import Trial
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.policy.search.coupling import Coupling
from autoresearchd.policy.search.find_constants import find
from autoresearchd.policy.search.memory import Memory
from autoresearchd.policy.search.parameter import Value
from autoresearchd.policy.search.search_policies import SearchPolicy
from tests.fakes.policies import MemoryHistory, make_state, make_task

BASE = "a" * 40
BASELINE = Trial(0, BASE, BASE, {}, Status.KEEP, Label.NONE, 1.0)
MISFIT = (
    "error: training exited with 1: ValueError: operands could not be broadcast together with shapes (64,10) (14,)."
)
DIVIDES = "error: training exited with 1: AssertionError: n_embd must be divisible by n_head."

ALONE = "HIDDEN_DIM = 24\nLEARNING_RATE = 0.04\nDROPOUT = 0.1\nMOMENTUM = 0.9\n"
HEADS = "N_HEAD = 4\nN_EMBD = 96\nLEARNING_RATE = 0.04\nDROPOUT = 0.1\nMOMENTUM = 0.9\n"
HIDDEN, MODEL, HEAD = "train.py:HIDDEN_DIM", "train.py:MODEL_DIM", "train.py:N_HEAD"


def crash(number: int, changes: Mapping[str, Value], reason: str = MISFIT, parent: str = BASE) -> Trial:
    return Trial(number, parent, f"{number:040x}", changes, Status.CRASH, Label.ERROR, None, reason=reason)


def worse(number: int, changes: Mapping[str, Value], parent: str = BASE) -> Trial:
    return Trial(number, parent, f"{number:040x}", changes, Status.DISCARD, Label.NO_GAIN, 1.02)


def ask(code: str, *trials: Trial, count: int = 40, parent: str = BASE, first: int = 10) -> list[Proposal]:
    """What the search proposes after some trials, for many seeds."""
    history, cancel = MemoryHistory([BASELINE, *trials]), threading.Event()
    policy = SearchPolicy(history, lambda _: {"train.py": code})
    return [
        policy.propose(make_state(code, number=first + s, seed=s, parent=parent, sigma=0.002), cancel)
        for s in range(count)
    ]


def test_a_constant_that_crashed_twice_by_itself_is_not_tried_a_third_and_a_fourth_time() -> None:
    found = ask(ALONE, crash(1, {HIDDEN: 32}), crash(2, {HIDDEN: 18}))
    assert all(HIDDEN not in p.changes for p in found)
    assert all("left alone, for it fits no other value: HIDDEN_DIM" in p.hypothesis for p in found)


def test_of_a_bundle_that_failed_the_constant_that_never_ran_is_to_blame() -> None:
    both = {HIDDEN: 18, "train.py:DROPOUT": 0.3}
    found = ask(ALONE, worse(1, {"train.py:DROPOUT": 0.3}), crash(2, {HIDDEN: 32}), crash(3, both))
    assert all(HIDDEN not in p.changes for p in found)


def test_a_constant_that_failed_takes_no_other_change_down_with_it() -> None:
    near = Trial(1, BASE, f"{1:040x}", {"train.py:LEARNING_RATE": 0.06}, Status.DISCARD, Label.NO_GAIN, 0.996)
    hidden = [p.changes for p in ask(ALONE, near, crash(2, {HIDDEN: 18}), count=150) if HIDDEN in p.changes]
    assert hidden
    assert all(len(changes) == 1 for changes in hidden)


@pytest.mark.parametrize(
    "trials",
    [
        (crash(1, {HIDDEN: 32}),),
        (crash(1, {HIDDEN: 32}), crash(2, {HIDDEN: 18}), worse(3, {HIDDEN: 28})),
        (crash(1, {HIDDEN: 32}), crash(2, {HIDDEN: 18, "train.py:DROPOUT": 0.5})),
        (crash(1, {HIDDEN: 32}), crash(2, {HIDDEN: 18}, parent="b" * 40)),
        (crash(1, {HIDDEN: 32}), crash(2, {HIDDEN: 18}, "error: training was ended by signal 11.")),
    ],
    ids=["once", "ran with another value", "in a bundle", "on another lineage", "no error of shape"],
)
def test_a_constant_is_not_given_up_for_less(trials: tuple[Trial, ...]) -> None:
    memory = Memory(make_task().metric)
    memory.refresh(MemoryHistory([BASELINE, *trials]))
    parameters = {p.name: p for p in find(ALONE)}
    assert Coupling(parameters, memory, {BASE}).dropped == {}


# ---------------------------------------------------------------------- moved together


# ---------------------------------------------------------------------- held to a divisor
def test_after_a_head_count_that_does_not_divide_the_width_only_those_that_do_are_tried() -> None:
    found = ask(HEADS, crash(1, {HEAD: 5}, DIVIDES), count=300)
    heads = {int(p.changes[HEAD]) for p in found if HEAD in p.changes}
    assert heads, "a constant with values that fit is not given up"
    assert all(96 % h == 0 for h in heads)


# ---------------------------------------------------------------------- whole sessions
