"""What every store must do with answers of models: keep each as it came, and count what it cost exactly once."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Store
from autoresearchd.domain.proposal import Answer, Cost, Generation
from tests.contract.store_driver import AT, Driver, StoreFixtures, new_proposal, new_session

SYSTEM = {"role": "system", "content": "You do research. " * 500}


def new_answer(
    *messages: dict[str, Any], completion: str = "<edit>", usd: float | None = 0.5, error: str = "", attempt: int = 0
) -> Answer:
    generation = Generation(
        messages=messages or (SYSTEM, {"role": "user", "content": "improve this"}),
        completion=completion,
        token_ids=(1, 2, 151_000),
        logprobs=(-0.1, -2.5, -1e-9),
        sampling={"temperature": 0.7},
        model_hash="m",
        tokenizer_hash="t",
        template_hash="c",
        adapter="v3",
    )
    form = "" if error else "search_replace"
    return Answer("some/model", Cost(usd, 1000, 200, 2.5), generation, error, form, "stop", attempt)


def asked_again(answer: Answer, *more: dict[str, Any], completion: str = "<better>", **changed: Any) -> Answer:
    """The next answer of a conversation: all that was said so far, and then ``more``."""
    said = {"role": "assistant", "content": answer.generation.completion}
    return new_answer(*map(dict, answer.generation.messages), said, *more, completion=completion, **changed)


class AnswersContract(StoreFixtures):
    """The part of ``StoreContract`` about answers."""

    def test_answers_come_back_as_they_came_in_order(self, store: Store, lab: Driver) -> None:
        e = lab.open()
        first = new_answer(error="there is no such line in train.py")
        second = asked_again(first, {"role": "user", "content": "no such line: answer again"})
        other = Answer("other", Cost(None), Generation(), finish="length")
        for answer in (first, second, other):
            store.record_answer(lab.id, e.number, answer, AT)
        assert list(store.answers(lab.id, e.number)) == [first, second, other]
        assert list(store.answers(lab.id, lab.open().number)) == []

    def test_a_conversation_that_goes_on_is_stored_once(self, store: Store, lab: Driver) -> None:
        """Messages may be dropped, changed in the middle or begun anew: each answer keeps its own."""
        e = lab.open()
        first = new_answer()
        longer = asked_again(first, {"role": "user", "content": "again"})
        shorter = new_answer(*map(dict, longer.generation.messages[:2]))
        changed = new_answer(SYSTEM, {"role": "user", "content": "something else"})
        fresh = new_answer({"role": "user", "content": "hello"}, attempt=1)
        answers = [first, longer, shorter, changed, fresh, fresh]
        for answer in answers:
            store.record_answer(lab.id, e.number, answer, AT)
        assert list(store.answers(lab.id, e.number)) == answers

    def test_each_answer_is_charged_the_moment_that_it_comes(self, reopen: Callable[[], Store], lab: Driver) -> None:
        e = lab.open()
        lab.store.record_answer(lab.id, e.number, new_answer(error="malformed"), AT)
        with closing(reopen()) as again:  # killed before there was a proposal
            assert (again.totals(lab.id).usd, again.totals(lab.id).tokens_in) == (0.5, 1000)
            again.record_answer(lab.id, e.number, new_answer(), AT)
            totals = again.totals(lab.id)
            assert (totals.usd, totals.tokens_in, totals.tokens_out) == (1.0, 2000, 400)

    def test_a_proposal_whose_answers_were_charged_costs_nothing_more(self, store: Store, lab: Driver) -> None:
        e = lab.open()
        store.record_answer(lab.id, e.number, new_answer(), AT)
        proposal = replace(new_proposal(0), cost=Cost(0.5, 1000, 200, 2.5), charged=True)
        for _ in range(2):  # recovery may repeat it
            e = lab.propose(e, proposal)
            assert store.totals(lab.id).usd == 0.5
        assert e.proposal.cost == proposal.cost, "what it cost can still be read with it"

    def test_an_answer_that_comes_late_is_charged_all_the_same(self, store: Store, lab: Driver) -> None:
        number = lab.decided(Status.DISCARD, 1.0).number
        e, before = store.experiment(lab.id, number), store.totals(lab.id).usd
        store.record_answer(lab.id, e.number, new_answer(), AT)
        assert store.totals(lab.id).usd == before + 0.5
        assert store.experiment(lab.id, e.number) == e

    @pytest.mark.parametrize("usd", [None, math.nan, math.inf])
    def test_an_unknown_price_is_not_taken_for_nothing_and_not_counted(
        self, store: Store, lab: Driver, usd: float | None
    ) -> None:
        e = lab.open()
        store.record_answer(lab.id, e.number, new_answer(usd=usd), AT)
        assert store.answers(lab.id, e.number)[0].cost.usd is None
        assert (store.totals(lab.id).usd, store.totals(lab.id).tokens_out) == (0.0, 200)
        assert store.spent_since(AT) == 0.0

    def test_what_was_spent_in_a_day_is_the_sum_over_all_sessions(self, store: Store, lab: Driver) -> None:
        assert store.spent_since(AT) == 0.0
        other = Driver(store, store.create_session(new_session("other"), AT).id)
        for driver, hours, usd in ((lab, -1, 8.0), (lab, 0, 1.0), (other, 5, 2.0), (lab, 6, None)):
            e = driver.open()
            store.record_answer(driver.id, e.number, new_answer(usd=usd), AT + timedelta(hours=hours))
        assert store.spent_since(AT) == 3.0
        assert store.spent_since(AT - timedelta(days=1)) == 11.0
        assert store.spent_since(AT + timedelta(hours=5, seconds=1)) == 0.0

    def test_each_charge_since_then_can_be_told_with_its_time(self, store: Store, lab: Driver) -> None:
        assert list(store.charges_since(AT)) == []
        e, late = lab.open(), AT + timedelta(hours=5, microseconds=7)
        for at, usd in ((late, 2.0), (AT, 1.5), (AT - timedelta(seconds=1), 8.0), (late, 0.0), (late, None)):
            store.record_answer(lab.id, e.number, new_answer(usd=usd), at)
        assert list(store.charges_since(AT)) == [(AT, 1.5), (late, 2.0)]

    def test_answers_go_with_a_session_that_is_forgotten(self, store: Store, lab: Driver) -> None:
        e = lab.open()
        store.record_answer(lab.id, e.number, new_answer(), AT)
        store.add_visit(lab.id, e.number)
        lab.decide(e, Decision(Status.CRASH, Label.MALFORMED_ANSWER))
        store.delete_session("nov21")
        again = Driver(store, store.create_session(new_session(), AT).id)
        assert list(store.answers(again.id, again.open().number)) == []
        assert (store.label_counts(again.id), store.visits(again.id)) == ({}, {})

    def test_an_answer_is_stored_whatever_it_holds(self, store: Store, lab: Driver) -> None:
        text = "nul \0, lone \ud800, \x1b[2J '; DROP TABLE answer; --, 🎉"
        answer = Answer(
            text,
            Cost(1.0, 1, 1, math.nan),
            Generation(({"role": "user", "content": [text, {"n": math.nan}]},), text, sampling={text: {1}}),
            error=text,
            form=text,
            finish=text,
        )
        e = lab.open()
        store.record_answer(lab.id, e.number, answer, AT)
        store.record_answer(lab.id, e.number, answer, AT)
        first, second = store.answers(lab.id, e.number)
        assert first == second
        assert first.error.endswith("🎉")
        assert first.generation.completion.endswith("🎉")
