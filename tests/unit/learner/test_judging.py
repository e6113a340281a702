"""Judging without runs: what is known exactly is exact, and no answer can break the judge."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.evaluator.rules.legality import code_hash
from autoresearchd.learner.gate.judge_answers import CheckingJudge, HeldOutState, Rules

CODE = {"train.py": "LR = 0.1\nDEPTH = 4\n"}
TRIED = code_hash({"train.py": "LR = 0.3\nDEPTH = 4\n"})


def state(*earlier: str, session: str = "one") -> HeldOutState:
    messages = ({"role": "user", "content": "Propose an edit."},)
    return HeldOutState(f"{session}/1", session, 7, "0" * 40, messages, CODE, earlier)


def legal(where: HeldOutState, files: Mapping[str, str]) -> None:
    if "seed" in str(files):
        raise PolicyError("the seed is the evaluator's", label=Label.ILLEGAL_EDIT, hint="leave it")


def diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    gone, come = before["train.py"].splitlines(), after["train.py"].splitlines()
    return "\n".join([*(f"-{x}" for x in gone if x not in come), *(f"+{x}" for x in come if x not in gone)])


RULES = Rules(legal, lambda where, program: program == TRIED, diff)


def block(search: str, replace: str, path: str = "train.py") -> str:
    return f"Try this.\n\n{path}\n```python\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n```\n"


def judge() -> CheckingJudge:
    return CheckingJudge(RULES)


# ---------------------------------------------------------------------- known exactly
@pytest.mark.parametrize(
    ("answer", "label", "worth", "valid"),
    [
        ("I would lower the rate.", Label.MALFORMED_ANSWER, -2.0, False),
        ("", Label.MALFORMED_ANSWER, -2.0, False),
        (block("LR = 7", "LR = 8"), Label.MALFORMED_ANSWER, -2.0, False),
        (block("LR = 0.1", "LR = 0.1  # seed = 3\nseed = 3"), Label.ILLEGAL_EDIT, -2.0, False),
        (block("LR = 0.1", "LR = 0.1"), Label.NO_OP, -0.5, False),
        (block("LR = 0.1", "LR = 0.3"), Label.DUPLICATE, -0.5, True),
    ],
)
def test_what_needs_no_run_earns_exactly_what_the_formula_gives(
    answer: str, label: Label, worth: float, valid: bool
) -> None:
    found = judge().judge(state(), answer)
    assert (found.label, found.reward, found.valid, found.not_run) == (label, worth, valid, False)
    assert found.error


def test_a_program_with_another_comment_is_the_program_that_was_tried() -> None:
    found = judge().judge(state(), block("LR = 0.1", "LR = 0.3  # bolder"))
    assert found.label is Label.DUPLICATE


# ---------------------------------------------------------------------- not known
def test_a_new_edit_that_is_not_run_earns_its_novelty_only() -> None:
    found = judge().judge(state(), block("LR = 0.1", "LR = 0.2"))
    assert (found.novelty, found.not_run, found.valid, found.label) == (1.0, True, True, Label.NONE)
    assert found.reward == pytest.approx(0.1)
    near = state("-LR = 0.1\n+LR = 0.2\n")
    assert judge().judge(near, block("LR = 0.1", "LR = 0.2")).reward == pytest.approx(0.0)


def test_answers_are_judged_each_for_itself_and_in_order() -> None:
    answers = [block("LR = 0.1", f"LR = {rate}") for rate in ("0.2", "0.3", "0.2")]
    found = judge().judge_all([(state(), answer) for answer in answers])
    assert [o.label for o in found] == [Label.NONE, Label.DUPLICATE, Label.NONE]
    assert found[0] == found[2], "what another answer proposes does not make it a duplicate"


# ---------------------------------------------------------------------- hostile answers
@given(st.text(max_size=400))
def test_whatever_the_answer_says_an_outcome_comes_out(answer: str) -> None:
    found = judge().judge(state(), answer)
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
    found = judge().judge(state(), answer)
    assert not found.valid
    assert found.reward == -2.0
    assert "\x1b" not in found.error
    assert len(found.error) <= 300
