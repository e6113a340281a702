"""Nothing that reaches the store is written down with a secret in it."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from autoresearchd.domain.experiment import CurvePoint, Decision, Measurement, RunResult, StageResult
from autoresearchd.domain.labels import Label, SessionState, Status
from autoresearchd.domain.policy_versions import BaseModel, LearnerStatus
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.domain.redaction import Redactor
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import tables as t
from tests.fakes.stores import open_store
from tests.unit.domain.canaries import TOKENS, letters

AT = datetime(2026, 1, 1, tzinfo=UTC)
KNOWN = letters(20)
SECRET = f"{TOKENS['github-classic']} {KNOWN}"
HIDDEN = "«redacted:github» «redacted:environment»"
VERBATIM = {
    "session": "tag branch folder state policy executor base_commit incumbent confirmed task_json",
    "segment": "fingerprint", "confirmation": "why outcome",
    "experiment": "phase status label parent commit_sha", "proposal": "parent code_hash reward_formula",
    "proposal_body": "files token_ids logprobs", "run": "label curve", "tally": "label", "control_request": "kind",
    "event": "kind", "suggestion": "files parent", "answer_body": "token_ids logprobs",
    "learner_run": "algo mode status",
    "policy_version": "version status adapter_path adapter_hash model_hash tokenizer_hash template_hash",
}  # fmt: skip
"""Columns that hold hashes, numbers, and names of ours; the task and the files, which are refused with a secret."""


@pytest.fixture
def store(tmp_path: Path) -> SqlStore:
    return open_store(tmp_path / "state.db").hide(Redactor([KNOWN]))


def test_every_column_redacts_what_is_written_or_is_known_to_hold_no_foreign_text() -> None:
    numbers = (sa.Integer, sa.Float, sa.Boolean)
    for table in t.metadata.sorted_tables:
        foreign = [c for c in table.c if not isinstance(getattr(c.type, "impl", c.type), numbers)]
        verbatim = [c.name for c in foreign if not c.type.redacts]
        assert sorted(verbatim) == sorted(VERBATIM.get(table.name, "").split()), table.name


def test_a_whole_experiment_full_of_secrets_leaves_none_in_the_database(store: SqlStore, tmp_path: Path) -> None:
    new = NewSession("t", "autoresearch/t", "{}", "search", "local", "a" * 40, seed=1)
    session = store.create_session(new, AT)
    store.set_state(session.id, SessionState.BACKING_OFF, AT, pid=1, reason=SECRET)
    store.open_segment(session.id, "f", SECRET, SECRET, AT)
    experiment = store.open_experiment(session.id, parent="a" * 40, segment=0, at=AT)
    asi = ASI(SECRET, SECRET, SECRET, SECRET, {SECRET: [{"deep": SECRET}]})
    proposal = Proposal(
        {"train.py": "KEEP = 1\n"}, SECRET, f"command:{SECRET}", SECRET, changes={"X": SECRET}, role=SECRET,
        adapter=SECRET, asi=asi,
        generation=Generation(
            ({"role": "user", "content": SECRET},), SECRET, (1, 2), (-0.1, -0.2), sampling={"stop": [SECRET]}
        ),
    )  # fmt: skip
    stored = store.record_proposal(session.id, experiment.number, proposal, diff=f"+ {SECRET}\n", code_hash="h")
    assert dict(stored.proposal.files) == {"train.py": "KEEP = 1\n"}
    again = store.record_proposal(session.id, experiment.number, proposal, diff=f"+ {SECRET}\n", code_hash="h")
    assert again == stored, "recovery may repeat a step"
    answer = Answer(SECRET, Cost(), proposal.generation, SECRET, SECRET, SECRET)
    for _ in range(2):
        store.record_answer(session.id, experiment.number, answer, AT)
    assert [a.generation.messages[0]["content"] for a in store.answers(session.id, 0)] == [HIDDEN, HIDDEN]
    store.record_commit(session.id, experiment.number, "b" * 40)
    run = store.open_run(session.id, experiment.number, 3, AT)
    result = RunResult((StageResult("training", "failed", 1, 1.0, "log", detail=SECRET),), 1.0, "bubblewrap", SECRET)
    curve = (CurvePoint(1.0, 2.0),)
    measurement = Measurement(Label.NONE, 1.0, {"score": 1.0, SECRET: 2.0}, SECRET, curve)
    store.close_run(run.id, measurement, result, AT, last=True)
    assert tuple(store.curve(run.id)) == curve
    decision = Decision(Status.DISCARD, Label.NO_GAIN, 1.0, metrics={SECRET: 1.0}, reason=SECRET)
    store.record_decision(session.id, experiment.number, decision, asi, AT, incumbent=None)
    assert store.add_note(session.id, SECRET, AT).text == HIDDEN
    learning = store.open_learner_run("grpo", "replay", 1, AT, {"from": [SECRET]})
    store.record_learner_run(learning.id, LearnerStatus.FAILED, AT, metrics={SECRET: 1.0}, detail=SECRET)
    base = BaseModel("m", "f" * 64, "e" * 64, "d" * 64)
    for number in (1, 2):
        version = f"v{number}-{number:08x}"
        made = store.add_version(version, "c" * 64, base, AT, metrics={"words": SECRET}, reason=SECRET)
        assert made.digest == "c" * 64
    store.refuse_version("v2-00000002", reason=SECRET, metrics={SECRET: 1.0})
    store.promote_version("v1-00000001", AT, reason=SECRET, metrics={"more": SECRET})
    store.roll_back_version("v1-00000001", reason=SECRET)
    assert store.diff(session.id, experiment.number) == "+ «redacted:github» «redacted:environment»\n"
    dump = tmp_path / "dump"
    with store._db.read() as c:
        for (table,) in c.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").all():
            for row in c.exec_driver_sql(f"SELECT * FROM {table}").all():
                for value in row:
                    data = value if isinstance(value, bytes) else str(value).encode()
                    with dump.open("ab") as file:
                        file.write(zlib.decompress(data) if data[:1] == b"\x78" else data)
    store.close()
    for path in tmp_path.iterdir():
        assert KNOWN.encode() not in path.read_bytes(), path
        assert TOKENS["github-classic"].encode() not in path.read_bytes(), path


def test_tokens_do_not_spell_what_the_text_hides(store: SqlStore) -> None:
    session = store.create_session(NewSession("t", "autoresearch/t", "{}", "search", "local", "a" * 40, seed=1), AT)
    store.open_experiment(session.id, parent="a" * 40, segment=0, at=AT)
    told = Generation(({"role": "user", "content": "go"},), f"the key is {SECRET}", (7, 8), (-0.1, -0.2))
    harmless = Generation(({"role": "user", "content": SECRET},), "x = 1", (7, 8), (-0.1, -0.2))
    for generation in (told, harmless):
        store.record_answer(session.id, 0, Answer("m", Cost(), generation), AT)
        store.record_proposal(
            session.id, store.open_experiment(session.id, parent="a" * 40, segment=0, at=AT).number,
            Proposal({}, "", "m", generation=generation), diff="", code_hash="h",
        )  # fmt: skip
    stored = [a.generation for a in store.answers(session.id, 0)]
    proposed = [store.experiment(session.id, number).proposal for number in (1, 2)]
    for found in (stored, [p.generation for p in proposed if p is not None]):
        assert [(g.token_ids, g.logprobs) for g in found] == [(None, None), ((7, 8), (-0.1, -0.2))]
