"""The learner reads what the daemon wrote, writes nothing itself, and loses to a broken row that row alone."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import EnvironmentFailure, StoreDamaged
from autoresearchd.domain.experiment import Decision, Measurement
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.proposal import Generation
from autoresearchd.store.reader import Corpus, Transcript
from autoresearchd.store.repository import SqlStore
from tests.unit.store.driver import (
    AT,
    Driver,
    Where,
    asked_again,
    begin,
    execute,
    new_answer,
    new_proposal,
    new_session,
)  # fmt: skip

DECISION = Decision(
    Status.DISCARD, Label.NO_GAIN, 1.1, delta=-0.1, metrics={"mb": 3.0}, confidence=1.5, sigma=0.01, reward=-0.9,
    reason="worse.", reward_parts={"improvement": -0.9}, reward_formula="1",
)  # fmt: skip


def fill(lab: Driver) -> None:
    """Experiments: one without answers, one asked twice, one repaired, one that is open."""
    lab.decided(Status.KEEP, 1.0)
    e, first = lab.open(), new_answer(error="no such line")
    for answer in (first, asked_again(first, {"role": "user", "content": "again"})):
        lab.answer(e, answer)
    lab.decide(lab.run(lab.commit(lab.propose(e)), Measurement(Label.NONE, 1.1, {"mb": 3.0})), DECISION)
    e = lab.open()
    lab.answer(e, new_answer())
    e = lab.run(lab.commit(lab.propose(e)), Measurement(Label.ERROR, detail="NameError: x"))
    lab.answer(e, new_answer({"role": "user", "content": "hint"}, attempt=1))
    e = lab.store.record_proposal(lab.id, e.number, new_proposal(2, attempt=1), diff="+x\n", code_hash="h2b")
    lab.decide(lab.run(lab.commit(e), Measurement(Label.NONE, 1.2)), DECISION)
    lab.answer(lab.open(), new_answer())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A filled database: making one takes longer than reading it."""
    path = tmp_path_factory.mktemp("whole") / "state.db"
    with SqlStore.open(f"sqlite:///{path}") as store:
        fill(begin(store))
    return path.read_bytes()


@pytest.fixture
def filled(path: Path, whole: bytes) -> Path:
    """A database with the sessions of ``fill`` that nobody has open."""
    path.write_bytes(whole)
    return path


def read(path: Where) -> list[Transcript]:
    with Corpus(path) as corpus:
        (session,) = corpus.sessions()
        return list(corpus.transcripts(session.id))


def test_what_is_read_is_what_the_store_says(journal: Where, lab: Driver) -> None:
    fill(lab)
    found = read(journal)
    assert [t.number for t in found] == [1, 2, 3]
    for transcript in found:
        number = transcript.number
        assert list(transcript.answers) == list(lab.store.answers(lab.id, number))
        wanted, e = lab.store.experiment(lab.id, number), transcript.experiment
        assert (e.phase, e.parent, e.started_at, e.commit) == (
            wanted.phase, wanted.parent, wanted.started_at, wanted.commit,
        )  # fmt: skip
        assert (e.runs, e.attempt, e.finished_at) == (wanted.runs, wanted.attempt, wanted.finished_at)
        assert e.decision == (None if wanted.decision is None else DECISION), "with the formula of its reward"
        if wanted.proposal is not None:
            assert e.proposal == replace(wanted.proposal, files={}, generation=Generation())


def test_all_proposals_of_an_experiment_are_there_with_their_rounds(journal: Where, lab: Driver) -> None:
    fill(lab)
    repaired = read(journal)[1]
    assert [(p.attempt, p.round_id, p.state_id) for p in repaired.proposals] == [(0, "r2", "s2"), (1, "r2", "s2")]
    assert repaired.experiment.proposal == repaired.proposals[1]
    assert [(r.attempt, r.label) for r in repaired.experiment.runs] == [(0, Label.ERROR), (1, Label.NONE)]


def test_sessions_are_listed_with_what_was_said_in_them(journal: Where, lab: Driver) -> None:
    fill(lab)
    lab.store.create_session(new_session("silent"), AT)
    with Corpus(journal) as corpus:
        assert [(s.tag, s.policy, s.decided, s.answers) for s in corpus.sessions()] == [
            ("nov21", "search", 3, 5),
            ("silent", "search", 0, 0),
        ]


def test_members_of_a_round_share_their_prompt_in_memory(journal: Where, lab: Driver) -> None:
    """A prompt has tens of thousands of tokens, and a round as many answers as its owner likes."""
    for _ in range(2):
        lab.answer(lab.open(), new_answer())
    one, other = (t.answers[0] for t in read(journal))
    assert one.generation.messages[0] is other.generation.messages[0]


def test_nothing_is_written_and_a_daemon_at_work_is_not_waited_for(path: Path, lab: Driver) -> None:
    fill(lab)
    before = path.read_bytes()
    with lab.store._db.write() as c:  # type: ignore[attr-defined]
        c.exec_driver_sql("UPDATE session SET reason = 'busy'")
        assert len(read(path)) == 3
    assert path.read_bytes() == before
    with Corpus(path) as corpus, pytest.raises(EnvironmentFailure, match="readonly"), corpus._db.write() as c:
        c.exec_driver_sql("DELETE FROM answer")


# ---------------------------------------------------------------------- damage
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE answer SET model = x'ff00'", "UPDATE answer SET attempt = 'first'",
        "UPDATE answer_body SET completion = x'0102'", "UPDATE answer_body SET messages = x'0102'",
        "UPDATE answer_body SET shared = -1", "UPDATE answer_body SET shared = 9000000000",
    ],
)  # fmt: skip
def test_a_broken_answer_loses_itself_alone(filled: Path, statement: str) -> None:
    execute(filled, f"{statement} WHERE number = 2 AND answer_index = 0")
    found = read(filled)
    assert [[a is not None for a in t.answers] for t in found] == [[True, True], [False, True], [True]]


def test_an_answer_whose_question_was_stored_with_a_broken_one_is_lost_with_it(filled: Path) -> None:
    """Its messages are those of the answer before it, and some more."""
    execute(filled, "UPDATE answer_body SET messages = x'00' WHERE number = 1 AND answer_index = 0")
    assert read(filled)[0].answers == (None, None)
    execute(filled, "DELETE FROM answer WHERE number = 1 AND answer_index = 0")
    assert read(filled)[0].answers == (None,)


def test_a_damaged_file_is_an_error_that_says_how_to_hint_it(filled: Path) -> None:
    size = filled.stat().st_size
    with filled.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    with pytest.raises(StoreDamaged) as caught:
        read(filled)
    assert "doctor --repair" in caught.value.hint


COLUMNS = {
    "experiment": ("phase", "status", "label", "value", "reward", "attempt", "started_at", "metrics", "reason"),
    "proposal": ("policy", "state_id", "changes", "reward_formula", "hypothesis"),
    "answer": ("attempt", "usd", "tokens_in", "form", "finish", "error", "sampling", "model_hash"),
    "answer_body": ("shared", "messages", "completion", "token_ids", "logprobs"),
    "run": ("label", "value", "metrics", "detail", "program", "attempt", "finished_at"),
}
CELLS = [(table, column) for table, columns in COLUMNS.items() for column in columns]
VALUES = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(max_size=40), st.text(max_size=40)
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(st.tuples(st.sampled_from(CELLS), VALUES), min_size=1, max_size=4))
def test_the_others_are_read(whole: bytes, tmp_path: Path, cells: list[tuple[tuple[str, str], object]]) -> None:
    path = tmp_path / "state.db"
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)
    path.write_bytes(whole)
    for (table, column), value in cells:
        try:
            execute(path, f"UPDATE {table} SET {column} = ? WHERE number = 2", value)
        except sqlite3.IntegrityError:
            continue  # a database that has no room for nothing there
    found = read(path)
    assert [t.number for t in found] == [1, 2, 3]
    assert all(a is not None for t in (found[0], found[2]) for a in t.answers)
    assert found[0].experiment
