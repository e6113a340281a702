"""A model that gives no reply, money that is spent, and a stop: the experiment stays open, and nobody pays in vain."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import Cost, Repair
from autoresearchd.domain.settings import ModelSettings
from autoresearchd.domain.state import ResearchState
from autoresearchd.errors import EnvironmentFailure, Interrupted, ModelsRefused, PolicyError, SpendCapReached
from autoresearchd.policy.client import ModelError, Question, Trouble
from autoresearchd.policy.spend import Caps
from tests.fakes.models import PatientCancel
from tests.fakes.policies import make_state
from tests.unit.policy.model_bench import CODE, GOOD, HIGHER, NOT_THERE, Bench


# ---------------------------------------------------------------------- no reply
def test_when_no_model_replies_the_experiment_stays_open() -> None:
    trouble = ModelError(Trouble.UNREACHABLE, "connection refused")
    bench = Bench(*[trouble] * 3, fallback=[trouble] * 3, settings=ModelSettings(retries=2))
    error = bench.fails(EnvironmentFailure)
    assert "m/one: not reachable (connection refused)" in error.what
    assert "m/two: not reachable" in error.what
    assert "tried again by itself" in error.mend
    assert len(bench.cancel.waits) == 4


def test_a_fallback_that_answers_is_stored_under_its_own_name() -> None:
    bench = Bench(ModelError(Trouble.NOT_FOUND, "gone"), fallback=[GOOD])
    bench.propose()
    assert bench.answers.answers[0].model == "m/two"


@pytest.mark.parametrize(
    ("trouble", "mend"), [(Trouble.UNAUTHORISED, "key for m/one"), (Trouble.NOT_FOUND, "correct the model m/one")]
)
def test_what_only_the_user_can_mend_is_told_with_the_models_name(trouble: Trouble, mend: str) -> None:
    assert mend in Bench(ModelError(trouble, "no")).fails(EnvironmentFailure).mend


@pytest.mark.parametrize("trouble", [Trouble.UNAUTHORISED, Trouble.NOT_FOUND])
def test_only_where_every_model_refuses_for_good_is_it_of_no_use_to_wait(trouble: Trouble) -> None:
    final, passing = ModelError(trouble, "no"), ModelError(Trouble.OVERLOADED, "busy")
    assert isinstance(Bench(final, fallback=[final]).fails(EnvironmentFailure), ModelsRefused)
    for first, second in ((final, passing), (passing, final)):
        bench = Bench(first, fallback=[second], settings=ModelSettings(retries=0))
        assert not isinstance(bench.fails(EnvironmentFailure), ModelsRefused), "a night is lost for a busy minute"


def test_what_the_client_knows_of_the_remedy_is_told_rather_than_a_guess() -> None:
    error = Bench(ModelError(Trouble.UNAUTHORISED, "no", mend="set MY_KEY")).fails(EnvironmentFailure)
    assert error.mend == "set MY_KEY, then `autoresearchd resume`"


def test_a_provider_that_refuses_the_question_ends_the_experiment_since_asking_again_is_of_no_use() -> None:
    error = Bench(ModelError(Trouble.REFUSED, "policy violation")).fails(PolicyError)
    assert error.label is Label.MALFORMED_ANSWER
    assert error.cost is None


def test_failed_calls_that_cost_something_are_charged() -> None:
    bench = Bench(ModelError(Trouble.TIMEOUT, "slow", cost=Cost(0.02, 50, 0, 9.0)), GOOD)
    assert bench.propose().cost.usd == pytest.approx(0.03)
    failed, used = bench.answers.answers
    assert failed.error == "no reply: timed out (slow)"
    assert (failed.model, failed.cost.usd, used.error) == ("m/one", 0.02, "")


def long_state() -> ResearchState:
    return replace(make_state(CODE), memo="\n".join(f"- learned {i}: {'x' * 80}" for i in range(3_000)))


def test_a_prompt_that_is_too_long_for_the_model_is_halved_until_it_fits() -> None:
    too_long = ModelError(Trouble.CONTEXT_TOO_LONG, "at most 20000 tokens")
    bench = Bench(too_long, too_long, GOOD)
    bench.propose(long_state())
    sizes = [bench.client.count_tokens(q.messages) for q in bench.client.questions]
    assert [size <= 64_000 >> i for i, size in enumerate(sizes)] == [True] * 3
    assert sizes == sorted(sizes, reverse=True)
    assert len(bench.answers.items) == 1


def test_a_model_that_finds_every_prompt_too_long_is_not_asked_for_ever() -> None:
    bench = Bench(*[ModelError(Trouble.CONTEXT_TOO_LONG, "at most 10 tokens")] * 9)
    error = bench.fails(EnvironmentFailure)
    assert len(bench.client.questions) == 4
    assert "at most 10 tokens" in error.what
    assert "context_tokens" in error.mend


def test_a_prompt_that_one_model_cannot_read_goes_to_the_next_whole() -> None:
    too_long = ModelError(Trouble.CONTEXT_TOO_LONG, "at most 4096 tokens")
    bench = Bench(*[too_long] * 9, fallback=[NOT_THERE, GOOD])
    assert bench.propose(long_state()).files == {"train.py": HIGHER}
    first, second = bench.client.questions, bench.second.questions
    assert (len(first), len(second)) == (4, 2)
    assert second[0].messages == first[0].messages
    neither = Bench(*[too_long] * 9, fallback=[ModelError(Trouble.CONTEXT_TOO_LONG, "at most 8192 tokens")] * 9)
    assert "at most 8192 tokens" in neither.fails(EnvironmentFailure, long_state()).what
    assert len(neither.second.questions) == 4


def test_a_program_too_long_for_any_prompt_is_no_experiments_fault() -> None:
    settings = ModelSettings(context_tokens=1_000)
    bench = Bench(settings=settings)
    code = CODE + "".join(f"x{i} = {i}\n" for i in range(2_000))
    assert "context_tokens" in bench.fails(EnvironmentFailure, make_state(code)).mend
    failed = Repair(1, {"train.py": code}, "error", "NameError")
    assert isinstance(bench.fails(PolicyError, replace(make_state(CODE), repair=failed)), PolicyError)


# ---------------------------------------------------------------------- money and stopping
def test_a_spend_cap_ends_the_asking_within_one_answer() -> None:
    purse = Caps(session_usd=lambda: bench.answers.usd, day_usd=lambda: 0.0, session_cap=0.015)
    bench = Bench(NOT_THERE, NOT_THERE, GOOD, purse=purse)
    error = bench.fails(SpendCapReached)
    assert error.whole_session
    assert len(bench.answers.items) == 2
    assert "resume --max-cost" in error.mend


def test_a_stop_before_anything_was_asked_costs_nothing() -> None:
    bench = Bench(GOOD)
    bench.cancel = PatientCancel(is_set=True)
    bench.fails(Interrupted)
    assert (bench.client.questions, bench.answers.items) == ([], [])


def test_a_stop_during_a_wait_is_an_interruption() -> None:
    bench = Bench(ModelError(Trouble.OVERLOADED, "busy"), GOOD)
    bench.cancel = PatientCancel(stop_after=1)
    bench.fails(Interrupted)
    assert len(bench.client.questions) == 1


def test_once_the_session_is_to_end_no_model_is_asked() -> None:
    bench = Bench(GOOD, ending=PatientCancel(is_set=True))
    bench.fails(Interrupted)
    assert (bench.client.questions, bench.answers.items) == ([], [])


def test_an_unusable_answer_is_not_sent_back_once_the_session_is_to_end() -> None:
    ending = threading.Event()

    def stops(question: Question) -> str:
        ending.set()
        return NOT_THERE

    bench = Bench(stops, GOOD, ending=ending)
    bench.fails(Interrupted)
    assert len(bench.client.questions) == 1
    assert len(bench.answers.items) == 1, "what has come is on record and charged"


def test_an_answer_that_comes_in_time_is_used_though_the_session_is_to_end() -> None:
    ending = threading.Event()

    def stops(question: Question) -> str:
        ending.set()
        return GOOD

    assert Bench(stops, ending=ending).propose().files == {"train.py": HIGHER}
