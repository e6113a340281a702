"""A small model is asked for one line, and its line sets exactly the constant that it names."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import ResearchState
from autoresearchd.evaluator.rules.legality import check_edit
from autoresearchd.models.client import estimate_tokens
from autoresearchd.policy.edits.edit import EditError
from autoresearchd.policy.model_policy import ModelPolicy
from autoresearchd.policy.prompt import brief
from tests.fakes.models import MemoryAnswers, OpenPurse, PatientCancel, ScriptedClient
from tests.fakes.policies import make_state

from .histories import experiment

CODE = """\
import os

LEARNING_RATE = 1e-3  # of Adam
WIDTH = 64
ACTIVATION = "relu"  # choices: relu, gelu
BETAS = (0.9, 0.99)
NESTEROV = False


def train():
    return LEARNING_RATE * WIDTH
"""
FILES = {"train.py": CODE}


def state(**changes: object) -> ResearchState:
    return dataclasses.replace(make_state(CODE), **changes)  # type: ignore[arg-type]


def asked(shown: ResearchState, budget: int = 4000) -> str:
    return brief.messages(shown, budget=budget, count=estimate_tokens)[-1]["content"]


def test_the_question_holds_the_constants_and_what_came_of_earlier_ones() -> None:
    recent = (
        experiment(1, "wider", delta=-0.1, value=2.0, changes={"train.py:WIDTH": 128}),
        experiment(2, "slower", Label.NONE, delta=0.1, value=1.0, changes={"train.py:LEARNING_RATE": 0.0005}),
        experiment(3, "gone", Label.OOM, changes={"train.py:WIDTH": 99999}),
        experiment(4, "no constant", delta=0.0, value=1.0),
        experiment(5, "one that is there no more", delta=0.0, value=1.0, changes={"train.py:DEPTH": 3}),
        experiment(6, "wider", delta=-0.1, value=2.0, changes={"train.py:WIDTH": 128}),
    )
    text = asked(state(recent=recent, notes=("leave the width alone",)))
    assert "LEARNING_RATE = 1e-3\nWIDTH = 64\n" in text
    assert "Tried:\nLEARNING_RATE = 0.0005: better\nWIDTH = 99999: it failed\nWIDTH = 128: worse\n" in text
    assert "leave the width alone" in text
    assert "DEPTH" not in text


def test_a_program_without_constants_is_an_error_that_names_the_way_out() -> None:
    bare = make_state("print(1)\n")
    with pytest.raises(PolicyError, match="prompt: full"):
        brief.messages(bare, budget=4000, count=estimate_tokens)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("LEARNING_RATE = 0.003", "LEARNING_RATE = 3e-3  # of Adam"),
        ("I would go wider.\n\n`WIDTH = 128`", "WIDTH = 128"),
        ("```python\nWIDTH = 128  # more\n```", "WIDTH = 128"),
        ("- ACTIVATION = 'gelu'", 'ACTIVATION = "gelu"  # choices: relu, gelu'),
        ("BETAS[1] = 0.95", "BETAS = (0.9, 0.95)"),
        ("NESTEROV = True", "NESTEROV = True"),
        ("WIDTH = 128, DEPTH = 16: better\nWIDTH = 256", "WIDTH = 128"),
        ("WIDTH = 128: wider is better", "WIDTH = 128"),
        ("WIDTH = 128\n* 2", "WIDTH = 128"),
        ("**WIDTH = 128** because wider", "WIDTH = 128"),
    ],
)
def test_a_line_sets_its_constant_and_nothing_else(answer: str, line: str) -> None:
    edit = brief.read_answer(answer, FILES, "cpu")
    after = edit.files["train.py"].splitlines()
    different = [new for old, new in zip(CODE.splitlines(), after, strict=True) if old != new]
    assert different == [line]
    assert edit.form == brief.FORM


@pytest.mark.parametrize(
    ("answer", "label", "words"),
    [
        ("", Label.MALFORMED_ANSWER, "no line of the answer"),
        ("Make it wider, say 128.", Label.MALFORMED_ANSWER, "no line of the answer"),
        ("DEPTH = 4", Label.MALFORMED_ANSWER, "there is no constant DEPTH"),
        ("WIDTH = 1__0", Label.MALFORMED_ANSWER, "a whole number"),
        ("WIDTH =", Label.MALFORMED_ANSWER, "a whole number"),
        ("WIDTH = 64.5", Label.MALFORMED_ANSWER, "a whole number"),
        ("WIDTH = __import__('os').system('true')", Label.MALFORMED_ANSWER, "a whole number"),
        ("LEARNING_RATE = 1/2", Label.MALFORMED_ANSWER, "arithmetic"),
        ("LEARNING_RATE = 1e-3 * 0.5", Label.MALFORMED_ANSWER, "write what it comes to"),
        ("WIDTH = 2**10", Label.MALFORMED_ANSWER, "arithmetic"),
        ("WIDTH = 2 * WIDTH", Label.MALFORMED_ANSWER, "arithmetic"),
        ("ACTIVATION = 'ge' + 'lu'", Label.MALFORMED_ANSWER, "arithmetic"),
        ("ACTIVATION = 'softmax'", Label.MALFORMED_ANSWER, "one of 'gelu', 'relu'"),
        ("WIDTH == 128", Label.MALFORMED_ANSWER, "no line of the answer"),
        ("WIDTH = 64", Label.NO_OP, "changes nothing"),
    ],
)
def test_an_answer_that_cannot_be_used_says_why(answer: str, label: Label, words: str) -> None:
    with pytest.raises(EditError, match=r".") as caught:
        brief.read_answer(answer, FILES, "cpu")
    assert caught.value.label is label
    assert words in str(caught.value)


@given(st.text(max_size=300) | st.from_regex(r"(WIDTH|BETAS\[1\]|NESTEROV) ?= ?.{0,40}", fullmatch=True))
def test_no_text_does_more_than_set_constants(text: str) -> None:
    try:
        edit = brief.read_answer(text, FILES, "cpu")
    except EditError:
        return
    assert set(edit.files) == {"train.py"}
    assert [line.partition("=")[0] for line in edit.files["train.py"].splitlines()] == [
        line.partition("=")[0] for line in CODE.splitlines()
    ]


def test_a_model_is_asked_briefly_where_the_settings_say_so() -> None:
    client = ScriptedClient(["make it wider", "WIDTH = 128"])
    answers = MemoryAnswers()
    policy = ModelPolicy(
        [client],
        ModelSettings(prompt="brief"),
        name="local:m",
        answers=answers,
        purse=OpenPurse(),
        check=lambda s, files: check_edit(s.task, s.code, {**s.code, **files}),
    )
    proposal = policy.propose(state(), PatientCancel())
    assert proposal.changes == {"train.py:WIDTH": 128}
    assert [answer.form for answer in answers.answers] == ["", brief.FORM]
    assert sum(len(message["content"]) for message in client.questions[0].messages) < 700
    assert policy.repairs == 0, "a failed run cannot be fixed by a constant"
