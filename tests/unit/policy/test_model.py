"""The policy that asks a model: what is sent, waited for, stored and charged, and what a usable answer becomes."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from autoresearchd.config.settings import ModelSettings, Price
from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, ModelsRefused, PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import Cancel, Policy, ResearchState, TrialHistory
from autoresearchd.domain.proposal import Cost, Repair
from autoresearchd.domain.redaction import Redactor
from autoresearchd.models.client import PASSING, ModelError, Question, Trouble
from autoresearchd.policy import model_policy as model_module
from autoresearchd.policy.edits.read_answer import SCHEMA, SCHEMA_FORMS, read_answer
from autoresearchd.policy.exchange import (
    FIRST_PAUSE_S,
    LONGEST_ASKED_S,
    LONGEST_PAUSE_S,
    MAX_ANSWER,
    Exchange,
    Patience,
)
from autoresearchd.policy.model_policy import MAX_ECHO
from tests.contract.policy_contract import PolicyContract
from tests.fakes.models import PatientCancel, ScriptedClient, Step
from tests.fakes.policies import make_state
from tests.unit.policy.model_bench import BROKEN, CODE, COST, GOOD, HIGHER, NOT_THERE, Bench, edit, reply


# ---------------------------------------------------------------------- a good answer
def test_a_good_answer_becomes_a_proposal_with_its_words_its_cost_and_its_generation() -> None:
    bench = Bench(reply(GOOD, sampling={"temperature": 1.0}, adapter="v3", model_hash="abc"))
    state = make_state(CODE, number=5, role="optimizer", state_id="s1", round_id="r1")
    proposal = bench.propose(state)
    assert proposal.files == {"train.py": HIGHER}
    assert (proposal.policy, proposal.role, proposal.adapter) == ("litellm:m/one", "optimizer", "v3")
    assert (proposal.state_id, proposal.round_id, proposal.attempt) == ("s1", "r1", 0)
    assert proposal.hypothesis == proposal.description == proposal.asi.hypothesis == "a higher rate learns faster"
    assert (proposal.expected_delta, proposal.changes) == (0.01, {"train.py:LR": 0.2})
    assert (proposal.cost, proposal.charged) == (COST, True)
    generation = proposal.generation
    assert (generation.completion, generation.adapter, generation.model_hash) == (GOOD, "v3", "abc")
    assert (generation.messages, generation.sampling) == (bench.client.questions[0].messages, {"temperature": 1.0})
    ((number, stored),) = bench.answers.items
    assert (number, stored.model, stored.cost, stored.error) == (5, "provider/model-0201", COST, "")
    assert (stored.form, stored.finish, stored.generation) == ("search_replace", "stop", generation)


def test_the_users_price_counts_for_what_is_stored_and_charged() -> None:
    settings = ModelSettings(prices={"m/one": Price(input=100.0, output=1000.0)})
    bench = Bench(reply(GOOD, cost=Cost(None, 1000, 100, 1.0)), settings=settings)
    assert bench.propose().cost.usd == pytest.approx(0.2)
    assert bench.answers.usd == pytest.approx(0.2)


# ---------------------------------------------------------------------- secrets
SECRET = "hunter2hunter2x9"


def secretive() -> ResearchState:
    return make_state(CODE, redactor=Redactor([SECRET]))


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
        return "is what experiment 3 did already" if len(seen) == 1 else ""

    bench = Bench(GOOD, GOOD, near=near)
    assert bench.propose().files == {"train.py": HIGHER}
    assert seen[0] == {"train.py:LR": 0.2}
    assert "the edit is what experiment 3 did already\n" in bench.told(1)
    assert "the same again if you mean it" in bench.told(1)
    assert bench.answers.answers[0].error and not bench.answers.answers[1].error


# ---------------------------------------------------------------------- the contract
def _next_edit(question: Question) -> str:
    """A valid edit of the contract's sample that depends on nothing but the question."""
    return edit("DEPTH = 4", f"DEPTH = {5 + (question.seed or 0) % 50}", hypothesis="deeper")


class TestContract(PolicyContract):
    deterministic = False

    def make_policy(self, history: TrialHistory) -> Policy:
        return Bench(then=_next_edit).policy


# ---------------------------------------------------------------------- no reply
def test_when_no_model_replies_the_experiment_stays_open() -> None:
    trouble = ModelError(Trouble.UNREACHABLE, "connection refused")
    bench = Bench(*[trouble] * 3, fallback=[trouble] * 3, settings=ModelSettings(retries=2))
    error = bench.fails(EnvironmentFailure)
    assert "m/one: not reachable (connection refused)" in error.what and "m/two: not reachable" in error.what
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


def test_a_prompt_that_is_too_long_for_the_model_is_halved_until_it_fits() -> None:
    too_long = ModelError(Trouble.CONTEXT_TOO_LONG, "at most 20000 tokens")
    bench = Bench(too_long, too_long, GOOD)
    bench.propose(make_state(CODE, memo="\n".join(f"- learned {i}: {'x' * 80}" for i in range(3_000))))
    sizes = [bench.client.count_tokens(q.messages) for q in bench.client.questions]
    assert [size <= 64_000 >> i for i, size in enumerate(sizes)] == [True] * 3
    assert sizes == sorted(sizes, reverse=True)
    assert len(bench.answers.items) == 1


def test_a_program_too_long_for_any_prompt_is_no_experiments_fault() -> None:
    bench = Bench(settings=ModelSettings(context_tokens=1_000))
    code = CODE + "".join(f"x{i} = {i}\n" for i in range(2_000))
    assert "context_tokens" in bench.fails(EnvironmentFailure, make_state(code)).hint
    failed = Repair(1, {"train.py": code}, "error", "NameError")
    bench.fails(PolicyError, make_state(CODE, repair=failed))


# ---------------------------------------------------------------------- money and stopping
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
        (BROKEN, Label.ILLEGAL_EDIT),
        (edit("x = 1", "x = 2", path="/etc/passwd"), Label.ILLEGAL_EDIT),
        (edit("LR = 0.1", "LR = 0.1  # the rate"), Label.NO_OP),
        (" \n\t ", Label.MALFORMED_ANSWER),
    ],
)
def test_after_the_last_attempt_the_experiment_fails_under_the_label_of_the_last_error(
    answer: str, label: Label
) -> None:
    bench = Bench(GOOD.replace("0.1", "9"), answer, answer)
    error = bench.fails(PolicyError)
    assert error.label is label and "none of 3 answers could be used" in error.what
    assert error.cost == Cost(sum([0.01] * 3), 300, 30, 3.0)
    assert len(bench.answers.items) == 3
    assert all(bench.errors)


def test_an_edit_that_is_cut_off_between_two_blocks_is_not_run_in_half() -> None:
    bench = Bench(reply(GOOD, finish="length"), GOOD)
    assert bench.propose().files == {"train.py": HIGHER}
    assert "cut off at max_tokens" in bench.errors[0]


@pytest.mark.parametrize("thought", ["", "<think>\nDEPTH = 3, or else"])
def test_a_limit_that_thoughts_used_up_is_told_as_such(thought: str) -> None:
    bench = Bench(reply(thought, finish="length"), GOOD, settings=ModelSettings(max_tokens=900))
    assert bench.propose().files == {"train.py": HIGHER}
    assert "all of max_tokens (900 tokens) went into thinking" in bench.errors[0]
    assert "smaller edit" not in bench.errors[0]


def test_of_a_very_long_answer_a_part_is_stored_and_all_is_charged() -> None:
    bench = Bench("x" * (2 * MAX_ANSWER), settings=ModelSettings(reasks=0))
    assert bench.fails(PolicyError).label is Label.MALFORMED_ANSWER
    assert len(bench.answers.answers[0].generation.completion) == MAX_ANSWER
    assert bench.answers.usd == 0.01


@pytest.mark.parametrize("answer", ["", "\ud800\0 what?"])
def test_an_answer_that_is_no_text_can_be_stored_and_sent_back(answer: str) -> None:
    bench = Bench(answer, GOOD)
    bench.propose()
    stored = bench.answers.answers[0]
    sent = [m["content"] for m in bench.client.questions[1].messages]
    assert all(text.strip() for text in sent), "providers refuse an empty turn"
    for text in (stored.generation.completion, stored.error, *sent):
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
def repairing() -> ResearchState:
    failed = CODE.replace("DEPTH = 4", "DEPTH = 8\nWIDTH = dept")
    repair = Repair(1, {"train.py": failed}, "error", "NameError: name 'dept' is not defined", description="be wider")
    return make_state(CODE, number=5, repair=repair)


def test_a_repair_edits_what_the_failed_proposal_left_and_is_stored_against_the_parent() -> None:
    bench = Bench(edit("WIDTH = dept", "WIDTH = DEPTH"))
    proposal = bench.propose(repairing())
    assert proposal.files == {"train.py": CODE.replace("DEPTH = 4", "DEPTH = 8\nWIDTH = DEPTH")}
    assert proposal.attempt == 1
    assert proposal.hypothesis == "be wider"
    assert bench.answers.answers[0].attempt == 1


def test_a_repair_keeps_the_files_that_it_does_not_touch_as_the_failed_proposal_left_them() -> None:
    failed = Repair(2, {"train.py": HIGHER, "model.py": "W = = 2\n"}, "error", "SyntaxError")
    state = make_state({"train.py": CODE, "model.py": "W = 1\n"}, repair=failed)
    proposal = Bench(edit("W = = 2", "W = 2", path="model.py")).propose(state)
    assert proposal.files == {"train.py": HIGHER, "model.py": "W = 2\n"}
    assert proposal.attempt == 2


@pytest.mark.parametrize("thoughts", ["", "<thinking>\n```python\nWIDTH = 9\n```\n</thinking>\n"])
def test_a_model_that_gives_its_failed_edit_up_is_not_pressed(thoughts: str) -> None:
    bench = Bench(f'{thoughts}It cannot work: the width is fixed.\n{{"hypothesis": "none"}}')
    error = bench.fails(PolicyError, repairing())
    assert error.what.startswith("the model gives its edit up: It cannot work")
    assert len(bench.client.questions) == 1
    assert error.cost == COST


def test_a_model_that_was_cut_off_in_its_thoughts_gives_nothing_up() -> None:
    bench = Bench("<think>The width, perhaps", edit("WIDTH = dept", "WIDTH = DEPTH"))
    assert "WIDTH = DEPTH" in bench.propose(repairing()).files["train.py"]


# ---------------------------------------------------------------------- structured
RAISED = json.dumps(
    {
        "hypothesis": "a higher rate learns faster",
        "expected_delta": 0.01,
        "edits": [{"file": "train.py", "search": "LR = 0.1", "replace": "LR = 0.2"}],
    }
)


@pytest.mark.parametrize(
    ("known", "wanted", "structured"),
    [(True, None, True), (False, None, False), (False, True, True), (True, False, False)],
)
def test_a_model_that_has_it_is_asked_for_json_unless_the_user_says_otherwise(
    known: bool, wanted: bool | None, structured: bool
) -> None:
    bench = Bench(RAISED, settings=ModelSettings(structured=wanted))
    bench.client.takes_schema = lambda: known  # type: ignore[method-assign]
    proposal = bench.propose()
    assert (proposal.files, proposal.expected_delta) == ({"train.py": HIGHER}, 0.01)
    question = bench.client.questions[0]
    assert question.schema == (SCHEMA if structured else None)
    assert ("<<<<<<< SEARCH" in question.messages[0]["content"]) is not structured
    assert bench.answers.answers[0].form == "search_replace"


def test_the_example_that_the_model_is_shown_obeys_the_schema_and_can_be_read() -> None:
    example = SCHEMA_FORMS[SCHEMA_FORMS.index("{") : SCHEMA_FORMS.rindex("}") + 1]
    assert set(json.loads(example)) == set(SCHEMA["required"])
    edit = read_answer(example, {"train.py": "learning_rate = 3e-4\n"})
    assert edit.files == {"train.py": "learning_rate = 1e-3\n"}


# ---------------------------------------------------------------------- the version that answers
def test_each_round_looks_once_which_version_answers_and_a_repair_not_at_all() -> None:
    looks: list[str] = []
    repair = Repair(1, {}, "error", "a typo")
    rounds = [("t/1", None), ("t/1", None), ("t/1/2/1", repair), ("t/3", None), ("t/3/3/1", repair), ("t/3", None)]
    bench = Bench(then=lambda _: edit("LR = 0.1", "LR = 0.2", hypothesis=str(len(looks))))
    bench.client.renew = lambda: looks.append("looked")  # type: ignore[method-assign]
    for (name, failed), count in zip([*rounds, ("", None), ("", None)], "11122234", strict=True):
        state = make_state(CODE, round_id=name, repair=failed)
        assert bench.propose(state).hypothesis == count, "without rounds each experiment looks"


# ---------------------------------------------------------------------- asking
MESSAGES = ({"role": "user", "content": "an edit, please"},)
FINAL = sorted(set(Trouble) - PASSING - {Trouble.CONTEXT_TOO_LONG})


def failing(trouble: Trouble, **options: Any) -> ModelError:
    return ModelError(trouble, "in the provider's words", **options)


class Asking(Bench):
    """An exchange with a model, and with a second one where there is a fallback."""

    def __init__(self, *steps: Step, fallback: Step = "", ending: Cancel | None = None, **settings: Any) -> None:
        told = ModelSettings(**{"retries": 3, **settings})
        super().__init__(*steps, fallback=[fallback] if fallback else [], settings=told, ending=ending)

    def ask(self, **options: Any) -> str:
        self.cancel = PatientCancel(**options)
        exchange = Exchange(self.policy, make_state("x = 1\n", seed=7))
        return exchange.ask(lambda budget: MESSAGES, 0, 300.0, self.cancel).text

    @property
    def asked(self) -> tuple[int, int]:
        """How often each was asked."""
        return len(self.client.questions), len(self.second.questions)

    @property
    def bill(self) -> list[tuple[str, Cost]]:
        """What each call has cost that brought no reply."""
        return [(answer.model, answer.cost) for answer in self.answers.answers]


@pytest.mark.parametrize("trouble", sorted(PASSING - {Trouble.TIMEOUT}))
def test_a_passing_trouble_is_waited_out_and_the_question_repeated(trouble: Trouble) -> None:
    asking = Asking(failing(trouble), failing(trouble), "yes")
    assert asking.ask() == "yes"
    assert (asking.asked, len(asking.cancel.waits)) == ((3, 0), 2)


def test_a_time_out_is_repeated_once_and_its_hint_says_what_to_change() -> None:
    asking = Asking(*[failing(Trouble.TIMEOUT)] * 4)
    with pytest.raises(EnvironmentFailure) as caught:
        asking.ask()
    assert asking.asked == (2, 0) and "max_tokens" in caught.value.hint


def test_waits_double_are_jittered_and_bounded() -> None:
    asking = Asking(*[failing(Trouble.OVERLOADED)] * 13, retries=12)
    with pytest.raises(EnvironmentFailure):
        asking.ask()
    waits, most = asking.cancel.waits, [min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**i) for i in range(12)]
    assert all(0 <= wait <= bound for wait, bound in zip(waits, most, strict=True))
    assert len({round(wait, 6) for wait in waits}) == 12
    assert any(wait > 10 for wait in waits)


@pytest.mark.parametrize(
    "error",
    [failing(Trouble.RATE_LIMITED, retry_after=LONGEST_ASKED_S + 1), *map(failing, FINAL)],
    ids=lambda error: error.trouble,
)
def test_what_no_wait_helps_goes_to_the_next_model_at_once(error: ModelError) -> None:
    asking = Asking(error, fallback="yes")
    assert asking.ask() == "yes"
    assert (asking.asked, asking.cancel.waits) == ((1, 1), [])


def test_a_failed_call_that_cost_something_is_charged_to_its_model() -> None:
    cost = Cost(0.02, 1000, 50)
    broken, refused = (failing(t, cost=cost) for t in (Trouble.BROKEN_REPLY, Trouble.REFUSED))
    asking = Asking(broken, failing(Trouble.OVERLOADED), refused, fallback="yes")
    asking.ask()
    assert asking.bill == [("m/one", cost), ("m/one", cost)]


def test_a_stop_ends_a_wait_at_once_and_nobody_else_is_asked() -> None:
    asking = Asking(*[failing(Trouble.OVERLOADED)] * 5, fallback="never", retries=5)
    with pytest.raises(Interrupted):
        asking.ask(stop_after=2)
    assert asking.asked == (2, 0)


def test_a_session_that_is_to_end_does_not_wait_for_a_server_that_is_not_there() -> None:
    ending = PatientCancel(stop_after=2)
    asking = Asking(*[failing(Trouble.UNREACHABLE)] * 6, fallback="never", retries=5, ending=ending)
    with pytest.raises(Interrupted, match="m/one was not asked again"):
        asking.ask()
    assert (asking.asked, asking.bill) == ((2, 0), [])
    assert (len(ending.waits), asking.cancel.waits) == (2, []), "the wait is one that the request ends"


def test_an_answer_under_way_that_is_not_waited_for_is_charged_at_an_unknown_price() -> None:
    asking = Asking(Interrupted("not waited for"))
    with pytest.raises(Interrupted):
        asking.ask()
    assert asking.bill == [("m/one", Cost(usd=None, tokens_in=asking.client.count_tokens(MESSAGES)))]


class Priced(ScriptedClient):
    """A model whose price is known, also of what brought no reply: a cent for each token that may have been written."""

    def price(self, cost: Cost) -> float:
        return cost.tokens_in / 1e6 + cost.tokens_out / 100


def test_a_reply_that_comes_too_late_is_charged_as_if_all_of_it_had_been_written() -> None:
    asking, first = Asking(max_tokens=500), Priced([failing(Trouble.TIMEOUT), "yes"], name="first")
    asking.policy.clients = [first]
    asking.ask()
    sent = first.count_tokens(MESSAGES)
    assert asking.bill == [("first", Cost(usd=sent / 1e6 + 5.0, tokens_in=sent, tokens_out=500))]


# ---------------------------------------------------------------------- patience
def test_the_grace_counts_from_when_the_request_was_seen_and_a_stop_at_once_takes_none() -> None:
    cancel, ending, now = threading.Event(), threading.Event(), [100.0]
    patience = Patience(cancel, ending, grace=2.0, clock=lambda: now[0])
    assert not patience.is_set()
    now[0] = 500.0
    ending.set()
    assert not patience.is_set()
    now[0] = 501.9
    assert not patience.is_set()
    now[0] = 502.0
    assert patience.is_set()
    cancel.set()
    assert Patience(cancel, threading.Event(), grace=60.0).is_set()
