"""Each answer earns what it deserves: a bad answer is not paid for what came later, a good one not for another's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.proposal import Answer, Cost, Generation, Proposal
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.evaluator.reward import FORMULA, PENALTIES
from autoresearchd.evaluator.rules.legality import check_edit
from autoresearchd.learner.data.trajectories import Filters, Reason, Record, dataset, grouped
from autoresearchd.learner.data.trajectory_records import NO_REPLY, label_of, records
from autoresearchd.models.client import Reply
from autoresearchd.policy.model_policy import ModelPolicy
from autoresearchd.store.reader import Transcript
from tests.fakes.models import MemoryAnswers, OpenPurse, PatientCancel, ScriptedClient, Step
from tests.fakes.policies import make_state, make_task

CODE = "LR = 0.1\nDEPTH = 4\n\n\ndef train() -> float:\n    return LR * DEPTH\n"
START = datetime(2026, 11, 1, tzinfo=UTC)
TASK = make_task()
TEXT = Filters(tokens=False)
GAIN = Decision(Status.KEEP, Label.NONE, 0.9, delta=0.1, reward=2.5, reason="better.", reward_formula=FORMULA)
CRASH = Decision(Status.CRASH, Label.ERROR, reward=-2.0, reason="error: it broke.", reward_formula=FORMULA)
REFUSED = Decision(Status.CRASH, Label.MALFORMED_ANSWER, reward=-2.0, reason="no edit.", reward_formula=FORMULA)


def answer(error: str = "", *, asked: str = "improve", said: str = "edit", form: str = "", attempt: int = 0) -> Answer:
    generation = Generation(({"role": "user", "content": asked},), said)
    return Answer("m", Cost(), generation, error, form or ("" if error else "search_replace"), "stop", attempt)


def proposal(attempt: int = 0, *, policy: str = "local:m", round_id: str = "t/1", state_id: str = "t/1") -> Proposal:
    ids = (
        (round_id, state_id) if round_id and attempt == 0 else (f"{round_id}/{attempt}",) * 2 if round_id else ("", "")
    )
    return Proposal({}, "a reason", policy, round_id=ids[0], state_id=ids[1], attempt=attempt)


def transcript(
    *answers: Answer | None,
    number: int = 1,
    decision: Decision | None = GAIN,
    proposals: tuple[Proposal, ...] = (proposal(),),
    runs: tuple[Run, ...] = (),
    **changed: Any,
) -> Transcript:
    attempt = proposals[-1].attempt if proposals else 0
    phase = Phase.PROPOSING if decision is None else Phase.DECIDED
    e = Experiment(
        1,
        number,
        0,
        phase,
        "0" * 40,
        START + timedelta(minutes=number),
        proposal=proposals[-1] if proposals else None,
        runs=runs,
        decision=decision,
        attempt=attempt,
    )
    return Transcript(number, replace(e, **changed), proposals, answers)


def run(
    label: Label, *, attempt: int = 0, detail: str = "NameError: x", ended: bool = True, of: int | None = None
) -> Run:
    return Run(1, 1, 0, 7, START, START if ended else None, label=label, detail=detail, attempt=attempt, of=of)


def read(*transcripts: Transcript, **more: Any) -> list[Record]:
    found, lost = records("t", TASK, transcripts, **more)
    assert lost == 0
    return found


# ---------------------------------------------------------------------- rewards
def test_the_answer_that_became_the_proposal_earns_the_decision() -> None:
    (found,) = read(transcript(answer()))
    assert (found.label, found.reward, found.unusable) == (Label.NONE, 2.5, None)
    assert "This is an improvement" in found.feedback


def test_an_unusable_answer_earns_its_penalty_though_the_next_one_was_kept() -> None:
    bad, good = read(transcript(answer("there is no such line"), answer()))
    assert (bad.label, bad.reward) == (Label.MALFORMED_ANSWER, PENALTIES[Label.MALFORMED_ANSWER])
    assert bad.feedback == "there is no such line", "the words that the model was told"
    assert (good.label, good.reward, good.index) == (Label.NONE, 2.5, 1)


def test_where_no_answer_could_be_used_each_earns_its_own_penalty() -> None:
    failed = proposal(round_id="")
    first, last = read(
        transcript(
            answer("the edit changes nothing: only comments or layout differ", form="diff"),
            answer("no edit"),
            decision=REFUSED,
            proposals=(failed,),
        )
    )
    assert (first.label, first.reward) == (Label.NO_OP, PENALTIES[Label.NO_OP])
    assert (last.label, last.reward) == (Label.MALFORMED_ANSWER, PENALTIES[Label.MALFORMED_ANSWER])


def test_a_proposal_that_was_given_back_earns_the_penalty_of_its_failed_run_and_not_what_its_repair_earned() -> None:
    given, fixed = read(
        transcript(
            answer(),
            answer(attempt=1),
            proposals=(proposal(), proposal(1)),
            runs=(run(Label.ERROR), run(Label.NONE, attempt=1)),
        )
    )
    assert (given.label, given.reward) == (Label.ERROR, PENALTIES[Label.ERROR])
    assert "NameError: x." in given.feedback
    assert (fixed.label, fixed.reward) == (Label.NONE, 2.5)


def test_a_proposal_of_a_search_that_stood_in_for_the_model_pays_no_answer_of_the_model() -> None:
    bad, unused = read(transcript(answer("no edit"), answer(), proposals=(proposal(policy="search"),)))
    assert bad.reward == PENALTIES[Label.MALFORMED_ANSWER]
    assert (unused.label, unused.reward) == (Label.INTERRUPTED, None)


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ((), Reason.UNDECIDED),
        ((run(Label.NONE, ended=False),), Reason.UNDECIDED),
        ((run(Label.INTERRUPTED),), Reason.INTERRUPTED),
        ((run(Label.HOST_LOST),), Reason.INTERRUPTED),
    ],
)
def test_what_has_not_been_decided_is_not_learned_from(runs: tuple[Run, ...], reason: Reason) -> None:
    found = read(transcript(answer("no edit"), answer(), decision=None, runs=runs))
    assert dataset(found, TEXT).dropped == {reason: 2}


@pytest.mark.parametrize("formula", ["0", None])
def test_rewards_of_another_formula_are_not_mixed_with_those_of_this_one(formula: str | None) -> None:
    found = read(transcript(answer("no edit"), answer(), decision=replace(GAIN, reward_formula=formula)))
    assert dataset(found, TEXT).dropped == {Reason.OTHER_FORMULA: 1}
    assert [r.unusable for r in found] == [None, Reason.OTHER_FORMULA], "a penalty is always this formula's"


def test_a_question_without_a_reply_is_no_answer() -> None:
    unanswered = answer(f"{NO_REPLY}timeout (too late)", said="")
    found = read(transcript(unanswered, answer("no edit"), unanswered, answer()))
    assert [(r.index, r.reward) for r in found] == [(0, -2.0), (1, 2.5)]


def test_turns_of_an_agent_are_left_out_with_their_reason() -> None:
    turns = (answer("no block"), answer(form="command"), answer(form="submit"))
    by_form = read(transcript(*turns))
    by_policy = read(transcript(answer("no block"), proposals=(proposal(policy="agent:m"),)))
    by_session = read(transcript(answer("no block")), agent=True)
    for found in (by_form, by_policy, by_session):
        assert set(dataset(found, TEXT).dropped) == {Reason.AGENT_TURN}


def test_what_cannot_be_read_is_counted_and_loses_nothing_else() -> None:
    found, lost = records(
        "t",
        TASK,
        [
            transcript(answer("no edit"), None, answer()),
            Transcript(2, None, (), (answer(), None)),
            transcript(answer(), number=3),
        ],
    )
    assert lost == 3
    assert [(r.experiment.number, r.index, r.reward) for r in found] == [(1, 0, -2.0), (1, 2, 2.5), (3, 0, 2.5)]


# ---------------------------------------------------------------------- rounds
def refused(number: int, asked: str = "improve") -> Transcript:
    return transcript(
        answer("no edit", asked=asked), number=number, decision=REFUSED, proposals=(proposal(round_id=""),)
    )


def proposed(number: int, first: int, asked: str = "improve") -> Transcript:
    ids = f"t/{first}"
    return transcript(answer(asked=asked), number=number, proposals=(proposal(round_id=ids, state_id=ids),))


def rounds(*transcripts: Transcript) -> list[list[int]]:
    return [[t.number for t in group] for group in grouped(dataset(read(*transcripts), TEXT).trajectories).values()]


def test_a_member_of_a_round_that_gave_no_usable_answer_stays_its_member() -> None:
    """Without it GRPO would never see a malformed answer beside a good one."""
    assert rounds(proposed(1, 1), refused(2), proposed(3, 1), refused(4)) == [[1, 2, 3, 4]]


def test_a_round_in_which_all_failed_is_a_round() -> None:
    assert rounds(proposed(1, 1, "a"), refused(2, "b"), refused(3, "b"), proposed(4, 4, "c")) == [[1], [2, 3], [4]]


def test_a_failed_answer_to_another_question_is_no_member() -> None:
    assert rounds(proposed(1, 1, "a"), refused(2, "b"), proposed(3, 3, "c")) == [[1], [2], [3]]


def test_the_first_answer_of_a_repaired_experiment_stays_in_its_round() -> None:
    repaired = transcript(
        answer(),
        answer(attempt=1, asked="hint"),
        number=2,
        proposals=(proposal(), proposal(1)),
        runs=(run(Label.ERROR),),
    )
    assert sorted(rounds(proposed(1, 1), repaired)) == [[1, 2], [2]]


# ---------------------------------------------------------------------- the words of errors
def edit(old: str, new: str, path: str = "train.py") -> str:
    return f"{path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


GOOD = edit("LR = 0.1", "LR = 0.2")


def legal(state: ResearchState, files: Mapping[str, str]) -> None:
    check_edit(state.task, state.code, {**state.code, **files})


def near(state: ResearchState, files: Mapping[str, str], changes: Mapping[str, Any]) -> str:
    return "experiment 3"


@pytest.mark.parametrize(
    ("said", "label", "more"),
    [
        (GOOD, Label.NONE, {}),
        ("Lower the rate.", Label.MALFORMED_ANSWER, {}),
        ("I'm sorry, I cannot help with that.", Label.MALFORMED_ANSWER, {}),
        (edit("LR = 0.7", "LR = 0.8"), Label.MALFORMED_ANSWER, {}),
        (Reply(GOOD, "m", Cost(), finish="content_filter"), Label.MALFORMED_ANSWER, {}),
        (Reply("cut", "m", Cost(), finish="length"), Label.MALFORMED_ANSWER, {}),
        (edit("LR = 0.1", "LR = = 0.2"), Label.ILLEGAL_EDIT, {}),
        (edit("LR = 0.1", "LR = 0.1"), Label.NO_OP, {}),
        (edit("LR = 0.1", "LR = 0.1  # the rate"), Label.NO_OP, {}),
        (Reply(edit("LR = 0.1", "LR = 0.1"), "m", Cost(), finish="length"), Label.NO_OP, {}),
        ('{"edits": []}', Label.NO_OP, {}),
        (GOOD, Label.DUPLICATE, {"near": near}),
    ],
)
def test_the_label_of_an_answer_is_the_one_that_the_policy_gave_it(said: Step, label: Label, more: Any) -> None:
    """The store keeps the words of an error alone: were they changed, rewards would be wrong without a sign."""
    log = MemoryAnswers()
    steps = [said] if not more else [said, "nothing"]
    policy = ModelPolicy(
        [ScriptedClient(steps)],
        ModelSettings(reasks=1 if more else 0),
        name="litellm:m",
        answers=log,
        purse=OpenPurse(),
        check=legal,
        **more,
    )
    state = make_state(CODE, number=5)
    if label is Label.NONE:
        policy.propose(state, PatientCancel())
        assert log.answers[0].error == ""
        return
    with pytest.raises(PolicyError) as caught:
        policy.propose(state, PatientCancel())
    assert label_of(log.answers[0]) is label
    if not more:
        wrong = (caught.value.label, label)
        assert caught.value.label is label or PENALTIES[caught.value.label] == PENALTIES[label], wrong
