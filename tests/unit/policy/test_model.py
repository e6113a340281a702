"""The policy that asks a model: what is sent, stored and charged, and what a usable answer becomes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autoresearchd.domain.proposal import Cost
from autoresearchd.domain.redaction import Redactor
from autoresearchd.domain.settings import ModelSettings, Price
from autoresearchd.domain.state import ResearchState
from autoresearchd.policy.client import Question
from autoresearchd.policy.model import MAX_ECHO, ModelPolicy
from autoresearchd.ports import Cancel, Policy, TrialHistory
from tests.contract.policy_contract import PolicyContract
from tests.fakes.models import MemoryAnswers, OpenPurse, ScriptedClient
from tests.fakes.policies import make_state
from tests.unit.policy.model_bench import CODE, COST, GOOD, HIGHER, NOT_THERE, Bench, edit, legal, reply


# ---------------------------------------------------------------------- a good answer
def test_a_good_answer_becomes_a_proposal_with_its_words_its_cost_and_its_generation() -> None:
    bench = Bench(reply(GOOD, sampling={"temperature": 1.0}, adapter="v3", model_hash="abc"))
    state = replace(make_state(CODE, number=5), role="optimizer", state_id="s1", round_id="r1")
    proposal = bench.propose(state)
    assert proposal.files == {"train.py": HIGHER}
    assert (proposal.policy, proposal.role, proposal.adapter) == ("litellm:m/one", "optimizer", "v3")
    assert (proposal.state_id, proposal.round_id, proposal.attempt) == ("s1", "r1", 0)
    assert proposal.hypothesis == proposal.description == proposal.asi.hypothesis == "a higher rate learns faster"
    assert proposal.expected_delta == 0.01
    assert proposal.changes == {"train.py:LR": 0.2}
    assert (proposal.cost, proposal.charged) == (COST, True)
    generation = proposal.generation
    assert (generation.completion, generation.adapter, generation.model_hash) == (GOOD, "v3", "abc")
    assert generation.messages == bench.client.questions[0].messages
    assert generation.sampling == {"temperature": 1.0}


def test_every_answer_is_written_down_under_its_experiment_with_its_form() -> None:
    bench = Bench(reply(GOOD))
    proposal = bench.propose()
    (number, stored) = bench.answers.items[0]
    assert (number, stored.model, stored.cost, stored.error) == (5, "provider/model-0201", COST, "")
    assert (stored.form, stored.finish, stored.attempt) == ("search_replace", "stop", 0)
    assert stored.generation == proposal.generation


def test_the_question_carries_the_users_settings_and_a_seed_that_follows_from_the_state() -> None:
    settings = ModelSettings(max_tokens=777, temperature=0.3, timeout=12.0)
    questions: list[Question] = []
    for seed in (1, 1, 2):
        bench = Bench(GOOD, settings=settings)
        bench.propose(make_state(CODE, seed=seed))
        questions += bench.client.questions
    assert [(q.max_tokens, q.temperature, q.timeout) for q in questions] == [(777, 0.3, 12.0)] * 3
    assert questions[0].seed == questions[1].seed != questions[2].seed


def test_an_answer_without_words_is_described_by_what_it_does() -> None:
    proposal = Bench(edit("LR = 0.1", "LR = 0.2")).propose()
    assert proposal.hypothesis == proposal.description == "Change LR 0.1 → 0.2 in train.py"


def test_words_of_a_model_cannot_carry_control_characters_or_fill_the_store() -> None:
    words = {"hypothesis": "a\x1b[31m\nb" + "x" * 10_000, "description": "d\x07\n" + "y" * 500, "idea": "z\x00" * 9_000}
    proposal = Bench(edit("LR = 0.1", "LR = 0.2", **words)).propose()
    for text in (proposal.hypothesis, proposal.description, *map(str, proposal.asi.extra.values())):
        assert text.isprintable() and len(text) <= 2_000


def test_a_reply_without_a_time_is_timed_here() -> None:
    assert Bench(reply(GOOD, cost=replace(COST, seconds=0.0))).propose().cost.seconds == 1.0


def test_the_users_price_counts_for_what_is_stored_and_charged() -> None:
    settings = ModelSettings(prices={"m/one": Price(input=100.0, output=1000.0)})
    bench = Bench(reply(GOOD, cost=Cost(None, 1000, 100, 1.0)), settings=settings)
    assert bench.propose().cost.usd == pytest.approx(0.2)
    assert bench.answers.usd == pytest.approx(0.2)


def test_tokens_and_log_probabilities_are_kept_for_the_learner() -> None:
    generation = Bench(reply(GOOD, token_ids=(1, 2), logprobs=(-0.1, -0.2))).propose().generation
    assert (generation.token_ids, generation.logprobs) == ((1, 2), (-0.1, -0.2))


# ---------------------------------------------------------------------- secrets
SECRET = "hunter2hunter2x9"


def secretive(code: str = CODE) -> ResearchState:
    return replace(make_state(code), redactor=Redactor([SECRET]))


def test_a_secret_reaches_neither_the_model_nor_the_store() -> None:
    long = "x" * (MAX_ECHO * 3 // 4 - 5) + SECRET + "y" * MAX_ECHO
    bench = Bench(reply(f"the key is {SECRET}"), reply(long), GOOD)
    bench.propose(secretive())
    everything = repr(bench.answers.items) + repr(bench.client.questions)
    assert SECRET not in everything
    assert SECRET[:8] not in everything and SECRET[8:] not in everything


def test_tokens_of_an_answer_with_a_secret_are_not_stored_since_they_spell_it() -> None:
    text = f"{SECRET}\n{GOOD}"
    bench = Bench(reply(text, token_ids=(1, 2, 3), logprobs=(-1.0, -1.0, -1.0)))
    generation = bench.propose(secretive()).generation
    assert generation.token_ids is None and generation.logprobs is None


def test_log_probabilities_that_are_no_numbers_are_not_stored() -> None:
    generation = Bench(reply(GOOD, token_ids=(1, 2), logprobs=(-0.1, float("-inf")))).propose().generation
    assert (generation.token_ids, generation.logprobs) == ((1, 2), None)


# ---------------------------------------------------------------------- near duplicates
def test_a_near_duplicate_is_pointed_out_once_and_then_allowed() -> None:
    seen: list[Mapping[str, Any]] = []

    def near(state: ResearchState, files: Mapping[str, str], changes: Mapping[str, Any]) -> str:
        seen.append(changes)
        return "experiment 3 set LR to 0.2 already" if len(seen) == 1 else ""

    bench = Bench(GOOD, GOOD, near=near)
    assert bench.propose().files == {"train.py": HIGHER}
    assert seen[0] == {"train.py:LR": 0.2}
    assert "experiment 3 set LR to 0.2 already" in bench.told(1)
    assert "the same again if you mean it" in bench.told(1)
    assert bench.answers.answers[0].error and not bench.answers.answers[1].error


def test_a_near_duplicate_is_better_than_no_proposal_at_all() -> None:
    bench = Bench(NOT_THERE, GOOD, settings=ModelSettings(reasks=1), near=lambda *_: "experiment 3 was the same")
    assert bench.propose().files == {"train.py": HIGHER}


# ---------------------------------------------------------------------- the contract
def _next_edit(question: Question) -> str:
    """A valid edit of the contract's sample that depends on nothing but the question."""
    return edit("DEPTH = 4", f"DEPTH = {5 + (question.seed or 0) % 50}", hypothesis="deeper")


class TestContract(PolicyContract):
    deterministic = False

    def make_policy(self, history: TrialHistory) -> Policy:
        return ModelPolicy(
            [ScriptedClient(then=_next_edit)],
            ModelSettings(),
            name="litellm:scripted",
            answers=MemoryAnswers(),
            purse=OpenPurse(),
            check=legal,
        )


def test_the_policy_can_be_used_with_the_cancel_of_a_thread() -> None:
    cancel: Cancel = threading.Event()
    bench = Bench(GOOD)
    assert bench.policy.propose(make_state(CODE), cancel).policy == bench.policy.name == "litellm:m/one"
