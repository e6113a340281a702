"""The search learns from the history and from nothing else, beats chance, and stays quick and small."""

from __future__ import annotations

import math
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.experiment import Trial
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Policy, ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.task import Direction, Metric, Search
from autoresearchd.policy.search.find_constants import find
from autoresearchd.policy.search.memory import Coupling, Memory, where
from autoresearchd.policy.search.parameter import Value
from autoresearchd.policy.search.search_policies import RandomPolicy, SearchPolicy, draw
from tests.fakes.policies import MemoryHistory, make_state, make_task

from .synthetic import TOY, apply

BASE = "a" * 40
BASELINE = Trial(0, BASE, BASE, {}, Status.KEEP, Label.NONE, 1.0)


def discard(number: int, changes: Mapping[str, Value], value: float = 1.02, parent: str = BASE) -> Trial:
    return Trial(number, parent, f"{number:040x}", changes, Status.DISCARD, Label.NO_GAIN, value)


def crash(
    number: int, changes: Mapping[str, Value], label: Label = Label.OOM, reason: str = "", parent: str = BASE
) -> Trial:
    return Trial(number, parent, f"{number:040x}", changes, Status.CRASH, label, None, reason=reason)


def ask(code: str, *trials: Trial, count: int = 40, parent: str = BASE, root: str = "") -> list[Proposal]:
    """What the search proposes after some trials, for many seeds. root: the program that the session began with."""
    policy = SearchPolicy(MemoryHistory([BASELINE, *trials]), lambda _: {"train.py": root or code})
    value = next((t.value for t in trials if t.commit == parent), 1.0)
    same = {"parent": parent, "sigma": 0.002, "incumbent_value": value}
    return [policy.propose(make_state(code, number=10 + s, seed=s, **same), threading.Event()) for s in range(count)]


def rates(code: str, *trials: Trial, count: int, parent: str = BASE) -> list[float]:
    """The values of MATRIX_LR among what is proposed."""
    name = "train.py:MATRIX_LR"
    return [
        float(p.changes[name]) for p in ask(code, *trials, count=count, parent=parent, root=TOY) if name in p.changes
    ]


def long_history(count: int) -> list[Trial]:
    """Mostly discards on one incumbent, some crashes."""
    parameters, random = {p.name: p for p in find(TOY)}, np.random.default_rng(0)
    drawn = [draw(parameters, random) for _ in range(count)]
    return [crash(n, c) if n % 25 == 0 else discard(n, c, 1 + 0.01 * random.random()) for n, c in enumerate(drawn, 1)]


# ---------------------------------------------------------------------- simulated sessions
Constants = Mapping[str, Any]


def log(value: float, best: float) -> float:
    """Distance in octaves."""
    return math.log2(max(value, 1e-9) / best)


def separable(v: Constants) -> float:
    """Seven constants that each have a best value of their own."""
    rates = 0.03 * log(v["MATRIX_LR"], 0.012) ** 2 + 0.01 * log(v["EMBEDDING_LR"], 1.2) ** 2
    sizes = 0.02 * log(v["BATCH_SIZE"], 2**12) ** 2 + 0.004 * (v["DEPTH"] - 6) ** 2
    shares = 0.2 * (v["WEIGHT_DECAY"] - 0.05) ** 2 + 0.15 * (v["WARMDOWN_RATIO"] - 0.8) ** 2
    return float(1.0 + rates + sizes + shares + 0.02 * log(v["INIT_SCALE"], 0.5) ** 2)


def needle(v: Constants) -> float:
    """Of twenty constants four matter, two of them choices."""
    choices = {"SSSL": 0.06, "SSL": 0.04, "SL": 0.02, "L": 0.0}.get(v["WINDOW_PATTERN"], 0.06) + 0.03 * v["USE_BIAS"]
    return float(1.5 + choices + 0.02 * log(v["ROPE_BASE"], 40_000) ** 2 + 0.03 * log(1 - v["MOMENTUM"], 0.12) ** 2)


class Night:
    """A session that begins with a program of some value, and what of it a search looks at."""

    def __init__(self, code: str, value: float, sigma: float, *trials: Trial) -> None:
        self.code, self.parent, self.value, self.baseline, self.sigma = code, BASE, value, value, sigma
        self.history, self.codes = MemoryHistory(trials), {BASE: {"train.py": code}}

    def state(self, number: int, **fields: Any) -> ResearchState:
        now = {"parent": self.parent, "incumbent_value": self.value, "baseline": self.baseline, "sigma": self.sigma}
        return make_state(self.code, **{"number": number, "seed": number, **now, **fields})

    def decide(self, number: int, proposal: Proposal, value: float, *, keep: bool) -> None:
        commit = f"{number:040x}"
        status, label = (Status.KEEP, Label.NONE) if keep else (Status.DISCARD, Label.NO_GAIN)
        self.history.add(Trial(number, self.parent, commit, proposal.changes, status, label, value))
        if keep:
            self.code, self.parent, self.value = proposal.files["train.py"], commit, value
            self.codes[commit] = dict(proposal.files)


def research(make: Callable[..., Policy], loss: Callable[[Constants], float], seed: int) -> float:
    """The true loss of the last program of forty experiments that are measured with noise and honestly judged."""
    noise, sigma = np.random.default_rng([seed, 77]), 0.004
    true = loss({p.label: p.value for p in find(TOY)})
    night = Night(TOY, true + sigma / math.sqrt(3) * float(noise.standard_normal()), sigma)
    policy = make(night.history, night.codes.__getitem__)
    for number in range(1, 41):
        proposal = policy.propose(night.state(number), threading.Event())
        reached = loss({p.label: p.value for p in find(proposal.files["train.py"])})
        measured = reached + sigma * float(noise.standard_normal())
        keep = night.value - measured > 2 * math.sqrt(2) * sigma
        night.decide(number, proposal, measured, keep=keep)
        true = reached if keep else true
    return true


def test_forty_experiments_of_search_end_better_than_forty_at_random() -> None:
    searched = [research(SearchPolicy, separable, seed) for seed in range(4)]
    drawn = [research(lambda *_: RandomPolicy(), separable, seed) for seed in range(4)]
    assert statistics.mean(searched) < statistics.mean(drawn)


def test_a_needle_among_twenty_constants_is_found_in_forty_experiments() -> None:
    assert statistics.median(research(SearchPolicy, needle, seed) for seed in range(7)) < 1.52


def right_after(seed: int, unit: float = 1.0) -> int:
    """How many experiments it takes until four choices of five are right; the score is their count, without noise."""
    slots = {"LOADER": "abcde", "FILTER": "fghij", "SOLVER": "klmno", "WRITER": "pqrst"}
    code = "".join(f'{name} = "{options[0]}"  # one of: {", ".join(options)}\n' for name, options in slots.items())
    night, task = Night(code, 0.0, 0.0, replace(BASELINE, value=0.0)), make_task(direction=Direction.MAXIMIZE)
    for number in range(1, 61):
        state = night.state(number, seed=1000 * seed + number, task=task)
        proposal = SearchPolicy(night.history, night.codes.__getitem__).propose(state, threading.Event())
        found = find(proposal.files["train.py"])
        count = float(sum(p.value == r for p, r in zip(found, "djlr", strict=True)))
        if count == 4:
            return number
        night.decide(number, proposal, unit * count, keep=unit * count > night.value)
    return 61


def test_where_most_edits_change_nothing_what_is_known_to_be_wrong_is_not_tried_once_more() -> None:
    """One after the other, each option once at most, it takes 10 on average and 16 at most."""
    found = [right_after(seed) for seed in range(8)]
    assert statistics.mean(found) <= 12 and max(found) <= 16, found


def test_the_metrics_unit_changes_nothing() -> None:
    """It was blind for effects of 1e-13, and before the first effect where there is no noise."""
    assert [right_after(seed, 1e-14) for seed in range(4)] == [right_after(seed) for seed in range(4)]


# ---------------------------------------------------------------------- how far it goes
SMALL = "LEARNING_RATE = 1e-5\nBATCH_SIZE = 64\nHIDDEN_DIM = 128\nWEIGHT_DECAY = 0.01\nDROPOUT = 0.1\nMOMENTUM = 0.9\n"
RATE = "train.py:LEARNING_RATE"


def steps(code: str, *trials: Trial, **fields: Any) -> dict[str, list[float]]:
    """How many moderate steps each number is moved by what is proposed."""
    policy, found = SearchPolicy(MemoryHistory([BASELINE, *trials])), defaultdict(list)
    parameters = {p.name: p for p in find(code)}
    for seed in range(40):
        state = make_state(code, number=10, seed=seed, parent=BASE, sigma=0.002, **fields)
        for name, value in policy.propose(state, threading.Event()).changes.items():
            if parameters[name].numeric:
                found[name].append(abs(where(parameters[name], value)))
    return found


def experiments_to_find_a_rate(seed: int) -> int:
    """How many it takes until a learning rate that is 1,000 times too low is within a factor of three of the best."""
    noise, night = np.random.default_rng([seed, 5]), Night(SMALL, 3.0, 0.01, replace(BASELINE, value=3.0))
    for number in range(1, 31):
        policy = SearchPolicy(night.history, night.codes.__getitem__)
        proposal = policy.propose(night.state(number), threading.Event())
        v = {p.label: p.value for p in find(proposal.files["train.py"])}
        if abs(away := math.log10(float(v["LEARNING_RATE"]) / 1e-2)) < math.log10(3):
            return number
        measured = 1.0 + 0.67 * abs(away) + 0.01 * float(noise.standard_normal())
        night.decide(number, proposal, measured, keep=measured < night.value - 0.01)
    return 99


def test_a_learning_rate_a_thousand_times_too_low_costs_no_night() -> None:
    assert statistics.median(experiments_to_find_a_rate(seed) for seed in range(7)) <= 5


def test_a_good_program_is_not_thrown_far_away_before_anything_is_known() -> None:
    assert max(max(found) for found in steps(TOY).values()) < 2.6  # two, and what rounding to powers of two adds


def test_where_the_clock_ends_a_run_cheaper_steps_are_tried_first() -> None:
    """Recipes come from longer runs: in minutes a smaller model gets through more, and that is most of what there is
    to gain. Where a run ends by itself its price is none of the search's business."""
    sizes = {"train.py:BATCH_SIZE", "train.py:DEPTH", "train.py:MODEL_DIM", "train.py:SHORT_WINDOW"}
    old = {p.name: p.value for p in find(TOY)}

    def cheaper(code: str) -> int:
        changes = [p.changes for p in ask(code)]
        return sum(any(name in sizes and float(v) < float(old[name]) for name, v in c.items()) for c in changes)

    assert cheaper(f"{TOY}\nos.environ['AUTORESEARCHD_TIME_BUDGET']\n") >= 20 > 12 >= cheaper(TOY)


def test_all_that_a_person_said_to_be_possible_is_in_reach_at_once() -> None:
    ranged = SMALL.replace("1e-5", "1e-5  # range: 1e-6..1")
    assert max(steps(ranged)[RATE]) > 4 > max(steps(SMALL)[RATE])


@pytest.mark.parametrize("value", ["10.0", "1e6", "-10.0", "-1e6", "1.5", "-0.5"])
@pytest.mark.parametrize("name", ["WARMUP_FRAC", "DROPOUT", "LEARNING_RATE"])
def test_a_constant_far_outside_of_its_range_comes_into_it(name: str, value: str) -> None:
    found = {p.changes[f"train.py:{name}"] for p in ask(f"{name} = {value}  # range: 0..1\n", count=8)}
    assert len(found) > 1 and all(0 <= float(v) <= 1 for v in found)


def test_a_whole_number_far_outside_of_its_range_comes_into_it() -> None:
    for value, low, high in ((10_000, 8, 64), (1, 200, 256)):
        found = {p.changes["train.py:N_THINGS"] for p in ask(f"N_THINGS = {value}  # range: {low}..{high}\n", count=8)}
        assert len(found) > 1 and all(low <= int(v) <= high for v in found)


def test_of_hundreds_of_constants_the_most_important_are_weighed() -> None:
    """Each move is weighed against each other: a table of thousands would take minutes, and gigabytes."""
    many = "".join(f"W_{i} = 0.5\n" for i in range(1500))
    assert next(iter(ask(f"{many}LEARNING_RATE = 1e-4\n", count=1))).changes


def test_a_search_that_is_stuck_dares_more() -> None:
    assert max(max(found) for found in steps(TOY, streak=16).values()) > 4


# ---------------------------------------------------------------------- what is proposed
@pytest.mark.parametrize("kind", ["search", "random"])
def test_no_proposal_leaves_the_bounds_that_a_person_gave(kind: str) -> None:
    """Rows that keep the tokens of a pass would do so here, and a proposal outside would be no proposal at all."""
    code = "SEQ_LEN = 256\nDEVICE_BATCH_SIZE = 8  # range: 6..10\nLR = 0.1\nBETA = 0.9\nOPT = 'a'\n"
    bounds = Search(fixed=("BETA",), ranges={"train.py:LR": (0.09, 0.2)}, choices={"OPT": ("a", "b")})
    task = make_task(search=bounds)
    history = MemoryHistory([BASELINE])
    policy = SearchPolicy(history) if kind == "search" else RandomPolicy()
    lengths, names = set(), set()
    for seed in range(80):
        if seed == 40:  # what has bounds is tried first, as all between them is in reach
            history.add(discard(1, {"train.py:LR": 0.2}, 1.1))
            history.add(discard(2, {"train.py:LR": 0.09}, 1.1))
            history.add(discard(3, {"train.py:OPT": "b"}, 1.1))
        state = make_state(code, task=task, seed=seed, parent=BASE, sigma=0.002)
        changes = policy.propose(state, threading.Event()).changes
        names |= set(changes)
        lengths.add(changes.get("train.py:SEQ_LEN"))
        assert 6 <= int(changes.get("train.py:DEVICE_BATCH_SIZE", 8)) <= 10
        assert 0.09 <= float(changes.get("train.py:LR", 0.1)) <= 0.2
        assert changes.get("train.py:OPT", "a") in ("a", "b")
    assert {128, 512} & lengths and {"train.py:LR", "train.py:OPT"} <= names
    assert "train.py:BETA" not in names


def test_a_restarted_search_proposes_what_the_old_one_would_have() -> None:
    history = MemoryHistory([BASELINE])
    old = SearchPolicy(history)
    for trial in long_history(200):
        history.add(trial)
        if trial.number % 40 == 0:
            state = make_state(TOY, number=trial.number + 1, seed=trial.number, parent=BASE, sigma=0.002)
            assert old.propose(state, threading.Event()) == SearchPolicy(history).propose(state, threading.Event())


def test_a_direction_that_helped_is_followed_further() -> None:
    trials = [Trial(1, BASE, "b" * 40, {"train.py:MATRIX_LR": 0.06}, Status.KEEP, Label.NONE, 0.95)]
    for number, (name, value) in enumerate([("DEPTH", 5), ("SOFTCAP", 22), ("INIT_SCALE", 1.5)], 2):
        trials.append(discard(number, {f"train.py:{name}": value}, 0.97, parent="b" * 40))
    better = apply(TOY, {"train.py:MATRIX_LR": 0.06})
    found = rates(better, *trials, count=20, parent="b" * 40)
    assert len(found) >= 5
    assert sum(rate > 0.06 for rate in found) > 0.8 * len(found)


def test_a_step_that_hurt_makes_the_search_turn_round() -> None:
    found = rates(TOY, discard(1, {"train.py:MATRIX_LR": 0.06}, 1.03), count=40)
    assert found and max(found) < 0.04


def test_nothing_is_tried_twice_on_one_incumbent() -> None:
    trials = long_history(300)
    done = {frozenset(t.changes.items()) for t in trials}
    assert all(frozenset(p.changes.items()) not in done for p in ask(TOY, *trials, count=30))


def test_what_ran_out_of_memory_is_not_tried_again_nor_anything_beyond() -> None:
    trials = crash(1, {"train.py:DEPTH": 5}), crash(2, {"train.py:MLP_RATIO": 5}, Label.ERROR)
    for proposal in ask(TOY, *trials, count=60):
        assert float(proposal.changes.get("train.py:DEPTH", 4)) < 5
        assert proposal.changes.get("train.py:MLP_RATIO") != 5


def test_words_say_what_changes_and_why() -> None:
    history = MemoryHistory([replace(discard(1, {"train.py:LR": 0.02}, 1.05), delta=-0.05)])
    state = make_state("LR = 0.04\n", seed=3, parent=BASE, sigma=0.002, baseline=1.0)
    proposal = SearchPolicy(history).propose(state, threading.Event())
    new = proposal.changes["train.py:LR"]
    assert proposal.description == f"LR 0.04 → {new:.6g}"
    assert proposal.hypothesis.startswith(f"A higher LR (0.04 → {new:.6g}) may converge faster within the budget")
    assert "the other way cost -0.05 in experiment 1" in proposal.hypothesis
    assert proposal.asi.next_action_hint.startswith("if it helps, try LR = ")


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
    bias: dict[str, Value] = {"train.py:USE_BIAS": False}
    mode: dict[str, Value] = {"train.py:MODE": "b"}
    with pytest.raises(PolicyError, match="have been tried"):
        ask(code, discard(1, bias), discard(2, mode), discard(3, {**bias, **mode}))


def test_a_partner_with_a_range_of_its_own_is_left_where_it_is() -> None:
    """Else the same move, which cannot be made, would be proposed for ever."""
    code = "WIDTH = 64  # range: 16..256\nBATCH = 64  # range: 32..128\nLEARNING_RATE = 0.04\n"
    wide = crash(1, {"train.py:WIDTH": 256}, Label.ERROR, MISFIT)
    assert all(p.changes and p.changes.get("train.py:BATCH", 64) <= 128 for p in ask(code, wide))  # type: ignore[operator]


def test_a_length_that_may_be_nothing_is_no_trouble() -> None:
    """Rows beside it would be as many as go into nothing."""
    code = "PREFIX_LEN = 4  # range: 0..16\nDEVICE_BATCH_SIZE = 8\n"
    assert all(p.changes for p in ask(code))


def test_a_share_that_is_written_as_nothing_may_be_a_fraction() -> None:
    found = {p.changes["train.py:DROPOUT"] for p in ask("DROPOUT = 0  # range: 0..1\n", count=10)}
    assert all(isinstance(v, float) and 0 < v <= 1 for v in found) and len(found) > 1


def test_a_literal_with_two_names_is_one_constant() -> None:
    """Two replacements in one place would write a value that nobody chose."""
    found = find('group = {"params": 3, "lr": 0.1}\nprint(group)\n')
    assert len({p.start for p in found}) == len(found)


@pytest.mark.parametrize("name", ["RANDOM_STATE", "random_state", "split_random_state"])
def test_the_state_of_random_numbers_is_a_seed(name: str) -> None:
    assert find(f"{name} = 42\nLEARNING_RATE = 0.1\n")[0].label == "LEARNING_RATE"


def test_what_another_machine_measured_is_compared_with_nothing_of_today() -> None:
    """There the same program had another level: all that was tried on it would look like a gain."""
    memory = Memory(Metric("val_bpb", Direction.MINIMIZE))
    again = Trial(3, BASE, "9" * 40, {}, Status.KEEP, Label.NONE, 2.0, segment=1)
    old = [discard(1, {"train.py:MATRIX_LR": 0.06}), discard(2, {"train.py:MATRIX_LR": 0.02}, 0.99)]
    memory.refresh(MemoryHistory([BASELINE, *old, again]))
    gains = [e.gain for e in memory.effects({BASE: 2.0}, 2.0)]
    assert gains == pytest.approx([-0.02, 0.01]) and not memory.tried


def test_what_reverts_brought_back_is_the_program_that_it_was() -> None:
    """With ``history: revert`` each discard is followed by a commit of the tip's files: what was tried counts on."""
    code = 'USE_BIAS = True\nMODE = "a"  # one of: "a", "b"\n'
    first, second = discard(1, {"train.py:USE_BIAS": False}), discard(2, {"train.py:MODE": "b"}, parent="d" * 40)
    policy = SearchPolicy(MemoryHistory([BASELINE, first, second]), lambda _: {"train.py": code})
    state = make_state(code, number=9, parent="e" * 40, sigma=0.002, incumbent_value=1.0)
    state = replace(state, task=replace(state.task, history="revert"))
    assert len(policy.propose(state, threading.Event()).changes) == 2, "only both together are left"


def test_trials_of_other_policies_do_not_confuse_it() -> None:
    trials = (
        Trial(3, "f" * 40, "e" * 40, {}, Status.KEEP, Label.NONE, 0.9),
        discard(4, {"train.py:GONE": 3}, 0.8, parent="e" * 40),
        discard(5, {"train.py:MATRIX_LR": "a text"}, 0.7, parent="e" * 40),
        discard(6, {"train.py:MATRIX_LR": 0.1, "junk": [1]}, float("nan"), parent="e" * 40),  # type: ignore[dict-item]
        Trial(7, "e" * 40, "d" * 40, {"train.py:WINDOW_PATTERN": 3}, Status.KEEP, Label.SIMPLER, 0.9),
    )
    assert all(p.changes for p in ask(TOY, *trials, count=5, parent="d" * 40))


def test_what_a_constant_of_a_models_edit_brought_is_known_after_the_next_keep() -> None:
    small = "USE_BIAS = True\nDROPOUT = 0.1\n"
    gated, rate = f"GATE_LR = 0.01\n{small}", "train.py:GATE_LR"
    model, after = "b" * 40, "c" * 40
    trials = (
        Trial(1, BASE, model, {}, Status.KEEP, Label.NONE, 0.9),
        discard(2, {rate: 0.015}, 0.95, parent=model),
        Trial(3, model, after, {"train.py:USE_BIAS": False}, Status.KEEP, Label.NONE, 0.85),
    )
    codes = {BASE: small, model: gated, after: apply(gated, {"train.py:USE_BIAS": False})}
    policy = SearchPolicy(MemoryHistory([BASELINE, *trials]), lambda commit: {"train.py": codes[commit]})
    same = {"parent": after, "sigma": 0.002, "incumbent_value": 0.85}
    states = [make_state(codes[after], number=10 + seed, seed=seed, **same) for seed in range(40)]
    found = [policy.propose(state, threading.Event()).changes for state in states]
    assert [changes for changes in found if float(changes.get(rate, 0)) > 0.01] == []


# ---------------------------------------------------------------------- coupling
MISFIT = (
    "error: training exited with 1: ValueError: operands could not be broadcast together with shapes (64,10) (14,)."
)
DIVIDES = "error: training exited with 1: AssertionError: n_embd must be divisible by n_head."

ALONE = "HIDDEN_DIM = 24\nLEARNING_RATE = 0.04\nDROPOUT = 0.1\nMOMENTUM = 0.9\n"
HEADS = "N_HEAD = 4\nN_EMBD = 96\nLEARNING_RATE = 0.04\nDROPOUT = 0.1\nMOMENTUM = 0.9\n"
HIDDEN, HEAD = "train.py:HIDDEN_DIM", "train.py:N_HEAD"


def misfit(number: int, changes: Mapping[str, Value], reason: str = MISFIT, parent: str = BASE) -> Trial:
    return crash(number, changes, Label.ERROR, reason, parent)


def test_a_constant_that_crashed_twice_by_itself_is_not_tried_a_third_and_a_fourth_time() -> None:
    found = ask(ALONE, misfit(1, {HIDDEN: 32}), misfit(2, {HIDDEN: 18}))
    assert all(HIDDEN not in p.changes for p in found)
    assert all("left alone, for it fits no other value: HIDDEN_DIM" in p.hypothesis for p in found)


def test_of_a_bundle_that_failed_the_constant_that_never_ran_is_to_blame() -> None:
    both = {HIDDEN: 18, "train.py:DROPOUT": 0.3}
    found = ask(ALONE, discard(1, {"train.py:DROPOUT": 0.3}), misfit(2, {HIDDEN: 32}), misfit(3, both))
    assert all(HIDDEN not in p.changes for p in found)


def test_a_constant_that_failed_takes_no_other_change_down_with_it() -> None:
    near = discard(1, {"train.py:LEARNING_RATE": 0.06}, 0.996)
    hidden = [p.changes for p in ask(ALONE, near, misfit(2, {HIDDEN: 18}), count=150) if HIDDEN in p.changes]
    assert hidden
    assert all(len(changes) == 1 for changes in hidden)


@pytest.mark.parametrize(
    "trials",
    [
        (misfit(1, {HIDDEN: 32}),),
        (misfit(1, {HIDDEN: 32}), misfit(2, {HIDDEN: 18}), discard(3, {HIDDEN: 28})),
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
