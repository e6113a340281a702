"""The gate: a policy takes the place of another only where it is surely better, and not by cheap tricks."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, t

from autoresearchd.domain.errors import Interrupted, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Search
from autoresearchd.evaluator.rules.legality import code_hash
from autoresearchd.learner.algorithms.learnable import Who
from autoresearchd.learner.gate.compare_policies import GateOptions, compare, interval
from autoresearchd.learner.gate.gate import fitting, fresh
from autoresearchd.learner.gate.held_out_states import HeldOutState
from autoresearchd.learner.gate.judge_answers import Attempt, CheckingJudge, Outcome
from autoresearchd.models.client import estimate_tokens
from autoresearchd.policy.prompt import brief, sections
from autoresearchd.policy.search.search_policies import SearchPolicy
from tests.fakes.policies import MemoryHistory, make_state, make_task
from tests.fakes.samplers import ScriptedSampler
from tests.integration.held_out import block
from tests.unit.learner.fresh_outcomes import Policy, World, one

QUICK = GateOptions(resamples=999)


def gates(policy: Policy, states: int, count: int, seed: int = 1) -> list[bool]:
    """Verdicts of many gates; the two policies of each draw independently, which is the harder case."""
    random = np.random.default_rng(seed)
    worlds = (World.drawn(random, states) for _ in range(count))
    return [compare(w.outcomes(random), w.outcomes(random, policy), QUICK).promote for w in worlds]


# ---------------------------------------------------------------------- what the gate promises
@pytest.mark.parametrize("states", [20, pytest.param(40, marks=pytest.mark.nightly)])
def test_equal_policies_are_promoted_in_at_most_one_gate_of_twenty(states: int) -> None:
    found = gates(Policy(), states, 400)
    assert sum(found) <= int(binom.ppf(0.95, len(found), 0.05)), "more than a level of 5% gives by chance"


def test_a_policy_that_earns_half_a_reward_more_is_mostly_found_and_one_that_earns_less_never() -> None:
    assert sum(gates(Policy(gain=0.5), 100, 60)) >= 0.8 * 60
    assert not any(gates(Policy(gain=-0.5), 40, 60))


def test_a_policy_that_has_not_changed_is_never_promoted() -> None:
    """With common random numbers it proposes the same: the gain is 0, and its interval is a point."""
    random = np.random.default_rng(2)
    same = World.drawn(random, 40).outcomes(random)
    verdict = compare(same, same, QUICK)
    assert not verdict.promote
    assert verdict.figures["reward_gain"] == verdict.figures["reward_low"] == verdict.figures["reward_high"] == 0.0
    assert "states_needed" not in verdict.figures, "a spread that was not seen tells nothing"


def test_the_lower_limit_for_a_few_normal_values_is_that_of_students_t() -> None:
    values = np.random.default_rng(3).normal(1.0, 1.0, 12)
    low, high = interval([values], lambda x, *, axis: x.mean(axis=axis), GateOptions())
    half = float(t.ppf(0.95, 11)) * values.std(ddof=1) / math.sqrt(12)
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


# ---------------------------------------------------------------------- what is refused although it earns more
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(gain=1.0, repeats=True), "variety has collapsed"),
        (Policy(gain=1.5, validity=-0.2), "valid edits have become fewer"),
    ],
)
def test_more_reward_by_repeating_itself_or_with_fewer_valid_edits_is_refused(policy: Policy, words: str) -> None:
    random = np.random.default_rng(4)
    world = World.drawn(random, 60)
    verdict = compare(world.outcomes(random), world.outcomes(random, policy), QUICK)
    assert verdict.figures["reward_low"] > 0
    assert not verdict.promote
    assert words in verdict.reasons[0]


def test_more_reward_by_repeating_what_was_tried_is_refused() -> None:
    old = [one(n, 0.0, novelty=0.6, program=str(i)) for n in range(30) for i in range(2)]
    new = [one(n, 1.0 + 0.01 * n, novelty=0.1, program=str(i)) for n in range(30) for i in range(2)]
    verdict = compare(old, new, QUICK)
    assert not verdict.promote
    assert verdict.reasons[0] == "novelty has collapsed, its edits repeat what was tried: 0.60 → 0.10"


def test_a_policy_without_one_valid_edit_is_refused_however_cheap_its_failures_are() -> None:
    old = [one(n, -2.0, label=Label.MALFORMED_ANSWER, valid=False) for n in range(30)]
    new = [one(n, -0.5, label=Label.NO_OP, valid=False) for n in range(30)]
    verdict = compare(old, new, QUICK)
    assert not verdict.promote
    assert verdict.reasons[0] == "none of its proposals is a valid edit"


def test_too_few_states_are_refused_and_told_how_many_are_needed() -> None:
    random = np.random.default_rng(6)
    world = World.drawn(random, 6)
    verdict = compare(world.outcomes(random), world.outcomes(random, Policy(gain=5.0)), QUICK)
    assert not verdict.promote
    needed = int(verdict.figures["states_needed"])
    assert verdict.reasons[0] == (
        "too few held-out states: 6; at least 20 are needed, "
        f"and about {needed} to find a gain of 0.5 with the spread seen"
    )


def test_an_uncertain_gain_is_refused_with_the_states_that_would_tell() -> None:
    random = np.random.default_rng(7)
    world = World.drawn(random, 25)
    small = GateOptions(gain=0.1, resamples=999)
    verdict = compare(world.outcomes(random), world.outcomes(random, Policy(gain=0.05)), small)
    assert not verdict.promote
    assert "it does not surely earn more" in verdict.reasons[0]
    assert f"{int(verdict.figures['states_needed'])} states would find a gain of 0.1" in verdict.reasons[0]


# ---------------------------------------------------------------------- edits that are not run
def checked(validity: int) -> list[Outcome]:
    """30 states; of ten answers for each as many valid as said, or one more or less."""
    good = [one(n, program=str(i), not_run=True) for n in range(30) for i in range(validity + n % 3 - 1)]
    bad = ((n, i) for n in range(30) for i in range(validity + n % 3 - 1, 10))
    return good + [one(n, -2.0, label=Label.MALFORMED_ANSWER, valid=False) for n, _ in bad]


def test_where_edits_are_not_run_validity_alone_may_promote_and_it_is_said() -> None:
    verdict = compare(checked(5), checked(8), QUICK)
    assert verdict.promote
    assert "only validity, duplicates and novelty were compared" in verdict.reasons[-1]
    assert not compare(checked(5), checked(5), QUICK).promote


def test_a_guess_is_never_compared_with_a_measurement() -> None:
    with pytest.raises(ValueError, match="one judge"):
        compare([one(n, not_run=True) for n in range(20)], [one(n) for n in range(20)], QUICK)


# ---------------------------------------------------------------------- judging
CODE = {"train.py": "LR = 0.1\nDEPTH = 4\n"}
TRIED = code_hash({"train.py": "LR = 0.3\nDEPTH = 4\n"})


def state(*earlier: str, session: str = "one") -> HeldOutState:
    messages = ({"role": "user", "content": "Propose an edit."},)
    return HeldOutState(f"{session}/1", session, 7, "0" * 40, messages, CODE, earlier)


class Rules:
    """A session that knows what is legal, and what was tried."""

    task = make_task(search=Search(choices={"OPTIMIZER": ("adam", "sgd")}, ranges={"SCALE": (1.0, 4.0)}))

    def ground(self, session: str) -> Rules:
        return self

    def legal(self, where: HeldOutState, files: Mapping[str, str]) -> None:
        if "seed" in str(files):
            raise PolicyError("the seed is the evaluator's", label=Label.ILLEGAL_EDIT, hint="leave it")

    def was_tried(self, where: HeldOutState, program: str) -> bool:
        return program == TRIED


JUDGE = CheckingJudge(Rules())


def judged(at: HeldOutState, answer: str) -> Outcome:
    return JUDGE.judge_all([(at, answer)])[0]


@pytest.mark.parametrize(
    ("answer", "label", "worth", "valid"),
    [
        ("I would lower the rate.", Label.MALFORMED_ANSWER, -2.0, False),
        ("", Label.MALFORMED_ANSWER, -2.0, False),
        (block("LR = 7", "LR = 8"), Label.MALFORMED_ANSWER, -2.0, False),
        (block("LR = 0.1", "LR = 0.1  # seed = 3\nseed = 3"), Label.ILLEGAL_EDIT, -2.0, False),
        (block("LR = 0.1", "LR = 0.1"), Label.NO_OP, -0.5, False),
        (block("LR = 0.1", "LR = 0.3"), Label.DUPLICATE, -0.5, True),
        (block("LR = 0.1", "LR = 0.3  # bolder"), Label.DUPLICATE, -0.5, True),
    ],
)
def test_what_needs_no_run_earns_exactly_what_the_formula_gives(
    answer: str, label: Label, worth: float, valid: bool
) -> None:
    found = judged(state(), answer)
    assert (found.label, found.reward, found.valid, found.not_run) == (label, worth, valid, False)
    assert found.error


def test_a_new_edit_that_is_not_run_earns_its_novelty_only() -> None:
    found = judged(state(), block("LR = 0.1", "LR = 0.2"))
    assert (found.novelty, found.not_run, found.valid, found.label) == (1.0, True, True, Label.NONE)
    assert found.reward == pytest.approx(0.1)
    near = state("-LR = 0.1\n+LR = 0.2\n")
    assert judged(near, block("LR = 0.1", "LR = 0.2")).reward == pytest.approx(0.0)


CHOOSING = {"train.py": "OPTIMIZER = 'adam'\nSCALE = 2.0\nDEPTH = 4\n"}
SMALL: dict[str, Any] = {"budget": 9_000, "count": estimate_tokens}


def told(kind: str) -> tuple[Mapping[str, Any], ...]:
    """The messages of a prompt for ``CHOOSING``."""
    asked = make_state(CHOOSING, task=Rules.task)
    beside = replace(asked, outlook=SearchPolicy(MemoryHistory()).outlook(asked))
    if kind == "anonymous":
        return brief.messages(beside, offered=brief.menu(beside, anonymous=True), structured=True, **SMALL)
    return {
        "brief": lambda: brief.messages(beside, **SMALL),
        "alone": lambda: brief.messages(asked, **SMALL),
        "hybrid": lambda: sections.messages(beside, forms="", **SMALL),
        "full": lambda: sections.messages(asked, forms="", **SMALL),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "answer", "edit"),
    [
        ("brief", "OPTIMIZER = 'sgd'", ("'adam'", "'sgd'")),
        ("alone", '{"constant": "OPTIMIZER", "value": "sgd"}', ("'adam'", "'sgd'")),
        ("brief", "SCALE = 2.5", ("2.0", "2.5")),
        ("brief", "SCALE = 4.5", None),
        ("brief", "DEPTH = 4000", None),
        ("brief", "C2 = 2.5", None),
        ("anonymous", "C2 = 2.5", ("2.0", "2.5")),
        ("anonymous", '{"constant": "C1", "value": "sgd"}', ("'adam'", "'sgd'")),
        ("anonymous", "SCALE = 2.5", None),
        ("hybrid", "SCALE = 2.5", ("2.0", "2.5")),
        ("hybrid", "<think>\n```\nSCALE = 3\n```\n</think>\nOPTIMIZER = 'sgd'", ("'adam'", "'sgd'")),
        ("hybrid", block("DEPTH = 4", "DEPTH = 6"), ("DEPTH = 4", "DEPTH = 6")),
        ("hybrid", block("DEPTH = 5", "DEPTH = 6") + "\nSCALE = 2.5", None),
        ("full", "SCALE = 2.5", None),
    ],
)
def test_an_answer_is_read_as_the_policy_reads_it_that_asked(
    kind: str, answer: str, edit: tuple[str, str] | None
) -> None:
    found = judged(replace(state(), messages=told(kind), code=CHOOSING), answer)
    assert (found.valid, found.label) == (edit is not None, Label.NONE if edit else Label.MALFORMED_ANSWER)
    text = CHOOSING["train.py"]
    assert found.files == ({"train.py": text.replace(*edit)} if edit else {})


def test_constants_that_are_called_so_are_not_hidden() -> None:
    code = {"train.py": "C1 = 0.5\nC2 = 0.25\n"}
    asked = brief.messages(make_state(code), **SMALL)
    found = judged(replace(state(), messages=asked, code=code), "C2 = 0.5")
    assert found.files == {"train.py": "C1 = 0.5\nC2 = 0.5\n"}


@given(st.text(max_size=400))
def test_whatever_the_answer_says_an_outcome_comes_out(answer: str) -> None:
    found = judged(state(), answer)
    assert found.reward is not None
    assert len(found.error) <= 300
    assert found.error.isprintable()


@pytest.mark.parametrize(
    "answer",
    [
        block("LR = 0.1", "LR = 0.2", path="../../etc/passwd"),
        block("LR = 0.1\x1b[2J", "LR = \x1b]0;owned\x07"),
        "x" * 3_000_000,
        block("LR = 0.1", "LR = '\ud800'"),
        "```json\n" + "[" * 20_000,
    ],
)
def test_a_hostile_answer_is_a_useless_answer_and_its_error_is_safe_to_show(answer: str) -> None:
    found = judged(state(), answer)
    assert (found.valid, found.reward) == (False, -2.0)
    assert "\x1b" not in found.error and len(found.error) <= 300


# ---------------------------------------------------------------------- proposals
def answer(who: Who, length: int, seed: int) -> str:
    """A number that follows from the seed, the prompt's length, and who is asked."""
    return f"{length} {random.Random(seed).random() + (0.1 if who is Who.POLICY else 0.0):.3f}"


def parrot(context: int | None = 100) -> ScriptedSampler:
    return ScriptedSampler(answer, context=context)


def states(*lengths: int) -> list[HeldOutState]:
    return [HeldOutState(f"s/{n}", "s", n, "", ({"content": "x" * size},), {}) for n, size in enumerate(lengths)]


def ask(model: ScriptedSampler, *lengths: int, who: Who = Who.POLICY, **changed: Any) -> list[Attempt]:
    asked: dict[str, Any] = {"count": 3, "max_tokens": 10, "temperature": 1.0, "seed": 5, **changed}
    return fresh(model, states(*lengths), who=who, **asked)


def test_each_state_is_asked_as_often_as_said_and_answers_come_in_order() -> None:
    found = ask(parrot(), 30, 5, 20, batch=2)
    assert [where.key for where, _ in found] == ["s/0"] * 3 + ["s/1"] * 3 + ["s/2"] * 3
    assert [text.split()[0] for _, text in found] == ["30"] * 3 + ["5"] * 3 + ["20"] * 3
    assert len({text for _, text in found}) == 9, "or all proposals of a state would be the same"


def test_two_policies_draw_with_the_same_random_numbers() -> None:
    old, new = ask(parrot(), 30, 5, who=Who.BASE), ask(parrot(), 30, 5, who=Who.POLICY)
    pairs = [(float(a[1].split()[1]), float(b[1].split()[1])) for a, b in zip(old, new, strict=True)]
    assert all(b - a == pytest.approx(0.1, abs=2e-3) for a, b in pairs)


def test_the_same_arguments_give_the_same_proposals_whatever_the_batch() -> None:
    assert ask(parrot(), 30, 5, 20, batch=1) == ask(parrot(), 30, 5, 20, batch=4)
    assert ask(parrot(), 30) != ask(parrot(), 30, seed=6)


def test_prompts_that_leave_no_room_are_counted_with_the_reason() -> None:
    found = fitting(parrot(), tuple(states(90, 91, 200)), 10)
    assert [state.key for state in found.states] == ["s/0"]
    assert found.left_out == {"its prompt and an answer of 10 tokens are longer than the model's context of 100": 2}
    long = fitting(parrot(context=1000), tuple(states(500, 744, 745)), 900)
    assert len(long.states) == 2, "one answer that ran on must not be what all others have to leave room for"
    assert len(fitting(parrot(context=None), tuple(states(1000)), 10).states) == 1


def test_whoever_stops_the_learner_waits_for_one_batch_at_most() -> None:
    stop = threading.Event()
    stop.set()
    model = parrot()
    with pytest.raises(Interrupted):
        ask(model, 30, cancel=stop)
    assert model.batches == []
