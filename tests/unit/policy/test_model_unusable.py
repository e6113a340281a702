"""Answers that a model's policy cannot use: sent back with their exact error, charged, and in the end given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import Cost, Repair
from autoresearchd.domain.settings import ModelSettings
from autoresearchd.domain.state import ResearchState
from autoresearchd.errors import PolicyError
from autoresearchd.policy import model as model_module
from autoresearchd.policy.model import MAX_ECHO, MAX_READ
from tests.fakes.policies import make_state, make_task
from tests.unit.policy.model_bench import BROKEN, CODE, COST, GOOD, HIGHER, NOT_THERE, Bench, edit, reply


# ---------------------------------------------------------------------- unusable answers
def test_an_edit_that_does_not_fit_goes_back_with_its_exact_error() -> None:
    bench = Bench(NOT_THERE, GOOD)
    assert bench.propose().files == {"train.py": HIGHER}
    error, used = bench.errors
    assert error and used == ""
    assert error in bench.told(1)
    assert bench.client.questions[1].messages[-2] == {"role": "assistant", "content": NOT_THERE}
    assert bench.client.questions[1].messages[:-2] == bench.client.questions[0].messages


def test_an_edit_that_is_not_legal_goes_back_with_its_exact_error() -> None:
    bench = Bench(BROKEN, GOOD)
    bench.propose()
    assert "line 1: invalid syntax" in bench.told(1)
    assert bench.answers.answers[0].form == "search_replace"


def test_what_earlier_answers_cost_is_part_of_the_proposals_cost() -> None:
    bench = Bench(NOT_THERE, BROKEN, GOOD)
    assert bench.propose().cost == Cost(sum([0.01] * 3), 300, 30, 3.0)
    assert bench.answers.usd == pytest.approx(0.03)


def test_one_answer_of_unknown_price_makes_the_whole_unknown() -> None:
    bench = Bench(reply(NOT_THERE, cost=Cost(None, 100, 10, 1.0)), GOOD)
    assert bench.propose().cost == Cost(None, 200, 20, 2.0)


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (NOT_THERE, Label.MALFORMED_ANSWER),
        ("Let us think about the rate.", Label.MALFORMED_ANSWER),
        (BROKEN, Label.ILLEGAL_EDIT),
        (edit("x = 1", "x = 2", path="/etc/passwd"), Label.ILLEGAL_EDIT),
        (edit("x = 1", "x = 2", path="prepare.py"), Label.ILLEGAL_EDIT),
        (edit("LR = 0.1", "LR = 0.1"), Label.NO_OP),
        (edit("LR = 0.1", "LR = 0.1  # the rate"), Label.NO_OP),
        ("", Label.MALFORMED_ANSWER),
        (" \n\t ", Label.MALFORMED_ANSWER),
    ],
)
def test_after_the_last_attempt_the_experiment_fails_under_the_label_of_the_last_error(
    answer: str, label: Label
) -> None:
    bench = Bench(GOOD.replace("0.1", "9"), answer, answer)
    error = bench.fails(PolicyError)
    assert error.label is label
    assert "none of 3 answers could be used" in error.what
    assert error.cost == Cost(sum([0.01] * 3), 300, 30, 3.0)
    assert len(bench.answers.items) == 3
    assert all(bench.errors)


def test_how_often_an_answer_is_asked_for_again_is_the_users_choice() -> None:
    bench = Bench(NOT_THERE, settings=ModelSettings(reasks=0))
    assert bench.fails(PolicyError).what.startswith("the answer could not be used: ")
    assert len(bench.client.questions) == 1


def test_an_empty_answer_is_told_and_sent_back_as_a_turn_that_providers_take() -> None:
    bench = Bench("", GOOD)
    bench.propose()
    assert bench.errors[0] == "the answer is empty"
    assert all(m["content"].strip() for m in bench.client.questions[1].messages)


def test_an_answer_that_was_cut_off_is_told_to_be_smaller() -> None:
    bench = Bench(reply("train.py\n<<<<<<< SEARCH\nLR = 0.1\n=====", finish="length"), GOOD)
    bench.propose()
    assert "cut off at max_tokens (8192 tokens): make a smaller edit" in bench.told(1)
    assert bench.answers.answers[0].finish == "length"


def test_an_answer_that_ends_at_the_limit_but_is_whole_is_used() -> None:
    assert Bench(reply(GOOD, finish="length")).propose().files == {"train.py": HIGHER}


def test_an_answer_that_a_filter_stopped_is_not_used_however_it_looks() -> None:
    bench = Bench(reply(GOOD, finish="content_filter"), settings=ModelSettings(reasks=0))
    error = bench.fails(PolicyError)
    assert error.label is Label.MALFORMED_ANSWER
    assert "content filter" in error.what


@pytest.mark.parametrize(
    "text", ["I'm sorry, but I can't help with that.", "I cannot assist with this.", "**Sorry,** no.", "As an AI, I …"]
)
def test_a_model_that_declines_is_quoted(text: str) -> None:
    error = Bench(text, settings=ModelSettings(reasks=0)).fails(PolicyError)
    assert error.label is Label.MALFORMED_ANSWER
    assert f"it declines instead of giving an edit: {text}" in error.what


def test_an_answer_too_long_to_be_read_is_refused_cut_and_charged() -> None:
    bench = Bench("x" * (2 * MAX_READ), settings=ModelSettings(reasks=0))
    assert "2,000,000 characters long" in bench.fails(PolicyError).what
    assert len(bench.answers.answers[0].generation.completion) <= MAX_READ
    assert bench.answers.usd == 0.01


def test_a_long_unusable_answer_is_shown_again_in_part_only() -> None:
    bench = Bench("begin " + "x" * 50_000 + " end", GOOD)
    bench.propose()
    echo = bench.client.questions[1].messages[-2]["content"]
    assert len(echo) < MAX_ECHO + 100
    assert echo.startswith("begin ") and echo.endswith(" end") and "left out" in echo


def test_terminal_escapes_of_an_answer_reach_no_message() -> None:
    bench = Bench(edit("\x1b[2J\x07LR", "x"), settings=ModelSettings(reasks=0))
    error = bench.fails(PolicyError)
    assert "\x1b" not in error.what and "\x07" not in error.what
    assert "\x1b" not in bench.errors[0]


def test_halves_of_characters_and_zero_bytes_can_be_stored_and_sent() -> None:
    bench = Bench("\ud800\0 what?", GOOD)
    bench.propose()
    stored = bench.answers.answers[0]
    sent = bench.client.questions[1].messages
    for text in (stored.generation.completion, stored.error, *(m["content"] for m in sent)):
        text.encode()
        assert "\0" not in text


def test_an_answer_is_on_record_even_when_the_reading_of_it_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str, code: Mapping[str, str]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(model_module, "read_answer", broken)
    bench = Bench(GOOD)
    bench.fails(ZeroDivisionError)
    assert bench.errors == ["the answer could not be looked at"]
    assert bench.answers.usd == 0.01


def test_an_answer_is_on_record_even_when_the_check_of_it_breaks() -> None:
    def broken(state: ResearchState, files: Mapping[str, str]) -> None:
        raise OSError("disk")

    bench = Bench(GOOD, check=broken)
    bench.fails(OSError)
    assert len(bench.answers.items) == 1


# ---------------------------------------------------------------------- repair
def repairing(**options: object) -> ResearchState:
    failed = CODE.replace("DEPTH = 4", "DEPTH = 8\nWIDTH = dept")
    repair = Repair(1, {"train.py": failed}, "error", "NameError: name 'dept' is not defined", description="be wider")
    return replace(make_state(CODE, number=5), repair=repair, **options)  # type: ignore[arg-type]


def test_a_repair_edits_what_the_failed_proposal_left_and_is_stored_against_the_parent() -> None:
    bench = Bench(edit("WIDTH = dept", "WIDTH = DEPTH"))
    proposal = bench.propose(repairing())
    assert proposal.files == {"train.py": CODE.replace("DEPTH = 4", "DEPTH = 8\nWIDTH = DEPTH")}
    assert proposal.attempt == 1
    assert proposal.hypothesis == "be wider"
    assert bench.answers.answers[0].attempt == 1


def test_a_repair_keeps_the_files_that_it_does_not_touch_as_the_failed_proposal_left_them() -> None:
    task = make_task(editable=("train.py", "model.py"))
    state = replace(
        make_state({"train.py": CODE, "model.py": "W = 1\n"}, task=task),
        repair=Repair(2, {"train.py": HIGHER, "model.py": "W = = 2\n"}, "error", "SyntaxError"),
    )
    proposal = Bench(edit("W = = 2", "W = 2", path="model.py")).propose(state)
    assert proposal.files == {"train.py": HIGHER, "model.py": "W = 2\n"}
    assert proposal.attempt == 2


def test_a_repair_that_takes_everything_back_changes_nothing() -> None:
    bench = Bench(edit("DEPTH = 8\nWIDTH = dept", "DEPTH = 4"), settings=ModelSettings(reasks=0))
    assert bench.fails(PolicyError, repairing()).label is Label.NO_OP


def test_a_model_that_gives_its_failed_edit_up_is_not_pressed() -> None:
    bench = Bench('It cannot work: the width is fixed.\n{"hypothesis": "none"}')
    error = bench.fails(PolicyError, repairing())
    assert error.what.startswith("the model gives its edit up: It cannot work")
    assert len(bench.client.questions) == 1
    assert error.cost == COST


def test_a_repair_that_is_only_malformed_is_asked_for_again() -> None:
    bench = Bench(edit("WIDTH = dep", "WIDTH = 1"), "```python\nWIDTH = DEPTH", edit("WIDTH = dept", "WIDTH = DEPTH"))
    assert bench.propose(repairing()).attempt == 1


def test_how_often_it_repairs_is_the_users_choice() -> None:
    assert Bench(settings=ModelSettings(repairs=1)).policy.repairs == 1
