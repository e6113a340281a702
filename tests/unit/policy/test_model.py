"""The policy that asks a model: what is sent, stored and charged, and what a usable answer becomes."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, ModelsRefused, PolicyError, SpendCapReached
from autoresearchd.domain.labels import Label
from autoresearchd.domain.model_settings import ModelSettings, Price
from autoresearchd.domain.ports import Policy, ResearchState, TrialHistory
from autoresearchd.domain.proposal import Cost, Repair
from autoresearchd.domain.redaction import Redactor
from autoresearchd.models.client import ModelError, Question, Trouble
from autoresearchd.models.spend import Caps
from autoresearchd.policy import model_policy as model_module
from autoresearchd.policy.edits.read_answer import SCHEMA, SCHEMA_FORMS, read_answer
from autoresearchd.policy.model_policy import MAX_ECHO, MAX_READ, ModelPolicy
from tests.contract.policy_contract import PolicyContract
from tests.fakes.models import MemoryAnswers, OpenPurse, ScriptedClient
from tests.fakes.policies import make_state, make_task
from tests.unit.policy.model_bench import BROKEN, CODE, COST, GOOD, HIGHER, NOT_THERE, Bench, edit, legal, reply


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


def test_the_users_price_counts_for_what_is_stored_and_charged() -> None:
    settings = ModelSettings(prices={"m/one": Price(input=100.0, output=1000.0)})
    bench = Bench(reply(GOOD, cost=Cost(None, 1000, 100, 1.0)), settings=settings)
    assert bench.propose().cost.usd == pytest.approx(0.2)
    assert bench.answers.usd == pytest.approx(0.2)


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


# ---------------------------------------------------------------------- no reply
def test_when_no_model_replies_the_experiment_stays_open() -> None:
    trouble = ModelError(Trouble.UNREACHABLE, "connection refused")
    bench = Bench(*[trouble] * 3, fallback=[trouble] * 3, settings=ModelSettings(retries=2))
    error = bench.fails(EnvironmentFailure)
    assert "m/one: not reachable (connection refused)" in error.what
    assert "m/two: not reachable" in error.what
    assert "tried again by itself" in error.hint
    assert len(bench.cancel.waits) == 4


@pytest.mark.parametrize("trouble", [Trouble.UNAUTHORISED, Trouble.NOT_FOUND])
def test_only_where_every_model_refuses_for_good_is_it_of_no_use_to_wait(trouble: Trouble) -> None:
    final, passing = ModelError(trouble, "no"), ModelError(Trouble.OVERLOADED, "busy")
    assert isinstance(Bench(final, fallback=[final]).fails(EnvironmentFailure), ModelsRefused)
    for first, second in ((final, passing), (passing, final)):
        bench = Bench(first, fallback=[second], settings=ModelSettings(retries=0))
        assert not isinstance(bench.fails(EnvironmentFailure), ModelsRefused), "a night is lost for a busy minute"


def test_a_provider_that_refuses_the_question_ends_the_experiment_since_asking_again_is_of_no_use() -> None:
    error = Bench(ModelError(Trouble.REFUSED, "policy violation")).fails(PolicyError)
    assert error.label is Label.MALFORMED_ANSWER
    assert error.cost is None


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


def test_a_program_too_long_for_any_prompt_is_no_experiments_fault() -> None:
    settings = ModelSettings(context_tokens=1_000)
    bench = Bench(settings=settings)
    code = CODE + "".join(f"x{i} = {i}\n" for i in range(2_000))
    assert "context_tokens" in bench.fails(EnvironmentFailure, make_state(code)).hint
    failed = Repair(1, {"train.py": code}, "error", "NameError")
    assert isinstance(bench.fails(PolicyError, replace(make_state(CODE), repair=failed)), PolicyError)


# ---------------------------------------------------------------------- money and stopping
def test_a_spend_cap_ends_the_asking_within_one_answer() -> None:
    purse = Caps(session_usd=lambda: bench.answers.usd, day_usd=lambda: 0.0, session_cap=0.015)
    bench = Bench(NOT_THERE, NOT_THERE, GOOD, purse=purse)
    error = bench.fails(SpendCapReached)
    assert error.whole_session
    assert len(bench.answers.items) == 2
    assert "resume --max-cost" in error.hint


def test_an_unusable_answer_is_not_sent_back_once_the_session_is_to_end() -> None:
    ending = threading.Event()

    def stops(question: Question) -> str:
        ending.set()
        return NOT_THERE

    bench = Bench(stops, GOOD, ending=ending)
    bench.fails(Interrupted)
    assert len(bench.client.questions) == 1
    assert len(bench.answers.items) == 1, "what has come is on record and charged"


# ---------------------------------------------------------------------- unusable answers
def test_an_edit_that_does_not_fit_goes_back_with_its_exact_error() -> None:
    bench = Bench(NOT_THERE, GOOD)
    assert bench.propose().files == {"train.py": HIGHER}
    error, used = bench.errors
    assert error and used == ""
    assert error in bench.told(1)
    assert bench.client.questions[1].messages[-2] == {"role": "assistant", "content": NOT_THERE}
    assert bench.client.questions[1].messages[:-2] == bench.client.questions[0].messages


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


def test_an_empty_answer_is_told_and_sent_back_as_a_turn_that_providers_take() -> None:
    bench = Bench("", GOOD)
    bench.propose()
    assert bench.errors[0] == "the answer is empty"
    assert all(m["content"].strip() for m in bench.client.questions[1].messages)


def test_an_answer_too_long_to_be_read_is_refused_cut_and_charged() -> None:
    bench = Bench("x" * (2 * MAX_READ), settings=ModelSettings(reasks=0))
    assert "2,000,000 characters long" in bench.fails(PolicyError).what
    assert len(bench.answers.answers[0].generation.completion) <= MAX_READ
    assert bench.answers.usd == 0.01


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


def test_a_model_that_gives_its_failed_edit_up_is_not_pressed() -> None:
    bench = Bench('It cannot work: the width is fixed.\n{"hypothesis": "none"}')
    error = bench.fails(PolicyError, repairing())
    assert error.what.startswith("the model gives its edit up: It cannot work")
    assert len(bench.client.questions) == 1
    assert error.cost == COST


# ---------------------------------------------------------------------- structured
def filled(*edits: tuple[str, str], path: str = "train.py") -> str:
    """An answer as a model gives it that obeys the schema."""
    return json.dumps(
        {
            "hypothesis": "a higher rate learns faster",
            "description": "LR 0.1 to 0.2",
            "expected_delta": 0.01,
            "next_action_hint": "",
            "edits": [{"file": path, "search": old, "replace": new} for old, new in edits],
        }
    )


RAISED = filled(("LR = 0.1", "LR = 0.2"))


def knowing(bench: Bench, known: bool = True) -> Bench:
    """The bench with a client that knows about schemas."""
    bench.client.takes_schema = lambda: known  # type: ignore[attr-defined]
    return bench


def instructions(bench: Bench, question: int = 0) -> str:
    return bench.client.questions[question].messages[0]["content"]


def test_a_model_that_has_it_is_asked_for_json_and_its_edit_is_used() -> None:
    bench = knowing(Bench(RAISED))
    proposal = bench.propose()
    assert bench.client.questions[0].schema == SCHEMA
    assert "Answer with one JSON object" in instructions(bench)
    assert "<<<<<<< SEARCH" not in instructions(bench)
    assert proposal.files == {"train.py": HIGHER}
    assert (proposal.hypothesis, proposal.expected_delta) == ("a higher rate learns faster", 0.01)
    assert bench.answers.answers[0].form == "search_replace"


def test_a_model_of_which_nobody_knows_it_is_asked_for_text() -> None:
    for bench in (Bench(GOOD), knowing(Bench(GOOD), known=False)):
        assert bench.propose().files == {"train.py": HIGHER}
        assert bench.client.questions[0].schema is None
        assert "<<<<<<< SEARCH" in instructions(bench)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_user_has_the_last_word_on_it(wanted: bool) -> None:
    bench = knowing(Bench(RAISED, settings=ModelSettings(structured=wanted)), known=not wanted)
    bench.propose()
    assert (bench.client.questions[0].schema is not None) is wanted


def test_the_example_that_the_model_is_shown_obeys_the_schema_and_can_be_read() -> None:
    example = SCHEMA_FORMS[SCHEMA_FORMS.index("{") : SCHEMA_FORMS.rindex("}") + 1]
    assert set(json.loads(example)) == set(SCHEMA["required"])
    edit = read_answer(example, {"train.py": "learning_rate = 3e-4\n"})
    assert edit.files == {"train.py": "learning_rate = 1e-3\n"}


# ---------------------------------------------------------------------- the version that answers
class Client(ScriptedClient):
    """A model that tells with each answer how often it had looked before."""

    looks = 0

    def renew(self) -> None:
        self.looks += 1


def looks(states: list[ResearchState]) -> list[str]:
    client = Client(then=lambda _: edit("LR = 0.1", "LR = 0.2", hypothesis=str(client.looks)))
    bench = Bench()
    bench.policy.clients = [client]
    return [bench.propose(state).hypothesis for state in states]


def test_each_round_looks_once_and_a_repair_not_at_all() -> None:
    repair = Repair(1, {}, "error", "a typo")
    states = [
        replace(make_state(CODE), number=1, round_id="t/1"),
        replace(make_state(CODE), number=2, round_id="t/1"),
        replace(make_state(CODE), number=2, round_id="t/1/2/1", repair=repair),
        replace(make_state(CODE), number=3, round_id="t/3"),
        replace(make_state(CODE), number=3, round_id="t/3/3/1", repair=repair),
        replace(make_state(CODE), number=4, round_id="t/3"),
    ]
    assert looks(states) == ["1", "1", "1", "2", "2", "2"]


def test_without_rounds_each_experiment_looks() -> None:
    assert looks([replace(make_state(CODE), round_id="")] * 3) == ["1", "2", "3"]
