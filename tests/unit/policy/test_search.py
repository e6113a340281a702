"""The search learns from the history and from nothing else, beats chance, and stays quick and small."""

from __future__ import annotations

import hashlib
import statistics
import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.experiment import Trial
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.task import Direction, Metric, Search
from autoresearchd.policy.search.find_constants import find
from autoresearchd.policy.search.memory import Coupling, Memory
from autoresearchd.policy.search.parameter import Value
from autoresearchd.policy.search.search_policies import RandomPolicy, SearchPolicy
from tests.fakes.policies import MemoryHistory, make_state, make_task

from .synthetic import PROBLEMS, TOY, apply, research

BASE = "a" * 40
BASELINE = Trial(0, BASE, BASE, {}, Status.KEEP, Label.NONE, 1.0)


def discard(number: int, changes: Mapping[str, Value], value: float, parent: str = BASE) -> Trial:
    return Trial(number, parent, f"{number:040x}", changes, Status.DISCARD, Label.NO_GAIN, value)


def crash(number: int, changes: Mapping[str, Value], label: Label = Label.OOM) -> Trial:
    return Trial(number, BASE, f"{number:040x}", changes, Status.CRASH, label, None)


def proposals(history: MemoryHistory, count: int, code: str = TOY, parent: str = BASE) -> list[Mapping[str, Value]]:
    policy, cancel = SearchPolicy(history, lambda _: {"train.py": TOY}), threading.Event()
    found = []
    for seed in range(count):
        state = make_state(code, number=900 + seed, seed=seed, parent=parent, sigma=0.002)
        found.append(policy.propose(state, cancel).changes)
    return found


def long_history(count: int) -> MemoryHistory:
    """Mostly discards on one incumbent, some crashes."""
    parameters, history = find(TOY), MemoryHistory([BASELINE])
    for number in range(1, count + 1):
        digest = hashlib.sha256(str(number).encode()).digest()
        changes: dict[str, Value] = {}
        for byte in digest[: 1 + digest[9] % 3]:
            parameter = parameters[byte % len(parameters)]
            low, high = parameter.bounds() if parameter.numeric else (0.0, 0.0)
            changes[parameter.name] = (
                parameter.at(low + (high - low) * digest[8] / 255) if parameter.numeric else parameter.others()[0]
            )
        value = 1.0 + 0.01 * digest[3] / 255
        history.add(crash(number, changes) if digest[4] < 10 else discard(number, changes, value))
    return history


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(name, marks=[] if name in ("needle", "separable") else pytest.mark.nightly)
        for name in sorted(PROBLEMS)
    ],
)
def test_forty_experiments_of_search_end_better_than_forty_at_random(problem: str) -> None:
    searched = [research(SearchPolicy, PROBLEMS[problem], seed=s).best for s in range(4)]
    drawn = [research(lambda *_: RandomPolicy(), PROBLEMS[problem], seed=s).best for s in range(4)]
    assert statistics.mean(searched) < statistics.mean(drawn)


@pytest.mark.parametrize("kind", ["search", "random"])
def test_no_proposal_leaves_the_bounds_that_a_person_gave(kind: str) -> None:
    """Rows that keep the tokens of a pass would do so here, and a proposal outside would be no proposal at all."""
    code = "SEQ_LEN = 256\nDEVICE_BATCH_SIZE = 8  # range: 6..10\nLR = 0.1\nBETA = 0.9\nOPT = 'a'\n"
    bounds = Search(fixed=("BETA",), ranges={"train.py:LR": (0.09, 0.2)}, choices={"OPT": ("a", "b")})
    task = replace(make_task(), search=bounds)
    policy = SearchPolicy(MemoryHistory([BASELINE])) if kind == "search" else RandomPolicy()
    lengths, names = set(), set()
    for seed in range(40):
        state = replace(make_state(code, number=1, seed=seed, parent=BASE, sigma=0.002), task=task)
        changes = policy.propose(state, threading.Event()).changes
        names |= set(changes)
        lengths.add(changes.get("train.py:SEQ_LEN"))
        assert 6 <= int(changes.get("train.py:DEVICE_BATCH_SIZE", 8)) <= 10
        assert 0.09 <= float(changes.get("train.py:LR", 0.1)) <= 0.2
        assert changes.get("train.py:OPT", "a") in ("a", "b")
    assert {128, 512} & lengths and {"train.py:LR", "train.py:OPT"} <= names
    assert "train.py:BETA" not in names


def test_a_restarted_search_proposes_what_the_old_one_would_have() -> None:
    history, cancel = MemoryHistory([BASELINE]), threading.Event()
    old = SearchPolicy(history)
    for trial in long_history(400).items[1:]:
        history.add(trial)
        if trial.number % 40 == 0:
            state = make_state(TOY, number=trial.number + 1, seed=trial.number, parent=BASE, sigma=0.002)
            assert old.propose(state, cancel) == SearchPolicy(history).propose(state, cancel)


def test_a_direction_that_helped_is_followed_further() -> None:
    better = apply(TOY, {"train.py:MATRIX_LR": 0.06})
    kept = Trial(1, BASE, "b" * 40, {"train.py:MATRIX_LR": 0.06}, Status.KEEP, Label.NONE, 0.95)
    history = MemoryHistory([BASELINE, kept])
    for number, name in enumerate(("DEPTH", "SOFTCAP", "INIT_SCALE", "BATCH_SIZE"), start=2):
        parameter = next(p for p in find(TOY) if p.label == name)
        changes = {parameter.name: parameter.at(parameter.place(parameter.value) + parameter.range.step)}
        history.add(discard(number, changes, 0.97, parent="b" * 40))
    rates = [c["train.py:MATRIX_LR"] for c in proposals(history, 20, better, "b" * 40) if "train.py:MATRIX_LR" in c]
    assert len(rates) >= 5
    assert sum(float(r) > 0.06 for r in rates) > 0.8 * len(rates)


def test_a_step_that_hurt_makes_the_search_turn_round() -> None:
    history = MemoryHistory([BASELINE, discard(1, {"train.py:MATRIX_LR": 0.06}, 1.03)])
    rates = [c["train.py:MATRIX_LR"] for c in proposals(history, 40) if "train.py:MATRIX_LR" in c]
    assert rates
    assert all(float(r) < 0.04 for r in rates)


def test_nothing_is_tried_twice_on_one_incumbent() -> None:
    history = long_history(300)
    done = {frozenset(t.changes.items()) for t in history.items}
    assert all(frozenset(c.items()) not in done for c in proposals(history, 30))


def test_what_ran_out_of_memory_is_not_tried_again_nor_anything_beyond() -> None:
    history = MemoryHistory(
        [BASELINE, crash(1, {"train.py:DEPTH": 5}), crash(2, {"train.py:MLP_RATIO": 5}, Label.ERROR)]
    )
    for changes in proposals(history, 60):
        assert float(changes.get("train.py:DEPTH", 4)) < 5
        assert changes.get("train.py:MLP_RATIO") != 5


def test_words_say_what_changes_and_why() -> None:
    proposal = after_a_lower_rate(delta=-0.05)
    new = proposal.changes["train.py:LR"]
    assert proposal.description == f"LR 0.04 → {new:.6g}"
    assert proposal.hypothesis.startswith(f"A higher LR (0.04 → {new:.6g}) may converge faster within the budget")
    assert "the other way cost -0.05 in experiment 1" in proposal.hypothesis
    assert proposal.asi.next_action_hint.startswith("if it helps, try LR = ")


def after_a_lower_rate(*, delta: float | None, value: float = 1.05) -> Proposal:
    """What is proposed after an experiment with half of the rate, which was decided on by ``delta``."""
    history = MemoryHistory([replace(discard(1, {"train.py:LR": 0.02}, value), delta=delta)])
    state = make_state("LR = 0.04\n", seed=3, parent=BASE, sigma=0.002, baseline=1.0)
    return SearchPolicy(history).propose(state, threading.Event())


def test_a_keep_that_lost_its_place_is_remembered_as_after_a_restart() -> None:
    """Else a search would go on to build on what it has seen to fail."""
    kept = Trial(1, BASE, "b" * 40, {"LR": 0.2}, Status.KEEP, Label.NONE, 0.5, 0.5)
    after = discard(2, {"LR": 0.3}, 0.9)
    memory = Memory(Metric("loss", Direction.MINIMIZE))
    memory.refresh(MemoryHistory([BASELINE, kept]))
    history = MemoryHistory([BASELINE, replace(kept, status=Status.CRASH, label=Label.ERROR, value=None), after])
    memory = memory.refresh(history)
    anew = Memory(Metric("loss", Direction.MINIMIZE))
    anew.refresh(history)
    assert memory == anew and memory.effects({}, 1.0)[0].failed


@pytest.mark.parametrize("label", [Label.CONSTRAINT, Label.SIZE_BLOCKED, Label.GATE_MISS])
def test_a_better_value_that_may_not_be_kept_is_no_gain_to_go_on_from(label: Label) -> None:
    memory = Memory(Metric("loss", Direction.MINIMIZE))
    memory.refresh(MemoryHistory([replace(discard(1, {"LR": 0.08}, 0.8), label=label)]))
    (effect,) = memory.effects({}, 1.0)
    assert (effect.failed, effect.gain) == (True, None)


@pytest.mark.parametrize("policy", [SearchPolicy(MemoryHistory()), RandomPolicy()], ids=["search", "random"])
def test_a_file_with_nothing_to_tune_says_how_to_hint_it(policy: SearchPolicy | RandomPolicy) -> None:
    with pytest.raises(PolicyError, match="nothing to tune") as caught:
        policy.propose(make_state("print('hello')\n"), threading.Event())
    assert "LEARNING_RATE" in caught.value.hint


def test_a_small_space_that_is_used_up_ends_in_a_clear_error() -> None:
    code = 'USE_BIAS = True\nMODE = "a"  # one of: "a", "b"\n'
    history = MemoryHistory([BASELINE])
    for number, changes in enumerate(
        [{"train.py:USE_BIAS": False}, {"train.py:MODE": "b"}, {"train.py:USE_BIAS": False, "train.py:MODE": "b"}],
        start=1,
    ):
        history.add(discard(number, changes, 1.1))
    with pytest.raises(PolicyError, match="have been tried"):
        SearchPolicy(history).propose(make_state(code, parent=BASE), threading.Event())


def test_trials_of_other_policies_do_not_confuse_it() -> None:
    history = MemoryHistory(
        [
            Trial(3, "f" * 40, "e" * 40, {}, Status.KEEP, Label.NONE, 0.9),
            discard(4, {"train.py:GONE": 3}, 0.8, parent="e" * 40),
            discard(5, {"train.py:MATRIX_LR": "a text"}, 0.7, parent="e" * 40),
            discard(6, {"train.py:MATRIX_LR": 0.1, "junk": [1]}, float("nan"), parent="e" * 40),
            Trial(7, "e" * 40, "d" * 40, {"train.py:WINDOW_PATTERN": 3}, Status.KEEP, Label.SIMPLER, 0.9),
        ]
    )
    assert all(proposals(history, 5, parent="d" * 40))


# ---------------------------------------------------------------------- coupling
MISFIT = (
    "error: training exited with 1: ValueError: operands could not be broadcast together with shapes (64,10) (14,)."
)
DIVIDES = "error: training exited with 1: AssertionError: n_embd must be divisible by n_head."

ALONE = "HIDDEN_DIM = 24\nLEARNING_RATE = 0.04\nDROPOUT = 0.1\nMOMENTUM = 0.9\n"
HEADS = "N_HEAD = 4\nN_EMBD = 96\nLEARNING_RATE = 0.04\nDROPOUT = 0.1\nMOMENTUM = 0.9\n"
HIDDEN, HEAD = "train.py:HIDDEN_DIM", "train.py:N_HEAD"


def misfit(number: int, changes: Mapping[str, Value], reason: str = MISFIT, parent: str = BASE) -> Trial:
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
    found = ask(ALONE, misfit(1, {HIDDEN: 32}), misfit(2, {HIDDEN: 18}))
    assert all(HIDDEN not in p.changes for p in found)
    assert all("left alone, for it fits no other value: HIDDEN_DIM" in p.hypothesis for p in found)


def test_of_a_bundle_that_failed_the_constant_that_never_ran_is_to_blame() -> None:
    both = {HIDDEN: 18, "train.py:DROPOUT": 0.3}
    found = ask(ALONE, worse(1, {"train.py:DROPOUT": 0.3}), misfit(2, {HIDDEN: 32}), misfit(3, both))
    assert all(HIDDEN not in p.changes for p in found)


def test_a_constant_that_failed_takes_no_other_change_down_with_it() -> None:
    near = Trial(1, BASE, f"{1:040x}", {"train.py:LEARNING_RATE": 0.06}, Status.DISCARD, Label.NO_GAIN, 0.996)
    hidden = [p.changes for p in ask(ALONE, near, misfit(2, {HIDDEN: 18}), count=150) if HIDDEN in p.changes]
    assert hidden
    assert all(len(changes) == 1 for changes in hidden)


@pytest.mark.parametrize(
    "trials",
    [
        (misfit(1, {HIDDEN: 32}),),
        (misfit(1, {HIDDEN: 32}), misfit(2, {HIDDEN: 18}), worse(3, {HIDDEN: 28})),
        (misfit(1, {HIDDEN: 32}), misfit(2, {HIDDEN: 18, "train.py:DROPOUT": 0.5})),
        (misfit(1, {HIDDEN: 32}), misfit(2, {HIDDEN: 18}, parent="b" * 40)),
        (misfit(1, {HIDDEN: 32}), misfit(2, {HIDDEN: 18}, "error: training was ended by signal 11.")),
    ],
    ids=["once", "ran with another value", "in a bundle", "on another lineage", "no error of shape"],
)
def test_a_constant_is_not_given_up_for_less(trials: tuple[Trial, ...]) -> None:
    memory = Memory(make_task().metric)
    memory.refresh(MemoryHistory([BASELINE, *trials]))
    parameters = {p.name: p for p in find(ALONE)}
    assert Coupling(parameters, memory, {BASE}).dropped == {}


def test_after_a_head_count_that_does_not_divide_the_width_only_those_that_do_are_tried() -> None:
    found = ask(HEADS, misfit(1, {HEAD: 5}, DIVIDES), count=300)
    heads = {int(p.changes[HEAD]) for p in found if HEAD in p.changes}
    assert heads, "a constant with values that fit is not given up"
    assert all(96 % h == 0 for h in heads)
