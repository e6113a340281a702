"""``show`` tells what models were asked, what they answered, what it cost, and which repair is which."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import Decision, Measurement
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.proposal import Answer, Cost, Generation
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.contract.store_contract_answers import asked_again, new_answer
from tests.contract.store_driver import Driver, commit_of, new_proposal
from tests.unit.cli.conftest import SHA, START, Command

HOSTILE = "\x1b]0;owned\x07 \x1b[2J\x9b31m\u202egnirts\r\n\x00 end"
ASKED, ANSWERED, FREE = 5, 6, 7


@pytest.fixture(autouse=True)
def _answered(repository: Path) -> None:
    """Three more experiments: one repaired after two answers, one of a hostile model, one of a model that is free."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        lab = Driver(store, store.session("mar8").id)
        e = store.open_experiment(lab.id, parent=SHA, segment=0, at=START)
        assert e.number == ASKED
        first = new_answer(error="block 1: its SEARCH part is not in train.py\nsecond line " + "x" * 300, usd=0.0123)
        second = asked_again(first, {"role": "user", "content": "block 1 is not there"}, usd=0.02)
        repaired = new_answer(completion="import math", usd=0.01, attempt=1)
        for answer in (first, second):
            store.record_answer(lab.id, e.number, answer, START)
        e = lab.propose(e, replace(new_proposal(5), charged=True))
        e = store.record_commit(lab.id, e.number, commit_of(5))
        e = lab.run(e, Measurement(Label.ERROR, detail="NameError: math"))
        store.record_answer(lab.id, e.number, repaired, START)
        e = lab.propose(e, replace(new_proposal(5, attempt=1), charged=True))
        e = lab.run(store.record_commit(lab.id, e.number, commit_of(6)), Measurement(Label.NONE, 0.99))
        lab.decide(e, Decision(Status.DISCARD, Label.NO_GAIN, 0.99))
        e = store.open_experiment(lab.id, parent=SHA, segment=0, at=START)
        hostile = Generation(({"role": HOSTILE, "content": [HOSTILE]},), HOSTILE)
        store.record_answer(lab.id, e.number, new_answer(usd=0.5), START)
        store.record_answer(lab.id, e.number, Answer(HOSTILE, Cost(None), hostile, HOSTILE, HOSTILE, HOSTILE), START)
        e = store.open_experiment(lab.id, parent=SHA, segment=0, at=START)
        store.record_answer(lab.id, e.number, new_answer(usd=None), START)
        e = store.open_experiment(lab.id, parent=SHA, segment=0, at=START)
        store.record_answer(lab.id, e.number, new_answer(usd=0.0), START)


def test_show_lists_each_answer_with_what_it_gave_and_cost(command: Command) -> None:
    lines = command("show", str(ASKED)).out.splitlines()
    start = next(i for i, line in enumerate(lines) if "finish" in line.split() and "gave" in line)
    assert [line.split()[:7] for line in lines[start + 1 : start + 4]] == [
        ["1", "some/model", "1,000", "200", "$0.0123", "2.5s", "stop"],
        ["2", "some/model", "1,000", "200", "$0.0200", "2.5s", "stop"],
        ["3", "some/model", "1,000", "200", "$0.0100", "2.5s", "stop"],
    ]
    assert "block 1: its SEARCH part is not in train.py second line" in lines[start + 1]
    assert lines[start + 1].endswith("…")
    assert lines[start + 2].endswith("search_replace")
    assert lines[start + 3].endswith("search_replace (attempt 2)")
    assert any(line.split() == ["cost", "$0.0423"] for line in lines)


def test_answers_are_printed_in_full_and_alone_in_a_pipe(command: Command) -> None:
    out = command("show", str(ASKED), "--answers").out
    assert out.startswith("==> answer 1 of 3: some/model, block 1")
    assert out.count("You do research.") == 500, "once, and not with each answer"
    for words in ("--- user ---\nimprove this", "--- 2 messages as above ---", "--- answer ---\nimport math",
                  "--- not usable ---\nblock 1: its SEARCH part is not in train.py\nsecond line xxx"):  # fmt: skip
        assert words in out
    told = command("show", "1", "--answers")
    assert (told.code, told.out) == (0, "")
    assert "no model was asked" in told.err


@pytest.mark.parametrize("more", [[], ["--answers"], ["--json"], ["--json", "--answers"]], ids=" ".join)
def test_what_a_model_says_gives_the_terminal_no_orders(command: Command, more: list[str]) -> None:
    answer = command("show", str(ANSWERED), *more)
    assert answer.code == 0
    assert "gnirts" in answer.out
    assert [c for c in answer.out if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"] == []
