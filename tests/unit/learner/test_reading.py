"""Sessions are read once each and never written to; each answer earns what it deserves itself, no more and no less."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.errors import PolicyError, UsageError
from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.outlook import PASSED_BY, Outlook, Prospect
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.evaluator.feedback import FORMULA, PENALTIES
from autoresearchd.learner.data.read_sessions import (
    NO_REPLY,
    Reading,
    label_of,
    lesson,
    locate,
    material,
    read_sessions,
    records,
    seen,
)
from autoresearchd.learner.data.trajectories import Dataset, Reason, Record, Split, dataset, grouped
from autoresearchd.models.client import Reply
from autoresearchd.models.model_files import base_model
from autoresearchd.store.reader import Transcript
from tests.fakes.models import Step
from tests.fakes.policies import make_state, make_task
from tests.unit.learner.sessions import ONE_EACH, add_session, make_root
from tests.unit.policy.model_bench import Bench, edit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "work" / "project")


# ---------------------------------------------------------------------- what is learned from
def test_a_session_becomes_groups_with_its_failures_in_them(root: Path) -> None:
    add_session(root)
    found = material(read_sessions([root]), "replay")
    trajectories = found.data.trajectories
    assert [t.number for t in trajectories] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [t.reward for t in trajectories] == [reward for reward, _ in ONE_EACH]
    assert [[t.number for t in group] for group in grouped(trajectories).values()] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert found.parts is not None
    assert found.parts.by == "time"
    assert found.problem == ""
    assert found.signal.groups == 3, "of the training part"


def test_sessions_of_other_repositories_are_foreign_and_nothing_of_them_is_held_out_for_experiments(
    tmp_path: Path, root: Path
) -> None:
    other = make_root(tmp_path / "other" / "project")
    add_session(root)
    add_session(other, days=1)
    found = read_sessions([root, other], root)
    assert [session.foreign for session in found.sessions] == [False, True]
    assert [session.foreign for session in read_sessions([root, other]).sessions] == [True, True]
    parts = material(found, "replay", at_home=True).parts
    assert parts is not None
    assert {t.session for t in parts.held_out} == {"work/project/mar8"}
    assert {t.session for t in parts.train} == {"work/project/mar8", "other/project/mar8"}, "all are learned from"
    alone = material(read_sessions([other], root), "replay", at_home=True).parts
    assert alone is not None and alone.held_out, "where there is no other session, these are split"


def test_answers_of_another_base_model_are_left_out_where_it_is_known(root: Path) -> None:
    add_session(root, "one", model_hash="aa11")
    add_session(root, "two", model_hash="bb22", days=1)
    found = read_sessions([root])
    assert found.models == {"m (aa11)": 8, "m (bb22)": 8}
    base = BaseModel("m", "bb22", "t", "c")
    assert material(found, "replay", base).data.dropped == {Reason.OTHER_MODEL: 8}
    assert material(found, "replay").data.dropped == {}


def test_live_learning_needs_no_stored_tokens(root: Path) -> None:
    add_session(root, tokens=False)
    found = read_sessions([root])
    replay, live = material(found, "replay"), material(found, "live")
    assert (len(replay.data.trajectories), len(live.data.trajectories)) == (0, 8)
    assert replay.problem == "none of 8 answers can be learned from"
    assert "local:DIR" in replay.hint


# ---------------------------------------------------------------------- which repositories


def test_a_place_that_is_no_repository_is_named(root: Path, tmp_path: Path) -> None:
    add_session(root)
    (tmp_path / "plain").mkdir()
    with pytest.raises(UsageError, match="is in no git repository") as caught:
        locate(root, [tmp_path / "plain"])
    assert f"--from {tmp_path / 'plain'}" in caught.value.what


# ---------------------------------------------------------------------- the base model
def model(folder: Path, template: str = "{{ messages }}", *, own_file: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    settings = {"eos_token": "</s>"} if own_file else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if own_file:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("own_file", [True, False])
def test_a_model_on_disk_is_known_by_its_weights_tokenizer_and_template(tmp_path: Path, own_file: bool) -> None:
    found = base_model(model(tmp_path / "m", "a template\n", own_file=own_file))
    assert found.template_hash == hashlib.sha256(b"a template\n").hexdigest()
    assert found.model_hash
    assert found.tokenizer_hash


# ---------------------------------------------------------------------- seen
def split_of(reading: Reading) -> Split:
    found = material(reading, "replay").parts
    assert found is not None
    return found


def test_what_a_parent_learned_from_is_known_again_and_what_came_after_it_is_new(tmp_path: Path) -> None:
    root = make_root(tmp_path / "a")
    add_session(root, outcomes=ONE_EACH * 2)
    reading = read_sessions([root])
    parts = split_of(reading)
    known = seen([lesson(parts.train, reading.sessions)], reading.sessions)
    assert all(known.holds(each) for each in parts.train)
    assert not any(known.holds(each) for each in parts.held_out), "the later part of the session is still unknown to it"


def test_a_session_is_known_again_beside_others_and_after_its_repository_was_moved(tmp_path: Path) -> None:
    root = make_root(tmp_path / "a")
    add_session(root, seed=1)
    reading = read_sessions([root])
    assert reading.sessions[0].name == "mar8"
    data = lesson(split_of(reading).train, reading.sessions)
    moved, other = tmp_path / "elsewhere", make_root(tmp_path / "b")
    shutil.move(root, moved)
    add_session(other, seed=2)
    together = read_sessions([moved, other])
    assert [each.name for each in together.sessions] == ["elsewhere/mar8", "b/mar8"]
    known = seen([data], together.sessions)
    assert set(known.last) == {"elsewhere/mar8"}, "the other began on the same day from the same commit"


def test_what_all_ancestors_learned_from_counts(tmp_path: Path) -> None:
    root = make_root(tmp_path / "a")
    add_session(root)
    sessions = read_sessions([root]).sessions
    [identity] = (session.identity for session in sessions)
    lessons: list[dict[str, Any]] = [{"trained_on": {identity: number}} for number in (3, 5, 4)]
    assert seen(lessons, sessions).last == {"mar8": 5}
    assert seen([], sessions).last == {}


# ---------------------------------------------------------------------- answers
START = datetime(2026, 11, 1, tzinfo=UTC)
TASK = make_task()
GAIN = Decision(Status.KEEP, Label.NONE, 0.9, delta=0.1, reward=2.5, reason="better.", reward_formula=FORMULA)
REFUSED = Decision(Status.CRASH, Label.MALFORMED_ANSWER, reward=-2.0, reason="no edit.", reward_formula=FORMULA)


def answer(error: str = "", *, asked: str = "improve", said: str = "edit", form: str = "", attempt: int = 0) -> Answer:
    generation = Generation(({"role": "user", "content": asked},), said)
    return Answer("m", Cost(), generation, error, form or ("" if error else "search_replace"), "stop", attempt)


def proposal(attempt: int = 0, *, policy: str = "local:m", round_id: str = "t/1", state_id: str = "t/1") -> Proposal:
    if round_id and attempt:
        round_id = state_id = f"{round_id}/{attempt}"
    return Proposal({}, "a reason", policy, round_id=round_id, state_id=state_id, attempt=attempt)


def transcript(
    *answers: Answer | None,
    number: int = 1,
    decision: Decision | None = GAIN,
    proposals: tuple[Proposal, ...] = (proposal(),),
    runs: tuple[Run, ...] = (),
) -> Transcript:
    last = proposals[-1]
    phase, parent = Phase.PROPOSING if decision is None else Phase.DECIDED, "0" * 40
    e = Experiment(1, number, 0, phase, parent, START, last, runs=runs, decision=decision, attempt=last.attempt)
    return Transcript(number, e, proposals, answers)


def run(label: Label, *, attempt: int = 0, ended: bool = True) -> Run:
    return Run(1, 1, 0, 7, START, START if ended else None, label=label, detail="NameError: x", attempt=attempt)


def read(*transcripts: Transcript, **more: Any) -> list[Record]:
    made, lost = records("t", TASK, transcripts, **more)
    assert lost == 0
    return made


def earned(*transcripts: Transcript) -> list[tuple[Label, float]]:
    return [(each.trajectory.label, each.trajectory.reward) for each in read(*transcripts)]


def text_of(made: list[Record]) -> Dataset:
    return dataset(made, tokens=False)


# ---------------------------------------------------------------------- rewards
def penalised(label: Label) -> tuple[Label, float]:
    return label, PENALTIES[label]


def test_an_unusable_answer_earns_its_penalty_though_the_next_one_was_kept() -> None:
    made = transcript(answer("there is no such line"), answer())
    assert earned(made) == [penalised(Label.MALFORMED_ANSWER), (Label.NONE, 2.5)]
    bad, good = (each.trajectory for each in read(made))
    assert bad.feedback == "there is no such line", "the words that the model was told"
    assert "This is kept" in good.feedback
    assert (good.index, [each.refusal for each in read(made)]) == (1, [None, None])


def test_a_keep_that_a_confirmation_refuted_earns_nothing_for_its_gain() -> None:
    parts = {"improvement": 2.3, "efficiency": 0.1, "novelty": 0.1}
    made = transcript(answer(), decision=replace(GAIN, reward_parts=parts))
    fell = replace(made, experiment=replace(made.experiment, confirmed=False))
    (record,) = read(fell)
    assert (record.trajectory.label, record.trajectory.reward) == (Label.NO_GAIN, pytest.approx(0.1))
    assert "did not stand when it was measured again" in record.trajectory.feedback


def test_where_no_answer_could_be_used_each_earns_its_own_penalty() -> None:
    nothing = answer("the edit changes nothing: only comments or layout differ", form="diff")
    made = transcript(nothing, answer("no edit"), decision=REFUSED, proposals=(proposal(round_id="", state_id=""),))
    assert earned(made) == [penalised(Label.NO_OP), penalised(Label.MALFORMED_ANSWER)]


def test_a_proposal_that_was_given_back_earns_the_penalty_of_its_failed_run_and_not_what_its_repair_earned() -> None:
    runs = (run(Label.ERROR), run(Label.NONE, attempt=1))
    made = transcript(answer(), answer(attempt=1), proposals=(proposal(), proposal(1)), runs=runs)
    assert earned(made) == [penalised(Label.ERROR), (Label.NONE, 2.5)]
    assert "NameError: x." in read(made)[0].trajectory.feedback


def test_a_proposal_of_a_search_that_stood_in_for_the_model_pays_no_answer_of_the_model() -> None:
    made = read(transcript(answer("no edit"), answer(), proposals=(proposal(policy="search"),)))
    assert made[0].trajectory.reward == PENALTIES[Label.MALFORMED_ANSWER]
    assert [each.refusal for each in made] == [None, Reason.INTERRUPTED]


def test_an_answer_that_passed_is_left_out_and_an_unusable_one_earns_its_penalty_and_no_more() -> None:
    made = replace(proposal(policy="search"), asi=ASI(extra={PASSED_BY: "local:m"}))
    unused = read(transcript(answer("no edit"), proposals=(made,)))
    passed = read(transcript(answer(form="pass"), number=2, proposals=(made,)))
    assert text_of([*unused, *passed]).dropped == {Reason.PASSED: 1}
    assert unused[0].trajectory.reward == PENALTIES[Label.MALFORMED_ANSWER]


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
    made = read(transcript(answer("no edit"), answer(), decision=None, runs=runs))
    assert text_of(made).dropped == {reason: 2}


@pytest.mark.parametrize("formula", ["0", None])
def test_rewards_of_another_formula_are_not_mixed_with_those_of_this_one(formula: str | None) -> None:
    made = read(transcript(answer("no edit"), answer(), decision=replace(GAIN, reward_formula=formula)))
    assert [each.refusal for each in made] == [None, Reason.OTHER_FORMULA], "a penalty is always this formula's"


def test_a_question_without_a_reply_is_no_answer() -> None:
    unanswered = answer(f"{NO_REPLY}timeout (too late)", said="")
    made = read(transcript(unanswered, answer("no edit"), unanswered, answer()))
    assert [(each.trajectory.index, each.trajectory.reward) for each in made] == [(0, -2.0), (1, 2.5)]


def test_turns_of_an_agent_are_left_out_with_their_reason() -> None:
    by_form = read(transcript(answer("no block"), answer(form="command"), answer(form="submit")))
    by_policy = read(transcript(answer("no block"), proposals=(proposal(policy="agent:m"),)))
    by_session = read(transcript(answer("no block")), agent=True)
    for made in (by_form, by_policy, by_session):
        assert set(text_of(made).dropped) == {Reason.AGENT_TURN}


def test_what_cannot_be_read_is_counted_and_loses_nothing_else() -> None:
    whole, broken = transcript(answer(), number=3), Transcript(2, None, (), (answer(), None))
    made, lost = records("t", TASK, [transcript(answer("no edit"), None, answer()), broken, whole])
    assert lost == 3
    assert [(*each.trajectory.key[1:], each.trajectory.reward) for each in made] == [
        (1, 0, -2),
        (1, 2, 2.5),
        (3, 0, 2.5),
    ]


# ---------------------------------------------------------------------- rounds
def refused(number: int, asked: str = "improve") -> Transcript:
    nothing = (proposal(round_id="", state_id=""),)
    return transcript(answer("no edit", asked=asked), number=number, decision=REFUSED, proposals=nothing)


def proposed(number: int, first: int, asked: str = "improve") -> Transcript:
    ids = f"t/{first}"
    return transcript(answer(asked=asked), number=number, proposals=(proposal(round_id=ids, state_id=ids),))


def rounds(*transcripts: Transcript) -> list[list[int]]:
    return [[t.number for t in group] for group in grouped(text_of(read(*transcripts)).trajectories).values()]


@pytest.mark.parametrize(
    ("transcripts", "groups"),
    [
        # Without it GRPO would never see a malformed answer beside a good one.
        ((proposed(1, 1), refused(2), proposed(3, 1), refused(4)), [[1, 2, 3, 4]]),
        ((proposed(1, 1, "a"), refused(2, "b"), refused(3, "b"), proposed(4, 4, "c")), [[1], [2, 3], [4]]),
        ((proposed(1, 1, "a"), refused(2, "b"), proposed(3, 3, "c")), [[1], [2], [3]]),
    ],
)
def test_an_answer_that_could_not_be_used_is_of_the_round_that_was_asked_the_same(
    transcripts: tuple[Transcript, ...], groups: list[list[int]]
) -> None:
    assert rounds(*transcripts) == groups


def test_the_first_answer_of_a_repaired_experiment_stays_in_its_round() -> None:
    asked = (answer(), answer(attempt=1, asked="hint"))
    repaired = transcript(*asked, number=2, proposals=(proposal(), proposal(1)), runs=(run(Label.ERROR),))
    assert sorted(rounds(proposed(1, 1), repaired)) == [[1, 2], [2]]


# ---------------------------------------------------------------------- the words of errors
GOOD = edit("LR = 0.1", "LR = 0.2")


def near(state: ResearchState, files: Mapping[str, str], changes: Mapping[str, Any]) -> str:
    return "is nearly the same as what has been tried: experiment 3"


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
    steps = [said] if not more else [said, "nothing"]
    bench = Bench(*steps, settings=ModelSettings(reasks=1 if more else 0), **more)
    if label is Label.NONE:
        bench.propose()
        assert bench.errors[0] == ""
        return
    refused = bench.fails(PolicyError)
    assert label_of(bench.answers.answers[0]) is label
    if not more:
        wrong = (refused.label, label)
        assert refused.label is label or PENALTIES[refused.label] == PENALTIES[label], wrong


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("DEPTH = 5", Label.DUPLICATE),
        ('{"constant": "LR", "value": 1e-5}', Label.DUPLICATE),
        (Reply("DEPTH = 5", "m", Cost(), finish="length"), Label.DUPLICATE),
        ("DEPTH = 4", Label.NO_OP),
        ("DEPTH = 500", Label.MALFORMED_ANSWER),
        # Words of the model's own in an error earn no smaller penalty.
        ('{"constant": "DEPTH = 5 was tried already", "value": 1}', Label.MALFORMED_ANSWER),
        ('{"constant": "DEPTH", "value": "x = 5 was tried already"}', Label.MALFORMED_ANSWER),
        ("DEPTH = 5-2 was tried already", Label.MALFORMED_ANSWER),
    ],
)
def test_the_label_of_a_constants_value_is_the_one_that_the_policy_gave_it(said: Step, label: Label) -> None:
    rate = Prospect("train.py:LR", 0.1, "float", 1e-5, 1.0, (0.2,), 0.2, 0.1, 0.1, tried=(1e-5,))
    depth = Prospect("train.py:DEPTH", 4, "int", 1.0, 12.0, (3,), 3, 0.1, 0.1, tried=(5,))
    bench = Bench(said, settings=ModelSettings(prompt="brief", reasks=0))
    state = make_state(bench.code, outlook=Outlook((rate, depth), {"train.py:LR": 0.2}))
    assert bench.fails(PolicyError, state).label is label
    assert label_of(bench.answers.answers[0]) is label
